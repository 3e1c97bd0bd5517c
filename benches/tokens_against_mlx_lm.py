#!/usr/bin/env python3
"""Tokens of memoir and of mlx-lm from the same directories, quantized by mlx-lm's convert.

    benches/tokens_against_mlx_lm.py [DIR ...] [--bits 4,8] [--dtype float16] [--tokens 30] [--threads 2]

DIR is a model's directory as Hugging Face lays it out; by default all of tests/data that have an
expected.safetensors. Each is converted in groups of 32 with --dtype for what stays dense, and continued greedily by
both, from the prompt in that file or else from one made up here. mlx-lm runs twice on what it wrote: as it is, and
in float32. Columns:

- float32: how far mlx-lm's logits of the prompt are from transformers' in that file, or where there is none from
  memoir's, before quantization. Above 2e-3 mlx-lm computes another model; some of those run once more with a
  configuration that both read alike (ALIKE).
- rounding: how far mlx-lm's logits after the prompt are, as converted, from those in float32.
- as converted, in float32: "same", or the first token that differs, and there for either side by how much its own
  token's logit is above the other's.

A difference is one of rounding if mlx-lm in float32 doesn't have it, or if the logits there are nearer to each other
than that rounding. The exit status is 1 if there are others in a model that mlx-lm computes right.

Needs what benches/compare_peers.py needs.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import compare_peers

PROGRAM = compare_peers.ROOT / "build" / "release" / "bin" / "memoir"
GROUP = 32
BOUND = 2e-3  # of the goldens: float32 implementations are nearer

# Where mlx-lm 0.32.2 computes another model: configurations of the same weights that both read alike.
ALIKE = {
    "mistral": ("no window", {"sliding_window": None}),
    "mamba2": ("one group", {"n_groups": 1, "state_size": 32}),
    "falcon_h1": ("key_multiplier 1", {"key_multiplier": 1.0}),
    "gpt_oss_mxfp4": ("no YaRN", {"rope_scaling": {"rope_type": "default"}}),
}


def write_source(model, changes, folder):
    """The model without an end token, so that nothing ends a continuation. Returns the size of its vocabulary."""
    config = json.loads((model / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        part.pop("eos_token_id", None)
        part |= {key: value for key, value in changes.items() if key in part}
    (folder / "config.json").write_text(json.dumps(config))
    for path in model.glob("model*.safetensors*"):
        (folder / path.name).symlink_to(path.resolve())
    return config.get("text_config", config)["vocab_size"]


def greedy(model, prompt, n):
    """The tokens, and the float32 logits that each was chosen from."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    tokens, rows = [], []
    while len(tokens) < n:
        step = [prompt] if not tokens else [[tokens[-1]]]
        rows.append(model(mx.array(step), cache=cache)[0, -1].astype(mx.float32))
        tokens.append(mx.argmax(rows[-1]).item())
    return tokens, rows


def run_memoir(command, folder, tokens, *options):
    words = [PROGRAM, command, "-m", folder, "--tokens", ",".join(str(t) for t in tokens), *options]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


def memoir_logits(folder, tokens, args):
    import mlx.core as mx

    with tempfile.TemporaryDirectory() as out:
        path = Path(out) / "logits.safetensors"
        run_memoir("logits", folder, tokens, "-o", path, "--threads", args.threads)
        logits = mx.load(str(path))["logits"]
        mx.eval(logits)
        return logits


def load(folder):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    mx.eval(model.parameters())
    return model


def comparison(run, own, folder, prompt, args):
    """None, or where the two part and the gaps of mlx-lm's and memoir's logits there."""
    tokens, rows = run
    at = next((i for i in range(len(own)) if own[i] != tokens[i]), None)
    if at is None:
        return None
    logits = memoir_logits(folder, prompt + own[:at], args)[-1]
    theirs = (rows[at][tokens[at]] - rows[at][own[at]]).item()
    ours = (logits[own[at]] - logits[tokens[at]]).item()
    return at, theirs, ours


def distance(folder, prompt, expected, args):
    """Between the prompt's logits of mlx-lm in float32 and the expected ones, or where there are none memoir's."""
    import mlx.core as mx

    model = load(folder)
    model.set_dtype(mx.float32)
    logits = model(mx.array([prompt]))[0]
    return mx.abs(logits - (memoir_logits(folder, prompt, args) if expected is None else expected)).max().item()


