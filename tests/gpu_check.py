#!/usr/bin/env python3
"""What memoir does on this machine's GPU, beside what it does on its CPU: for those who have one (docs/gpu.md).

    tests/gpu_check.py [--program build/cuda/bin/memoir] [--model models/smollm2.gguf] [--jobs 1] [--only PART]
                       [--device gpu]

Runs the program as its users do, every family of tests/data against transformers' logits and tokens, and the model of
a model with a tokenizer in each way that `generate`, `serve` and `bench` have: a tiny random one, or the one of
--model. It needs python3 alone. Prints a line for each check and exits with 1 if one failed. With --device cpu the same
checks hold of the CPU, to try this script.

Floats: a GPU's products of float32 may be rounded to fewer bits (TF32) unless MLX_ENABLE_TF32=0, which this sets for
the families. Two ways to compute the same text may part at a near tie, so that counts as a failure only in the first
tokens.
"""

import argparse
import array
import concurrent.futures
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
TOLERANCE = 2e-3  # as tests/golden.h
N_SAME = 8  # tokens of a text that two ways to compute it must share
TEXT = "The history of the Roman Empire is usually divided into several periods, of which the first was"
LONG = " ".join(f"Number {i} is followed by number {i + 1}." for i in range(20))

sys.path.insert(0, str(ROOT / "tests" / "clients"))
import tiny_model  # noqa: E402

arguments = None


class Wrong(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Wrong(what)


# ---- Files and the program


def tensors(path):
    """The tensors of a safetensors file: name -> (shape, flat list), of the types that the goldens have."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    result = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        result[name] = (entry["shape"], array.array({"F32": "f", "I32": "i"}[entry["dtype"]], data[begin:end]))
    return result


def run(*words, device=None, env=None, stdin=None, timeout=300, code=0):
    command = [arguments.program, words[0], "--device", device or arguments.device, *map(str, words[1:])]
    done = subprocess.run(
        command, capture_output=True, text=True, input=stdin, timeout=timeout, env={**os.environ, **(env or {})}
    )
    if done.returncode != code:
        raise Wrong(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}  [{' '.join(map(str, words))[:150]}]")
    return done.stdout


def generate(*words, model=None, **options):
    """The JSON objects that `memoir generate` prints, one or several."""
    made = run("generate", "-m", model or arguments.model, *words, "--json", **options)
    answers = [json.loads(line) for line in made.splitlines()]
    return answers[0] if len(answers) == 1 else answers


def logits(model, ids, folder, *words, **options):
    path = Path(folder) / "logits.safetensors"
    run("logits", "-m", model, "--tokens", ",".join(map(str, ids)), "-o", path, *words, **options)
    shape, values = tensors(path)["logits"]
    expect(all(map(math.isfinite, values)), "a logit is not finite")
    return shape, values


def difference(a, b):
    expect(len(a) == len(b), f"{len(a)} values, expected {len(b)}")
    return max((abs(x - y) for x, y in zip(a, b)), default=0.0)


def n_shared(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def alike(tokens, expected):
    """How far two continuations are alike, which must be some way."""
    n = n_shared(tokens, expected)
    expect(n >= min(N_SAME, len(expected)), f"alike in {n} tokens only: {tokens[:12]}, expected {expected[:12]}")
    return "same tokens" if tokens == expected else f"alike in {n} of {len(expected)} tokens"


# ---- Every family


def check_family(name, tf32):
    expected = tensors(DATA / name / "expected.safetensors")
    prompt, greedy = expected["prompt"][1], list(expected["greedy"][1])
    env = {"MLX_ENABLE_TF32": "1" if tf32 else "0"}
    ids = ",".join(map(str, prompt))
    with tempfile.TemporaryDirectory() as folder:
        whole = logits(DATA / name, prompt, folder, env=env)[1]
        pieces = logits(DATA / name, prompt, folder, "--chunk", 7, env=env)[1]
    far = difference(whole, expected["logits"][1]), difference(pieces, expected["logits"][1])
    made = generate("--tokens", ids, "-n", len(greedy), "--prefill-chunk", 16, model=DATA / name, env=env)["tokens"]
    # Side by side in the scheduler's thread, where nothing that loading left undone can be computed.
    lines = (json.dumps({"tokens": list(prompt), "n": len(greedy)}) + "\n") * 3
    batch = run("generate", "-m", DATA / name, "--batch", "-", stdin=lines, env=env)
    shared = [made] + [json.loads(line)["tokens"] for line in batch.splitlines()]
    seen = f"logits differ by {far[0]:.1e}, in pieces by {far[1]:.1e}; "
    seen += f"{min(n_shared(tokens, greedy) for tokens in shared)} of {len(greedy)} tokens"
    if not tf32:
        expect(max(far) < TOLERANCE and len(shared) == 4 and all(tokens == greedy for tokens in shared), seen)
    return seen


def narrowed_model(name, folder, dtype):
    """A copy of a family's model with weights of 16 bits, cut off (bfloat16) or rounded (float16)."""
    target = Path(folder) / name
    shutil.copytree(DATA / name, target)
    path = target / "model.safetensors"
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    out, offset = [], 0
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        part = data[slice(*entry["data_offsets"])]
        if entry["dtype"] == "F32":
            if dtype == "BF16":
                part = array.array("H", part)[1::2].tobytes()
            else:
                values = array.array("f", part)
                part = struct.pack(f"<{len(values)}e", *values)
            entry["dtype"] = dtype
        entry["data_offsets"] = [offset, offset + len(part)]
        offset += len(part)
        out.append(part)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(out))
    return target


