"""A model that loads and answers at once: the golden Llama of tests/data, for tests of the server that need no sense.

Its embedding and its output are repeated up to the 526 tokens of a tokenizer of tests/data that knows every byte, so
that any text can be asked. It has a chat template as well.
"""

import json
import os
import shutil
import struct

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
N_VOCAB = 526
N_EMBEDDING = 48
TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m.role + '\\n' + m.content + '</s>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\\n' }}{% endif %}"
)


def _read(path):
    """The tensors of a safetensors file: name to (dtype, shape, bytes)."""
    with open(path, "rb") as file:
        (n,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n))
        body = file.read()
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items()}


def _write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def _widened(tensor):
    dtype, (n_rows, n), data = tensor
    n_bytes = len(data) // n_rows * N_VOCAB
    return dtype, [N_VOCAB, n], (data * (N_VOCAB // n_rows + 1))[:n_bytes]


def write(folder):
    """Into a directory that is there, for `memoir serve -m`."""
    source = os.path.join(DATA, "llama")
    tensors = _read(os.path.join(source, "model.safetensors"))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = _widened(tensors[name])
    _write(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        config = json.load(file) | {"vocab_size": N_VOCAB, "max_position_embeddings": 8192}
    shutil.copy(os.path.join(DATA, "tokenizer", "smollm.json"), os.path.join(folder, "tokenizer.json"))
    tokenizer = {"eos_token": "</s>", "add_bos_token": False, "chat_template": TEMPLATE}
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
