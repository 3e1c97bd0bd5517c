#!/usr/bin/env python3
"""From nothing to the first token: `memoir generate -n 1`, a whole process, against llama.cpp's loading and first token.

    benches/cold_start.py [--model models/smollm2.gguf] [--threads 2] [--rounds 7]

In turn, round after round, medians: once with the file dropped from the page cache before each start (cold), once with
it there (warm). Of llama.cpp (llama-cpp-python) only loading, tokenizing and the first token are timed, not the start of
the process and of python, which memoir's time has. The answers are not compared, their tokens may differ.
Needs what compare_peers.py needs; dropping a file from the page cache is Linux's posix_fadvise.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
PROMPT = "Hello there, how are you?"

LLAMA_CPP = """
import sys, time
from llama_cpp import Llama
start = time.perf_counter()
llama = Llama(model_path=sys.argv[1], n_ctx=64, n_threads=int(sys.argv[2]), verbose=False, flash_attn=True)
llama.eval(llama.tokenize(sys.argv[3].encode()))
llama.sample(temp=0)
print(time.perf_counter() - start)
"""


def drop_from_page_cache(path):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def llama_cpp_s(args):
    command = [sys.executable, "-c", LLAMA_CPP, args.model, str(args.threads), PROMPT]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def memoir_s(args):
    command = [ROOT / "build/release/bin/memoir", "generate", "-m", args.model, "--raw", "-p", PROMPT, "-n", "1"]
    start = time.perf_counter()
    subprocess.run([*command, "--temp", "0", "--threads", str(args.threads)], capture_output=True, check=True)
    return time.perf_counter() - start


def main():
    if PEERS.exists() and Path(sys.executable) != PEERS:
        os.execv(PEERS, [str(PEERS), *sys.argv])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/smollm2.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    for is_cold in (True, False):
        times = {"memoir": [], "llama.cpp": []}
        for _ in range(args.rounds):
            for name, measure in (("llama.cpp", llama_cpp_s), ("memoir", memoir_s)):
                if is_cold:
                    drop_from_page_cache(args.model)
                times[name].append(measure(args))
        medians = {name: statistics.median(of_name) for name, of_name in times.items()}
        print(
            f"{'cold' if is_cold else 'warm'}: memoir {1e3 * medians['memoir']:.0f} ms, "
            f"llama.cpp {1e3 * medians['llama.cpp']:.0f} ms, ratio {medians['memoir'] / medians['llama.cpp']:.2f}"
        )


if __name__ == "__main__":
    main()
