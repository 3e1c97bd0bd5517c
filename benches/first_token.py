#!/usr/bin/env python3
"""Time to the first token of a prompt that leaves an earlier one at 90 %: memoir's server, llama.cpp's and mlx-lm's.

    benches/first_token.py [--model models/smollm2.gguf] [--tokens 2000] [--rounds 5] [--threads 2]
                           [--traces turn,inside] [--llama-server PATH] [--mlx-model DIR]

Each round sends four prompts, of texts that no round before had, and waits for each answer:
- cold: --tokens words, of which the last tenth is a message of its own (trace turn) or the end of one (trace inside);
- edited: the same with another last tenth, which is what an edited turn sends;
- start, then extended: nine tenths of other words, then all of them: what the missing tenth takes where nothing has to
  be taken back.
In a chat prompts differ from where a turn begins. Inside a message nothing says where the next prompt will differ.
Printed are medians and, per server, edited as a part of cold and against extended; in brackets, memoir's ratio to each
peer for the edited prompt, above 1 is memoir sooner. The servers run one at a time on the same trace; how they are made
and what they need is server_load.py's. A model that a peer can't run is left out there, and why is said. mlx-lm's server
gets the directory that --mlx-model names, else one made of the GGUF's tensors (the Llama family only).
"""

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

from server_load import PEERS, ROOT, Answer, Server, commands, write_mlx_model

WORDS = "river stone paper cloud engine garden window number letter music winter yellow silent broken early little".split()


def words(generator, n):
    return " ".join(generator.choice(WORDS) for _ in range(n))


def prompt(trace, text, tail=None):
    """The chat of `text`, and `tail` behind it."""
    if trace == "inside":
        return [{"role": "user", "content": text + (f" {tail}" if tail else "")}]
    turns = [{"role": "user", "content": text}]
    return turns + ([{"role": "assistant", "content": "Yes."}, {"role": "user", "content": tail}] if tail else [])


def waited(server, messages):
    answer = Answer(server.port, messages, 2)
    if not answer.is_whole:
        raise RuntimeError(f"a prompt was answered with {answer.status}")
    return (answer.first or answer.end) - answer.begin  # a model with random weights may answer without text


def measure(server, trace, args):
    """Medians of the rounds, in seconds."""
    times = {"cold": [], "edited": [], "extended": []}
    n_tenth = args.tokens // 10  # a word of the list is about a token
    for round_number in range(args.rounds + 1):
        generator = random.Random(f"{trace} {round_number}")
        text, other = words(generator, 9 * n_tenth), words(generator, 9 * n_tenth)
        tails = [words(generator, n_tenth) for _ in range(3)]
        row = {"cold": waited(server, prompt(trace, text, tails[0])), "edited": waited(server, prompt(trace, text, tails[1]))}
        waited(server, prompt(trace, other))
        row["extended"] = waited(server, prompt(trace, other, tails[2]))
        if round_number > 0:  # the first has everything read and warmed up
            for name, seconds in row.items():
                times[name].append(seconds)
    return {name: statistics.median(of_name) for name, of_name in times.items()}


def print_table(trace, rows):
    for name, row in rows.items():
        line = f"{trace:8}{name:12}" + "".join(f"{label} {seconds:8.3f} s   " for label, seconds in row.items())
        line += f"edited / cold {row['edited'] / row['cold']:.2f}   edited / extended {row['edited'] / row['extended']:.2f}"
        if name != "memoir" and "memoir" in rows:
            line += f"   ({row['edited'] / rows['memoir']['edited']:.1f})"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memoir", default=str(ROOT / "build" / "release" / "bin" / "memoir"))
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2.gguf"))
    parser.add_argument("--mlx-model", help="mlx-lm's directory of the same weights")
    parser.add_argument("--servers", default="memoir,llama.cpp,mlx-lm", type=lambda text: text.split(","))
    parser.add_argument("--traces", default="turn,inside", type=lambda text: text.split(","))
    parser.add_argument("--llama-server", help="llama.cpp's llama-server")
    parser.add_argument("--peers-python", default=str(PEERS))
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.system_tokens, args.max_tokens, args.draft = 2 * args.tokens, 2, "none"  # what commands() asks for
    rows = {trace: {} for trace in args.traces}
    with tempfile.TemporaryDirectory() as folder:
        mlx_folder = args.mlx_model or folder
        if "mlx-lm" in args.servers and not args.mlx_model:
            write_mlx_model(folder, args)
        for name, command in commands(1, mlx_folder, args):
            if name not in args.servers:
                continue
            try:
                with Server(name, command, args) as server:
                    for trace in args.traces:
                        rows[trace][name] = measure(server, trace, args)
            except (RuntimeError, OSError) as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
    print(f"{Path(args.model).name}, {args.tokens} words, the last tenth another one, {args.threads} threads, "
          f"{args.rounds} rounds")  # fmt: skip
    for trace in args.traces:
        print_table(trace, rows[trace])


if __name__ == "__main__":
    main()
