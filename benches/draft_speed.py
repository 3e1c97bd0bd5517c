#!/usr/bin/env python3
"""What `--draft ngram` gains where an answer repeats its prompt, and costs where it doesn't.

    benches/draft_speed.py [--memoir build/release/bin/memoir] [--model models/smollm2.gguf] [--draft ngram]
                           [--tokens 200] [--rounds 5]

Greedy generation with and without the drafter in turn, each a process of its own; medians of tokens per second. Both
must give the same tokens. Prompts: a text that has been repeated twice goes on (every draft is right), a chat that asks
for a copy, and a story, where there is little to look up.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = """def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)

def volume(width, height, depth):
    return width * height * depth

def diagonal(width, height):
    return (width * width + height * height) ** 0.5

"""
PROMPTS = {
    "repetition": (CODE * 3, True),
    "copy on request": ("Repeat the following text exactly, word for word:\n\n" + CODE, False),
    "story": ("Write a story about a fox and a bear who meet in the woods at night.", False),
}


def generate(args, prompt, is_raw, draft):
    command = [args.memoir, "generate", "-m", args.model, "-p", prompt, "-n", str(args.tokens), "--temp", "0", "--json"]
    command += ["--raw"] if is_raw else []
    command += ["--draft", draft] if draft else []
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result, len(result["tokens"]) / result["decode_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memoir", default=str(ROOT / "build" / "release" / "bin" / "memoir"))
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2.gguf"))
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{'':18}{'tokens':>8}{'drafted':>9}{'accepted':>10}{'speed-up':>10}")
    for name, (prompt, is_raw) in PROMPTS.items():
        plain, drafted = [], []
        for _ in range(args.rounds):
            expected, speed = generate(args, prompt, is_raw, None)
            plain.append(speed)
            result, speed = generate(args, prompt, is_raw, args.draft)
            drafted.append(speed)
            if result["tokens"] != expected["tokens"]:
                sys.exit(f"{name}: the tokens differ")
        ratio = statistics.median(drafted) / statistics.median(plain)
        print(f"{name:18}{len(expected['tokens']):8}{result['drafted']:9}{result['accepted']:10}{ratio:10.2f}")


if __name__ == "__main__":
    main()
