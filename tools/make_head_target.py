#!/usr/bin/env python3
"""A model that says what another says, with its head for further tokens, and takes several times as long.

    tools/make_head_target.py tests/data/qwen3_5 tests/data/mtp/qwen3_5.safetensors OUT [--times 8]

Its layers are there once as they are, and then again and again with zeros where they give something out, so that these
change nothing. Tiny models have few layers, and a head of one is large beside them; this gives what the proportions
of published models would. Standard library only.
"""

import argparse
import json
import struct
from pathlib import Path

LAYERS = "model.layers."
OUTPUTS = ("out_proj.weight", "o_proj.weight", "down_proj.weight")


def read(path):
    """Names, and (type, shape, bytes) of each."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + n + begin : 8 + n + end])
    return tensors


def write(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=8)
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    n_layers = config["num_hidden_layers"]
    tensors = read(args.model / "model.safetensors")
    more = {}
    for name, (dtype, shape, data) in tensors.items():
        if not name.startswith(LAYERS):
            continue
        index, inner = name[len(LAYERS) :].split(".", 1)
        if inner.endswith(OUTPUTS):
            data = bytes(len(data))
        for i in range(1, args.times):
            more[f"{LAYERS}{int(index) + i * n_layers}.{inner}"] = (dtype, shape, data)
    config["num_hidden_layers"] = n_layers * args.times
    for key in ("layer_types", "mlp_layer_types"):
        if config.get(key):
            config[key] *= args.times
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=1))
    write(args.out / "model.safetensors", tensors | more | read(args.head))


if __name__ == "__main__":
    main()