def quantized(source, folder, bits, args):
    from mlx_lm import convert

    vocabulary = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}  # convert asks for a tokenizer
    (source / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": vocabulary}))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    options = {"quantize": True, "q_bits": bits, "q_group_size": GROUP, "dtype": args.dtype}
    with contextlib.redirect_stdout(sys.stderr):  # it tells what it does
        try:
            convert(str(source), str(folder), **options)
        except ValueError as error:
            if "divisible by the quantization group" not in str(error):
                raise
            # mlx-lm wants some routers in groups of 64, for which the tiny models are too narrow
            convert(str(source), str(folder), quant_predicate=lambda path, module: True, **options)
    for path in folder.glob("tokenizer*"):
        path.unlink()


def compare(model, changes, folder, args):
    """Yields (bits, distance, rounding, difference as converted, difference in float32)."""
    import mlx.core as mx

    source = folder / "source"
    source.mkdir()
    n_vocab = write_source(model, changes, source)
    golden = mx.load(str(model / "expected.safetensors")) if (model / "expected.safetensors").exists() else {}
    prompt = golden["prompt"].tolist() if golden else compare_peers.bench_tokens(24, n_vocab)
    far = distance(source, prompt, None if changes else golden.get("logits"), args)
    for bits in args.bits:
        target = folder / f"q{bits}"
        quantized(source, target, bits, args)
        options = ["-n", args.tokens, "--temp", 0, "--json", "--threads", args.threads]
        own = json.loads(run_memoir("generate", target, prompt, *options))["tokens"]
        peer = load(target)
        half = greedy(peer, prompt, args.tokens)
        peer.set_dtype(mx.float32)
        full = greedy(peer, prompt, args.tokens)
        rounding = mx.abs(half[1][0] - full[1][0]).max().item()
        yield bits, far, rounding, *(comparison(run, own, target, prompt, args) for run in (half, full))


def float_experts():
    """MLX on a CPU multiplies dense experts in float32 alone: what a GPU does with float16, sums in float32."""
    import mlx.core as mx

    product = mx.gather_mm

    def gather_mm(a, b, *rest, **named):
        return product(a.astype(mx.float32), b.astype(mx.float32), *rest, **named).astype(a.dtype)

    mx.gather_mm = gather_mm


def verdict(far, rounding, converted, exact):
    if far > BOUND:
        return "another model"
    if converted is None and exact is None:
        return "same"
    return "rounding" if exact is None or max(exact[1:]) <= rounding else "unexplained"


def shown(difference):
    if difference is None:
        return "same"
    at, theirs, ours = difference
    return f"token {at}: mlx-lm {theirs:.1e}, memoir {ours:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="DIR", nargs="*", type=Path)
    parser.add_argument("--bits", default=[4, 8], type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if compare_peers.PEERS.exists() and Path(sys.executable).parent != compare_peers.PEERS.parent:
        os.execv(compare_peers.PEERS, [str(compare_peers.PEERS), *sys.argv])
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    float_experts()
    known = sorted(path.parent for path in (compare_peers.ROOT / "tests" / "data").glob("*/expected.safetensors"))
    runs = []
    for model in args.models or [path for path in known if (path / "model.safetensors").exists()]:
        runs.append((model, model.name, {}))
        if model.name in ALIKE:
            what, changes = ALIKE[model.name]
            runs.append((model, f"{model.name}, {what}", changes))
    print(f"{'':34}{'bits':>5}{'float32':>9}{'rounding':>10}  {'as converted':44}in float32")
    counts = dict.fromkeys(["same", "rounding", "another model", "unexplained"], 0)
    for model, title, changes in runs:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for bits, far, rounding, converted, exact in compare(model, changes, Path(folder), args):
                    line = f"{title:34}{bits:5}{far:9.1e}{rounding:10.1e}  {shown(converted):44}{shown(exact)}"
                    print(line, flush=True)
                    counts[verdict(far, rounding, converted, exact)] += 1
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # what mlx-lm raises where it lacks a model
                print(f"{title:34}mlx-lm: {type(error).__name__}: {' '.join(str(error).split())[:90]}", flush=True)
    print("\n" + ", ".join(f"{what}: {n}" for what, n in counts.items()))
    sys.exit(1 if counts["unexplained"] else 0)


if __name__ == "__main__":
    main()