def check_narrow(name, dtype):
    """Weights of 16 bits: a GPU computes in them, the CPU in float32."""
    prompt = tensors(DATA / name / "expected.safetensors")["prompt"][1]
    with tempfile.TemporaryDirectory() as folder:
        model = narrowed_model(name, folder, dtype)
        shape, ours = logits(model, prompt, folder)
        # Rows of another type than the activations; Mamba 2 has none.
        wide = ours if name == "mamba2" else logits(model, prompt, folder, "--kv", "f32")[1]
        cpu = logits(model, prompt, folder, device="cpu")[1]
        ids = ",".join(map(str, prompt))
        made = generate("--tokens", ids, "-n", 24, model=model)["tokens"]
        expected = generate("--tokens", ids, "-n", 24, model=model, device="cpu")["tokens"]
    n = shape[-1]
    best = sum(
        max(range(n), key=ours[i : i + n].__getitem__) == max(range(n), key=cpu[i : i + n].__getitem__)
        for i in range(0, len(ours), n)
    )
    mean = max(sum(abs(x - y) for x, y in zip(some, cpu)) / len(cpu) for some in (ours, wide))
    seen = f"logits of {min(cpu):.0f} to {max(cpu):.0f} differ by {difference(ours, cpu):.1e}, {mean:.1e} in the mean, "
    seen += f"the best alike in {best} of {shape[0]} rows, {n_shared(made, expected)} of {len(expected)} tokens"
    expect(mean < 0.05 * (max(cpu) - min(cpu)) and best >= 0.75 * shape[0], seen)
    return seen


# ---- A model with a tokenizer


def is_tiny():
    return arguments.model.name == "tiny"


def reference():
    return generate("-p", TEXT, "--raw", "-n", 32)["tokens"]


def check_goldens():
    expected = tensors(DATA / "smollm2_logits.safetensors")
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(3):
            ids, last = expected[f"{i}.ids"][1], expected[f"{i}.last_logits"][1]
            ours = logits(arguments.model, ids, folder)[1]
            greedy = list(expected[f"{i}.greedy"][1])
            made = generate("--tokens", ",".join(map(str, ids)), "-n", 32)["tokens"]
            seen.append(f"{difference(ours[-len(last) :], last):.2f}/{n_shared(made, greedy)} of {len(made)}")
            expect(difference(ours[-len(last) :], last) < 3, f"logits differ by {seen}")  # bfloat16: about 1
    return "last logits' difference / tokens alike: " + ", ".join(seen)


def check_against_cpu():
    cpu = generate("-p", TEXT, "--raw", "-n", 32, device="cpu")["tokens"]
    return alike(reference(), cpu)


def check_kv(kind):
    base = reference()
    made = generate("-p", TEXT, "--raw", "-n", 32, "--kv", kind)["tokens"]
    if kind not in ("f32", "f16", "bf16", "q8"):  # fewer bits change the text of a random model
        return f"alike in {n_shared(made, base)} of 32 tokens"
    return alike(made, base)


def check_options(*words):
    cpu = generate("-p", LONG, "--raw", "-n", 24, *words, device="cpu")["tokens"]
    return alike(generate("-p", LONG, "--raw", "-n", 24, *words)["tokens"], cpu)


def check_draft(*words):
    prompt = ("-p", LONG, "--raw", "-n", 48)
    plain = generate(*prompt)["tokens"]
    drafted = generate(*prompt, *words)
    expect(drafted["drafted"] > 0 or is_tiny(), "nothing was drafted")
    return f"{alike(drafted['tokens'], plain)}, {drafted['accepted']} of {drafted['drafted']} drafts taken"


def check_prompt_cache():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.safetensors"
        first = generate("-p", LONG, "--raw", "-n", 8, "--prompt-cache", path)
        more = LONG + first["text"] + " And now"
        second = generate("-p", more, "--raw", "-n", 16, "--prompt-cache", path)
        alone = generate("-p", more, "--raw", "-n", 16)
    expect(second["cached_tokens"] > first["prompt_tokens"] - 2, f"only {second['cached_tokens']} tokens were cached")
    return f"{second['cached_tokens']} of {second['prompt_tokens']} cached, {alike(second['tokens'], alone['tokens'])}"


