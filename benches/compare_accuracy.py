#!/usr/bin/env python3
"""How far memoir's and llama.cpp's logits are from those of the same weights computed in float32.

    benches/compare_accuracy.py [--model models/smollm2.gguf] [--threads 2] [--kv auto]

The reference (tests/data/smollm2_logits.safetensors) is transformers' Llama in float32 with SmolLM2's weights
dequantized: for each of three prompts the ten best tokens of every position with their logits, and all logits of the
last one. Printed for both: the mean Kullback-Leibler divergence from the reference, over the ten best tokens
(renormalized) of all positions, and over the whole vocabulary of the last ones; and the largest difference of a
logit after each row's mean difference is taken off. Needs python with llama-cpp-python and numpy: `make peers` makes
.venv-peers with them, and this script runs itself with it.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
REFERENCE = ROOT / "tests" / "data" / "smollm2_logits.safetensors"
DTYPES = {"F32": "<f4", "I32": "<i4"}


def read_safetensors(path):
    import numpy as np

    data = Path(path).read_bytes()
    (n_header,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n_header])
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        at = 8 + n_header
        arrays[name] = np.frombuffer(data[at + begin : at + end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def memoir_logits(args, ids):
    program = ROOT / "build" / "release" / "bin" / "memoir"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logits.safetensors"
        tokens = ",".join(str(i) for i in ids)
        command = [program, "logits", "-m", args.model, "--tokens", tokens, "-o", path, "--threads", str(args.threads)]
        command += ["--kv", args.kv]
        subprocess.run([str(word) for word in command], check=True)
        return read_safetensors(path)["logits"]


class LlamaCpp:
    def __init__(self, args):
        from llama_cpp import Llama

        self.llm = Llama(
            model_path=args.model,
            n_ctx=512,
            n_threads=args.threads,
            n_threads_batch=args.threads,
            flash_attn=True,
            logits_all=True,
            verbose=False,
        )

    def logits(self, ids):
        self.llm.reset()
        self.llm._ctx.kv_cache_clear() if hasattr(self.llm._ctx, "kv_cache_clear") else self.llm._ctx.memory_clear(True)
        self.llm.eval([int(i) for i in ids])
        return self.llm.scores[: len(ids)].copy()


def log_softmax(x):
    import numpy as np

    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def divergence(reference, logits):
    import numpy as np

    p, q = log_softmax(reference), log_softmax(logits)
    return (np.exp(p) * (p - q)).sum(axis=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="auto", help="memoir's option")
    args = parser.parse_args()
    if PEERS.exists() and Path(sys.executable).parent != PEERS.parent:
        os.execv(PEERS, [str(PEERS), *sys.argv])
    import numpy as np

    reference = read_safetensors(REFERENCE)
    n_prompts = sum(name.endswith(".ids") and "top10" not in name for name in reference)
    llama = LlamaCpp(args)
    engines = {"memoir": lambda ids: memoir_logits(args, ids), "llama.cpp": llama.logits}
    results = {}
    for engine, logits_of in engines.items():
        top, last, largest = [], [], 0.0
        for i in range(n_prompts):
            logits = logits_of(reference[f"{i}.ids"])
            ids, expected = reference[f"{i}.top10_ids"], reference[f"{i}.top10_logits"]
            chosen = np.take_along_axis(logits, ids, axis=1)
            top.append(divergence(expected, chosen))
            last.append(divergence(reference[f"{i}.last_logits"], logits[-1]))
            difference = (chosen - expected).astype(np.float64)
            largest = max(largest, np.abs(difference - difference.mean(axis=1, keepdims=True)).max())
        results[engine] = (np.concatenate(top).mean(), np.mean(last), largest)
    print(f"{'':12}{'KL, best 10':>14}{'KL, last':>14}{'largest':>12}")
    for engine, (top, last, largest) in results.items():
        print(f"{engine:12}{top:14.3e}{last:14.3e}{largest:12.4f}")
    ratio = results["llama.cpp"][0] / results["memoir"][0]
    print(f"\nllama.cpp's divergence is {ratio:.3g} times memoir's (best 10, all positions)")


if __name__ == "__main__":
    main()
