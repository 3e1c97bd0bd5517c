#!/usr/bin/env python3
"""The prefix cache for a long time: little memory, a directory behind it, and a program that is killed again and again.

    benches/prefix_soak.py [--model llama ...] [--requests 10000] [--seed 1] [--program build/release/bin/memoir]

Requests on tiny models of tests/data (flat, window, recurrent and hybrid if none are named): chats that grow, are
edited and left. First all are answered without a directory and with a prefix cache that keeps nothing; these answers are
right. Then:

1. All once more in one run, with memory for a tenth of what they need. Every answer must be the same. What the process
   holds is read each tenth of a second: the most in the second half must be at most a tenth above the most in the first
   (not looked at with fewer than 5000 requests).
2. All once more with a directory that holds a quarter of what is written, by runs that are killed (SIGKILL) at random
   moments and begun again with what is not answered. Every answer must be the same, every run but the killed ones must
   end well and say nothing.

Prints a line for each; fails at the first wrong answer.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENOUGH_FOR_MEMORY = 5000  # requests; fewer end before the cache is full for long
MODELS = ["llama", "gemma3", "mamba2", "lfm2"]


def requests_of(n, vocabulary, seed):
    draws = random.Random(seed)

    def text(least, most):
        return [draws.randrange(vocabulary) for _ in range(draws.randint(least, most))]

    systems = [text(60, 200) for _ in range(4)]
    chats = [list(draws.choice(systems)) for _ in range(60)]
    requests = []
    for _ in range(n):
        i = draws.randrange(len(chats))
        if len(chats[i]) > 440 or draws.random() < 0.05:
            chats[i] = list(draws.choice(systems))
        if draws.random() < 0.1:
            del chats[i][draws.randrange(50, len(chats[i])) :]
        chats[i] += text(5, 60)
        requests.append({"tokens": list(chats[i]), "max_tokens": draws.randint(1, 6), "temperature": 0})
    return requests


class Runs:
    def __init__(self, program, model, folder):
        self.command = [program, "generate", "-m", str(ROOT / "tests" / "data" / model), "--threads", "1", "--batch"]
        self.folder = Path(folder)

    def start(self, requests, *options):
        path = self.folder / "requests.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in requests))
        self.out = open(self.folder / "out", "wb")
        self.err = open(self.folder / "err", "wb")
        return subprocess.Popen([*self.command, str(path), *options], stdout=self.out, stderr=self.err)

    def answers(self):
        """By index, of the lines that are whole."""
        text = (self.folder / "out").read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return {line["index"]: line for line in lines}

    def finish(self, process):
        status = process.wait()
        said = (self.folder / "err").read_text()
        if status != 0 or said:
            sys.exit(f"exit status {status}: {said}")
        return self.answers()


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def check(expected, answers, numbers):
    for index, line in answers.items():
        if line["tokens"] != expected[numbers[index]]:
            sys.exit(f"request {numbers[index]} was answered {line['tokens']}, not {expected[numbers[index]]}")


def in_little_memory(runs, requests, expected, need_bytes):
    process = runs.start(requests, "--prefix-cache-bytes", str(need_bytes // 10))
    held = []
    while process.poll() is None:
        held.append(resident_bytes(process.pid))
        time.sleep(0.1)
    answers = runs.finish(process)
    check(expected, answers, range(len(requests)))
    held = [n for n in held if n > 0]
    first, second = max(held[: len(held) // 2]), max(held[len(held) // 2 :])
    cached = sum(line["cached_tokens"] for line in answers.values())
    asked = sum(line["prompt_tokens"] for line in answers.values())
    print(f"  {len(answers)} answers at {need_bytes // 10} bytes: {100 * cached / asked:.1f} % of the tokens restored; "
          f"resident {first / 1e6:.1f} MB at most in the first half, {second / 1e6:.1f} MB in the second")
    is_long = len(requests) >= ENOUGH_FOR_MEMORY
    if len(answers) != len(requests) or (is_long and second > 1.1 * first):
        sys.exit("memory grew, or answers are missing")


def killed(runs, requests, expected, need_bytes, draws):
    directory = runs.folder / "prefixes"
    options = ["--prefix-cache-dir", str(directory), "--prefix-cache-disk-bytes", str(need_bytes // 4)]
    options += ["--prefix-cache-bytes", str(need_bytes // 10)]
    open_numbers = list(range(len(requests)))
    n_killed = n_cached = 0
    while open_numbers:
        numbers = open_numbers[:2000]
        process = runs.start([requests[i] for i in numbers], *options)
        try:
            process.wait(draws.uniform(0.05, 4))
            answers = runs.finish(process)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            n_killed += 1
            answers = runs.answers()
        check(expected, answers, numbers)
        n_cached += sum(line["cached_tokens"] for line in answers.values())
        done = {numbers[index] for index in answers}
        open_numbers = [i for i in open_numbers if i not in done]
    n_files = len(list(directory.iterdir()))
    print(f"  killed {n_killed} times: all answers right, {n_cached} tokens restored, {n_files} files left")


def need_of(requests, runs):
    """Bytes that all of them would hold: what the directory has once there is room for all."""
    directory = runs.folder / "all"
    runs.finish(runs.start(requests, "--prefix-cache-dir", str(directory)))
    return sum(path.stat().st_size for path in directory.iterdir())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "bin" / "memoir"))
    args = parser.parse_args()
    for model in args.model or MODELS:
        print(model)
        with tempfile.TemporaryDirectory() as folder:
            requests = requests_of(args.requests, 160, args.seed)
            runs = Runs(args.program, model, folder)
            whole = runs.finish(runs.start(requests, "--prefix-cache-bytes", "0"))
            expected = {index: line["tokens"] for index, line in whole.items()}
            need_bytes = need_of(requests, runs)
            in_little_memory(runs, requests, expected, need_bytes)
            killed(runs, requests, expected, need_bytes, random.Random(args.seed))


if __name__ == "__main__":
    main()