def check_prefix_directory(*words):
    with tempfile.TemporaryDirectory() as folder:
        lines = json.dumps({"prompt": LONG, "raw": True, "n": 16}) + "\n"
        batch = ("generate", "-m", arguments.model, "--batch", "-", "--prefix-cache-dir", folder, *words)
        first, second = (json.loads(run(*batch, stdin=lines)) for _ in range(2))
    expect(second["cached_tokens"] > 0, "the second run found nothing")
    return f"{second['cached_tokens']} of {second['prompt_tokens']} cached, {alike(second['tokens'], first['tokens'])}"


def check_batch(*words):
    prompts = [f"{i} apples and {i + 1} pears are" + " sweet" * i for i in range(6)]
    lines = "".join(json.dumps({"prompt": p, "raw": True, "n": 16, "id": i}) + "\n" for i, p in enumerate(prompts))
    made = run("generate", "-m", arguments.model, "--batch", "-", *words, stdin=lines)
    answers = {a["id"]: a for a in map(json.loads, made.splitlines())}
    expect(len(answers) == len(prompts) and not any("error" in a for a in answers.values()), made[-300:])
    alone = [generate("-p", p, "--raw", "-n", 16, *words)["tokens"] for p in prompts]
    same = sum(answers[i]["tokens"] == tokens for i, tokens in enumerate(alone))
    expect(same >= len(prompts) // 2, f"{same} of {len(prompts)} answers as alone")
    return f"{same} of {len(prompts)} answers as alone"


def check_several():
    answers = generate("-p", TEXT, "--raw", "-n", 12, "--n", 3, "--temp", "0.8", "--seed", 5)
    expect(len(answers) == 3 and len({tuple(a["tokens"]) for a in answers}) > 1, f"{len(answers)} answers")
    again = generate("-p", TEXT, "--raw", "-n", 12, "--n", 3, "--temp", "0.8", "--seed", 5)
    is_same = [a["tokens"] for a in again] == [a["tokens"] for a in answers]
    return "the same again" if is_same else "others the second time"


def check_bench():
    made = json.loads(run("bench", "-m", arguments.model, "--prompt", 512, "--decode", 64, "--repeat", 3, "--json"))
    prefill, decode = (made[f"{part}_tok_s"]["median"] for part in ("prefill", "decode"))
    return f"prefill {prefill:.0f}, decode {decode:.0f} tokens per second"


def check_interrupt():
    """Ctrl-C in the middle of an answer: the program ends soon and not by a crash."""
    command = [arguments.program, "generate", "--device", arguments.device, "-m", arguments.model]
    command += ["-p", LONG, "-n", "2000"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    expect(child.returncode in (130, -signal.SIGINT), f"exit code {child.returncode}: {errors[-200:]}")
    return f"exit code {child.returncode}"


# ---- The server


class Server:
    def __init__(self, *words):
        command = [arguments.program, "serve", "--device", arguments.device, "-m", arguments.model, "--port", "0"]
        command += map(str, words)
        self.errors = tempfile.TemporaryFile()
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def __enter__(self):
        line = self.child.stdout.readline()
        expect("http" in line, f"the server said {line!r}")
        self.address = line[line.index("http") :].split()[0].rstrip("/")
        return self

    def __exit__(self, kind, *_):
        self.child.send_signal(signal.SIGTERM)
        try:
            code = self.child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            code = "none: it hung"
        if kind is None:
            self.errors.seek(0)
            expect(code == 0, f"the server's exit code is {code}: {self.errors.read()[-300:]}")

    def post(self, path, body):
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            return urllib.request.urlopen(request, timeout=120)
        except urllib.error.HTTPError as error:
            raise Wrong(f"{path}: {error.code} {error.read().decode()[-300:]}") from error

    def complete(self, prompt, **more):
        with self.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 24, **more}) as response:
            return json.loads(response.read())


