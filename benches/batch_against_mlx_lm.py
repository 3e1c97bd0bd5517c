#!/usr/bin/env python3
"""`memoir generate --batch` and mlx-lm's batch_generate on the same weights, at 1, 4 and 16 requests.

    benches/batch_against_mlx_lm.py [--model models/smollm2.gguf] [--threads 2] [--prompt 16] [--new 24] [--rounds 3]

Each request has a prompt of its own of that many tokens and generates as many new ones, greedily and to the end.
Generated tokens of all requests per second from the first request to the last answer, prefill included, loading left
out; the two in turn, round after round, medians. mlx-lm, which is slow on a CPU, gets one round. Needs what benches/compare_peers.py needs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import compare_peers

PROGRAM = compare_peers.ROOT / "build" / "release" / "bin" / "memoir"
REQUESTS = (1, 4, 16)


def prompts(n, args, n_vocab=40000):
    tokens = compare_peers.bench_tokens(n * args.prompt, n_vocab)
    return [[1 + t for t in tokens[i * args.prompt : (i + 1) * args.prompt]] for i in range(n)]


def run_memoir(n, args):
    lines = "".join(json.dumps({"tokens": p, "n": args.new}) + "\n" for p in prompts(n, args))
    command = [PROGRAM, "generate", "-m", args.model, "--batch", "-", "--batch-size", n, "--temp", 0]
    command += ["--threads", args.threads, "--prefix-cache-bytes", 0]
    done = subprocess.run([str(w) for w in command], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    # All began at once: the last to end has seen the whole time.
    seconds = max(answer["prefill_s"] + answer["decode_s"] for answer in answers)
    return sum(len(answer["tokens"]) for answer in answers) / seconds


def run_mlx_lm(args):
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        compare_peers.write_mlx_directory(args.model, Path(folder))
        model, _ = load_model(Path(folder))
        for n in REQUESTS:
            # What batch_generate is made of, without a tokenizer.
            generator = BatchGenerator(model, max_tokens=args.new, completion_batch_size=n, prefill_batch_size=n)
            start = time.perf_counter()
            generator.insert(prompts(n, args), [args.new] * n)
            n_tokens = 0
            while True:
                responses = generator.next_generated()
                if not responses:
                    break
                n_tokens += len(responses)
            result[n] = n_tokens / (time.perf_counter() - start)
            generator.close()
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(compare_peers.ROOT / "models" / "smollm2.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=["mlx-lm"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        return run_mlx_lm(args)
    if compare_peers.PEERS.exists() and Path(sys.executable).parent != compare_peers.PEERS.parent:
        os.execv(compare_peers.PEERS, [str(compare_peers.PEERS), *sys.argv])
    ours = {n: [] for n in REQUESTS}
    peer = {}
    for round_number in range(args.rounds):
        for n in REQUESTS:
            ours[n].append(run_memoir(n, args))
        if round_number == 0:
            env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "OPENBLAS_NUM_THREADS": str(args.threads)}
            command = [sys.executable, __file__, "--engine", "mlx-lm", "--model", args.model]
            command += ["--prompt", str(args.prompt), "--new", str(args.new)]
            done = subprocess.run(command, stdout=subprocess.PIPE, env=env, check=True)
            peer = json.loads(done.stdout.splitlines()[-1])
    print(f"generated tokens/s, prompts of {args.prompt} tokens, {args.new} new ones, {args.threads} threads")
    print(f"{'requests':>8}{'memoir':>10}{'mlx-lm':>10}{'ratio':>8}{'to one request':>16}")
    one = statistics.median(ours[1])
    for n in REQUESTS:
        mine, theirs = statistics.median(ours[n]), peer[str(n)]
        print(f"{n:8}{mine:10.1f}{theirs:10.1f}{mine / theirs:8.1f}{mine / one:16.2f}")


if __name__ == "__main__":
    main()
