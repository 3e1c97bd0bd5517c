#!/usr/bin/env python3
"""What a token costs at the end of contexts of several lengths: for a recurrent state the same.

    benches/cost_over_context.py MODEL ... [--contexts 256,2048,8192] [--decode 64] [--rounds 3] [--threads 2]

`memoir bench` in a process of its own for each measurement, the lengths in turn, round after round; medians. Printed
for each model and length: milliseconds per token of the prompt and of those generated after it, each beside its ratio
to the shortest length. Models that are nothing but recurrent layers: the kinds mamba and delta-alone of
tools/make_random_models.py.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "release" / "bin" / "memoir"


def measure(model, context, args):
    """Milliseconds per token: of the prompt, of decoding after it."""
    command = [PROGRAM, "bench", "-m", model, "--prompt", context, "--decode", args.decode, "--repeat", 1, "--json"]
    command += ["--threads", args.threads]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout)
    return [1000 / result[key]["median"] for key in ("prefill_tok_s", "decode_tok_s")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", nargs="+")
    parser.add_argument("--contexts", default=[256, 2048, 8192], type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(f"{'':28}{'context':>8}{'prefill ms':>19}{'decode ms':>19}")
    for model in args.models:
        runs = {context: [] for context in args.contexts}
        for _ in range(args.rounds):
            for context in args.contexts:
                runs[context].append(measure(model, context, args))
        medians = {context: [statistics.median(column) for column in zip(*rows)] for context, rows in runs.items()}
        first = medians[args.contexts[0]]
        for context, row in medians.items():
            columns = "".join(f"{value:11.3f} ({value / base:5.2f})" for value, base in zip(row, first))
            print(f"{Path(model).name:28}{context:8}{columns}", flush=True)


if __name__ == "__main__":
    main()
