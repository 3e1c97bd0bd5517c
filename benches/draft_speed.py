#!/usr/bin/env python3
"""What drafts gain where they are right, and cost where they aren't.

    benches/draft_speed.py [--memoir build/release/bin/memoir] [--model models/smollm2.gguf] [--draft ngram [FILE ...]]
                           [--prompts NAME ...] [--tokens 200] [--rounds 5] [-- FURTHER OPTIONS OF generate]

Generation without a drafter and with each one (`ngram`, or a model's file) in turn, forth and back, each a process of
its own: tokens per second over those of plain decoding in the same round, the median of the rounds, and how many of the
drafts were right. All must give the same tokens.

Prompts: a text that has been repeated twice goes on (every draft is right), a chat that asks for a copy, a story (where
there is little to look up), and, with a temperature, digits: whatever is looked up there is found, and is wrong.
tools/make_draft_target.py makes models for which a small one is a good drafter.
"""

import argparse
import json
import random
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
DIGITS = "".join(random.Random(1).choice("0123456789") for _ in range(400))
GREEDY = ["--temp", "0"]
PROMPTS = {
    "repetition": (CODE * 3, [*GREEDY, "--raw"]),
    "copy on request": ("Repeat the following text exactly, word for word:\n\n" + CODE, GREEDY),
    "story": ("Write a story about a fox and a bear who meet in the woods at night.", GREEDY),
    "digits": ("Random digits: " + DIGITS, ["--temp", "1", "--seed", "1", "--raw"]),
}


def generate(args, prompt, options, draft):
    command = [args.memoir, "generate", "-m", args.model, "-p", prompt, "-n", str(args.tokens), "--json", *options]
    command += ["--draft", draft] if draft else []
    command += args.options
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result, len(result["tokens"]) / result["decode_s"]


def compare(args, name):
    prompt, options = PROMPTS[name]
    ways = [None, *args.draft]
    speeds = {draft: [] for draft in ways}
    results = {}
    for i in range(args.rounds):
        for draft in ways if i % 2 == 0 else reversed(ways):
            results[draft], speed = generate(args, prompt, options, draft)
            speeds[draft].append(speed)
            if results[draft]["tokens"] != results.get(None, results[draft])["tokens"]:
                sys.exit(f"{name}: the tokens differ with {draft}")
    for draft in args.draft:
        n_drafted, n_right = results[draft]["drafted"], results[draft]["accepted"]
        share = f"{100 * n_right / n_drafted:9.0f} %" if n_drafted else f"{'-':>11}"
        ratio = statistics.median(drafted / plain for drafted, plain in zip(speeds[draft], speeds[None]))
        print(f"{name:18}{Path(draft).stem:>16}{len(results[None]['tokens']):8}{n_drafted:9}{n_right:10}{share}"
              f"{statistics.median(speeds[None]):12.1f}{ratio:10.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memoir", default=str(ROOT / "build" / "release" / "bin" / "memoir"))
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2.gguf"))
    parser.add_argument("--draft", nargs="+", default=["ngram"])
    parser.add_argument("--prompts", nargs="+", choices=PROMPTS, default=list(PROMPTS))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*", help="of memoir generate, behind --")
    args = parser.parse_args()
    print(f"{'':18}{'drafter':>16}{'tokens':>8}{'drafted':>9}{'right':>10}{'':11}{'plain tok/s':>12}{'speed-up':>10}")
    for name in args.prompts:
        compare(args, name)


if __name__ == "__main__":
    main()
