#!/usr/bin/env python3
"""memoir, llama.cpp and mlx-lm side by side on the same weights: prefill, decode, load time, peak memory.

    benches/compare_peers.py [--model models/smollm2.gguf] [--threads 2] [--prompt 512] [--decode 64] [--rounds 5]
                             [--peers llama.cpp,mlx-lm] [--kv auto] [--mlx-model DIR [--mlx-bits 4|8]]

Every measurement is a process of its own, the three in turn, round after round; medians are compared, because the
speed of a shared machine drifts. Needs python with llama-cpp-python, mlx-lm, mlx and gguf: `make peers` makes
.venv-peers with them, and this script runs itself with it.

- memoir: `memoir bench`, its own timings. Keys and values as --kv says; by itself memoir keeps float32, llama.cpp float16.
- llama.cpp: through llama-cpp-python, flash attention on, batches of 512; logits of the last token only.
- mlx-lm: the GGUF's tensors put into an MLX directory, codes untouched, scales as float32: its CPU product of float16
  is more than ten times slower still. For an architecture other than Llama's: --mlx-model, a directory of the same
  model, in float32 or quantized in groups of 32 to --mlx-bits. One round, since a prefill takes a minute.
Peak memory is the process's largest resident size; the python peers' includes the interpreter (some 60 MiB).
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"


def bench_tokens(n_tokens, n_vocab):
    return [(i * 2654435761 % 2**32) % n_vocab for i in range(1, n_tokens + 1)]


def report(load_s, prefill_s, decode_s, args):
    print(
        json.dumps(
            {
                "prefill_tok_s": args.prompt / prefill_s,
                "decode_tok_s": args.decode / decode_s,
                "load_s": load_s,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


def run_llama_cpp(args):
    start = time.perf_counter()
    from llama_cpp import Llama

    imported = time.perf_counter()
    llm = Llama(
        model_path=args.model,
        n_ctx=args.prompt + args.decode + 8,
        n_batch=512,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        flash_attn=True,
        verbose=False,
    )
    load_s = time.perf_counter() - imported
    tokens = bench_tokens(args.prompt + args.decode, llm.n_vocab())
    llm.eval(tokens[:8])  # warm-up
    llm.reset()
    llm._ctx.kv_cache_clear() if hasattr(llm._ctx, "kv_cache_clear") else llm._ctx.memory_clear(True)
    start = time.perf_counter()
    llm.eval(tokens[: args.prompt])
    prefilled = time.perf_counter()
    for token in tokens[args.prompt :]:
        llm.eval([token])
    report(load_s, prefilled - start, time.perf_counter() - prefilled, args)


def mlx_names():
    inner = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

    def rename(name):
        module, suffix = name.rsplit(".", 1)
        if module in top:
            return f"{top[module]}.{suffix}"
        _, layer, part = module.split(".")
        return f"model.layers.{layer}.{inner[part]}.{suffix}"

    return rename


def write_mlx_directory(gguf_path, folder):
    """The same codes, scales and biases as an mlx-lm model of the Llama architecture."""
    import mlx.core as mx

    tensors, meta = mx.load(gguf_path, return_metadata=True)
    value = lambda key: meta[f"llama.{key}"].item()
    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    rename = mlx_names()

    def in_order(name, a):
        n = heads if ".attn_q." in name else kv_heads if ".attn_k." in name else 0
        if not n:
            return a
        rows = a.shape[0]
        return a.reshape(n, rows // n // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)

    weights = {}
    bits = None
    for name, a in tensors.items():
        if name == "rope_freqs.weight":
            continue
        a = in_order(name, a)
        weights[rename(name)] = a if a.dtype == mx.uint32 else a.astype(mx.float32)
        if name.endswith("ffn_up.scales"):
            bits = tensors[name.replace("scales", "weight")].shape[1] * 32 // (a.shape[1] * 32)
    config = {
        "model_type": "llama",
        "hidden_size": value("embedding_length"),
        "num_hidden_layers": value("block_count"),
        "intermediate_size": value("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "max_position_embeddings": value("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if bits:
        config["quantization"] = {"group_size": 32, "bits": bits}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))


def load_mlx_model(args, folder):
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model

    if not args.mlx_model:
        write_mlx_directory(args.model, folder)
        start = time.perf_counter()
        return load_model(folder)[0], time.perf_counter() - start
    start = time.perf_counter()
    model, config = load_model(Path(args.mlx_model))
    model.set_dtype(mx.float32)
    if args.mlx_bits:
        model, _ = quantize_model(model, config, group_size=32, bits=args.mlx_bits)
    mx.eval(model.parameters())
    return model, time.perf_counter() - start


def run_mlx_lm(args):
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        model, load_s = load_mlx_model(args, Path(folder))
        n_vocab = getattr(model.args, "vocab_size", None) or model.args.text_config["vocab_size"]
        tokens = bench_tokens(args.prompt + args.decode, n_vocab)
        cache = make_prompt_cache(model)
        start = time.perf_counter()
        mx.eval(model(mx.array([tokens[: args.prompt]]), cache=cache)[:, -1])
        prefilled = time.perf_counter()
        for token in tokens[args.prompt :]:
            mx.eval(model(mx.array([[token]]), cache=cache))
        report(load_s, prefilled - start, time.perf_counter() - prefilled, args)


def measure(engine, args):
    if engine == "memoir":
        program = ROOT / "build" / "release" / "bin" / "memoir"
        command = [program, "bench", "-m", args.model, "--repeat", "1", "--json", "--kv", args.kv]
    else:
        command = [sys.executable, __file__, "--engine", engine, "--model", args.model]
        if args.mlx_model:
            command += ["--mlx-model", args.mlx_model, "--mlx-bits", args.mlx_bits]
    command += ["--prompt", args.prompt, "--decode", args.decode, "--threads", args.threads]
    env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "OPENBLAS_NUM_THREADS": str(args.threads)}
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, env=env, check=True)
    result = json.loads(done.stdout.splitlines()[-1] if engine != "memoir" else done.stdout)  # mlx-lm prints, too
    for key in ("prefill_tok_s", "decode_tok_s"):
        if isinstance(result[key], dict):
            result[key] = result[key]["median"]
    return result


def print_table(results, args):
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    print(f"{Path(args.model).name}, {cpu}, {args.threads} threads, prompt {args.prompt}, decode {args.decode}")
    print("medians; in brackets memoir's ratio to it, above 1 is memoir faster or smaller\n")
    rows = [
        ("prefill tok/s", "prefill_tok_s", 1, True),
        ("decode tok/s", "decode_tok_s", 1, True),
        ("load s", "load_s", 1, False),
        ("peak memory MiB", "peak_rss_bytes", 2**20, False),
    ]
    print(f"{'':18}" + "".join(f"{engine:>22}" for engine in results))
    for label, key, unit, more_is_better in rows:
        medians = {engine: statistics.median(r[key] for r in runs) / unit for engine, runs in results.items()}
        line = f"{label:18}"
        for engine, value in medians.items():
            ratio = medians["memoir"] / value if more_is_better else value / medians["memoir"]
            line += f"{value:13.2f}" + (" " * 9 if engine == "memoir" else f" ({ratio:5.2f})".ljust(9))
        print(line)
    print("\nrounds: " + ", ".join(f"{engine} {len(runs)}" for engine, runs in results.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv", default="auto", help="memoir's option")
    parser.add_argument("--mlx-model", metavar="DIR", help="what mlx-lm runs instead of the GGUF file's tensors")
    parser.add_argument("--mlx-bits", type=int, default=0, choices=[0, 4, 8], help="0: float32")
    parser.add_argument("--peers", default="llama.cpp,mlx-lm", type=lambda text: text.split(","))
    parser.add_argument("--engine", choices=["llama.cpp", "mlx-lm"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine == "llama.cpp":
        return run_llama_cpp(args)
    if args.engine == "mlx-lm":
        return run_mlx_lm(args)
    if PEERS.exists() and Path(sys.executable).parent != PEERS.parent:
        os.execv(PEERS, [str(PEERS), *sys.argv])
    results = {engine: [] for engine in ["memoir", *args.peers]}
    for round_number in range(args.rounds):
        for engine in results:
            if engine == "mlx-lm" and round_number > 0:
                continue
            results[engine].append(measure(engine, args))
    print_table(results, args)


if __name__ == "__main__":
    main()