def check_server(*words):
    prompts = [f"{LONG} Now {i} and" for i in range(4)] + [f"One, two, {i}," for i in range(8)]
    with Server(*words) as server, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(server.complete, prompts))
        alone = [server.complete(p) for p in prompts]
        cached = alone[0]["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(4):  # clients that leave in the middle
            stream = server.post("/v1/completions", {"prompt": LONG, "max_tokens": 2000, "stream": True})
            stream.readline()
            stream.close()
        after = server.complete(prompts[0])
        chat = {
            "messages": [{"role": "user", "content": "Name a city and how many people live there."}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "city",
                    "schema": {
                        "type": "object",
                        "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer"}},
                        "required": ["city", "people"],
                        "additionalProperties": False,
                    },
                },
            },
            "max_tokens": 80,
        }
        with server.post("/v1/chat/completions", chat) as response:
            choice = json.loads(response.read())["choices"][0]
        embedded = json.loads(server.post("/v1/embeddings", {"input": [TEXT, "apples"]}).read())["data"]
    text = [a["choices"][0]["text"] for a in alone]
    same = sum(a["choices"][0]["text"] == b for a, b in zip(together, text))
    expect(cached > 0, "the prefix cache found nothing")
    if choice["finish_reason"] == "stop":  # a tiny model may still be at its blanks
        expect(json.loads(choice["message"]["content"])["city"] in ("Paris", "Rome"), f"no such JSON: {choice}")
    expect(all(map(math.isfinite, embedded[0]["embedding"])), "an embedding is not finite")
    expect(same >= len(prompts) // 2, f"{same} of {len(prompts)} answers as alone")
    ending = "the same" if after["choices"][0]["text"] == text[0] else "another"
    return f"{same} of {len(prompts)} answers as alone, {cached} tokens cached, {ending} answer after cancelled ones"


# ---- All of them


def all_checks():
    goldens = DATA.glob("*/expected.safetensors")
    families = sorted(p.parent.name for p in goldens if (p.parent / "model.safetensors").exists())
    checks = {}
    for name in families:
        checks[f"family {name}"] = lambda name=name: check_family(name, False)
    for name in families:
        checks[f"tf32 {name}"] = lambda name=name: check_family(name, True)
        for dtype in ("F16", "BF16"):
            checks[f"narrow {name} {dtype}"] = lambda name=name, dtype=dtype: check_narrow(name, dtype)
    with_model = {
        "goldens": check_goldens,
        "cpu": check_against_cpu,
        "prefill-chunk": lambda: check_options("--prefill-chunk", 33),
        "max-kv-size": lambda: check_options("--max-kv-size", 64),
        "max-kv-size q8": lambda: check_options("--max-kv-size", 64, "--kv", "q8"),
        "quantized-kv-start": lambda: check_options("--kv", "q8", "--quantized-kv-start", 50),
        "context-shift": lambda: check_options("--context-shift", "--context", 240),
        "draft ngram": lambda: check_draft("--draft", "ngram"),
        "draft model": lambda: check_draft("--draft", arguments.model),
        "prompt-cache": check_prompt_cache,
        "prefix-cache-dir": check_prefix_directory,
        "prefix-cache-dir q8": lambda: check_prefix_directory("--prefix-cache-format", "q8"),
        "batch": check_batch,
        "batch q8": lambda: check_batch("--kv", "q8"),
        "batch max-kv-size": lambda: check_batch("--max-kv-size", 16),
        "batch draft": lambda: check_batch("--draft", "ngram"),
        "n": check_several,
        "interrupt": check_interrupt,
        "serve": check_server,
        "serve q8": lambda: check_server("--kv", "q8"),
        "serve draft": lambda: check_server("--draft", "ngram"),
        "serve paged": lambda: check_server("--max-cache-bytes", 40_000_000),
        "bench": check_bench,
    }
    for kind in ("f32", "f16", "bf16", "q8", "q6", "q5", "q4", "q3", "q2"):
        with_model[f"kv {kind}"] = lambda kind=kind: check_kv(kind)
    if arguments.model.name != "smollm2.gguf":
        del with_model["goldens"]
    return checks | {f"{arguments.model.stem} {name}": check for name, check in with_model.items()}


def main():
    global arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build" / "cuda" / "bin" / "memoir")
    parser.add_argument("--model", type=Path, help="default: a tiny random one")
    parser.add_argument("--device", default="gpu", choices=("gpu", "cpu"))
    parser.add_argument("--only", default="", help="run only the checks whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="checks side by side")
    arguments = parser.parse_args()
    if arguments.model:
        return report()
    with tempfile.TemporaryDirectory() as folder:
        arguments.model = Path(folder) / "tiny"
        arguments.model.mkdir()
        tiny_model.write(arguments.model)
        config = json.loads((arguments.model / "config.json").read_text())
        # The same matrices cut into half as many heads, whose rows can be quantized.
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
        (arguments.model / "config.json").write_text(json.dumps(config | heads))
        return report()


def report():
    chosen = {name: check for name, check in all_checks().items() if arguments.only in name}

    def outcome(name):
        begin = time.monotonic()
        try:
            said, failed = chosen[name](), False
        except Exception as error:  # one check that breaks must not hide the others
            said, failed = f"{type(error).__name__}: {error}", True
        print(f"{'FAILED' if failed else 'ok    '} {name:34} {time.monotonic() - begin:5.1f} s  {said}", flush=True)
        return failed

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        n_failed = sum(pool.map(outcome, chosen))
    print(f"{len(chosen) - n_failed} of {len(chosen)} checks hold")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
