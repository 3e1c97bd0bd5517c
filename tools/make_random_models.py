#!/usr/bin/env python3
"""Makes random models of 120 to 140 million parameters to measure speed with, one for each kind of layer.

    tools/make_random_models.py DIR [--converter llama.cpp/convert_hf_to_gguf.py] [--converter-python PYTHON]
                                [--kinds window,delta,mamba,moe] [--types F16,Q8_0,Q4_0] [--seed 1]

    window  OLMo 3: three layers in four see 512 tokens
    delta   Qwen3.5: gated delta rule in three layers of four; delta-alone: in all
    mamba   Mamba 2, the sizes of the published one of 130 million
    moe     Qwen3-MoE: 16 experts, 4 for each token

DIR gets for each kind a directory as Hugging Face lays them out (KIND, weights as float16) and, with a converter, a GGUF
file for each type (KIND-TYPE.gguf): the first by llama.cpp's converter, the others by its quantizer. The converter is in the source
distribution of llama-cpp-python (pip download --no-binary :all: --no-deps llama-cpp-python) under vendor/llama.cpp;
the python that runs it needs torch and transformers, this one numpy, safetensors, gguf and llama-cpp-python, as
.venv-peers has them (`make peers`). The tokenizer is SmolLM2's, out of models/smollm2.gguf.
"""

import argparse
import ctypes
import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
N_VOCAB = 49152
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # llama.cpp's numbers


class Draw:
    """Tensors of a model, drawn in the order in which they are asked for."""

    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)
        self.tensors = {}

    def matrix(self, name, *shape):
        values = self.random.standard_normal(shape, dtype=numpy.float32) / numpy.sqrt(shape[-1])
        self.tensors[name] = values.astype(numpy.float16)

    def vector(self, name, n, low, high):
        self.tensors[name] = self.random.uniform(low, high, n).astype(numpy.float32)

    def norm(self, name, n, neutral=1.0):
        self.vector(name, n, neutral - 0.1, neutral + 0.1)

    def mlp(self, module, hidden, inner):
        self.matrix(f"{module}.gate_proj.weight", inner, hidden)
        self.matrix(f"{module}.up_proj.weight", inner, hidden)
        self.matrix(f"{module}.down_proj.weight", hidden, inner)

    def attention(self, module, hidden, queries, rows):
        self.matrix(f"{module}.q_proj.weight", queries, hidden)
        self.matrix(f"{module}.k_proj.weight", rows, hidden)
        self.matrix(f"{module}.v_proj.weight", rows, hidden)


def window_model(draw):
    hidden, inner, heads, kv_heads, size, layers = 640, 1792, 10, 5, 64, 15
    draw.matrix("model.embed_tokens.weight", N_VOCAB, hidden)
    for i in range(layers):
        layer = f"model.layers.{i}"
        draw.attention(f"{layer}.self_attn", hidden, heads * size, kv_heads * size)
        draw.matrix(f"{layer}.self_attn.o_proj.weight", hidden, heads * size)
        draw.norm(f"{layer}.self_attn.q_norm.weight", heads * size)
        draw.norm(f"{layer}.self_attn.k_norm.weight", kv_heads * size)
        draw.norm(f"{layer}.post_attention_layernorm.weight", hidden)
        draw.norm(f"{layer}.post_feedforward_layernorm.weight", hidden)
        draw.mlp(f"{layer}.mlp", hidden, inner)
    draw.norm("model.norm.weight", hidden)
    draw.matrix("lm_head.weight", N_VOCAB, hidden)
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(layers)],
        "sliding_window": 512,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }


def delta_model(draw, interval=4):
    hidden, inner, layers = 640, 1792, 16
    heads, kv_heads, size = 8, 2, 128
    key_heads, value_heads, delta_size, width = 4, 8, 128, 4
    keys, values = key_heads * delta_size, value_heads * delta_size
    draw.matrix("model.language_model.embed_tokens.weight", N_VOCAB, hidden)
    for i in range(layers):
        layer = f"model.language_model.layers.{i}"
        draw.norm(f"{layer}.input_layernorm.weight", hidden, 0)
        draw.norm(f"{layer}.post_attention_layernorm.weight", hidden, 0)
        draw.mlp(f"{layer}.mlp", hidden, inner)
        if (i + 1) % interval == 0:
            draw.attention(f"{layer}.self_attn", hidden, 2 * heads * size, kv_heads * size)
            draw.matrix(f"{layer}.self_attn.o_proj.weight", hidden, heads * size)
            draw.norm(f"{layer}.self_attn.q_norm.weight", size, 0)
            draw.norm(f"{layer}.self_attn.k_norm.weight", size, 0)
            continue
        mixer = f"{layer}.linear_attn"
        draw.matrix(f"{mixer}.in_proj_qkv.weight", 2 * keys + values, hidden)
        draw.matrix(f"{mixer}.in_proj_z.weight", values, hidden)
        draw.matrix(f"{mixer}.in_proj_b.weight", value_heads, hidden)
        draw.matrix(f"{mixer}.in_proj_a.weight", value_heads, hidden)
        draw.matrix(f"{mixer}.conv1d.weight", 2 * keys + values, 1, width)
        draw.vector(f"{mixer}.dt_bias", value_heads, -2, 0)
        draw.vector(f"{mixer}.A_log", value_heads, -3, 0.4)
        draw.norm(f"{mixer}.norm.weight", delta_size)
        draw.matrix(f"{mixer}.out_proj.weight", hidden, values)
    draw.norm("model.language_model.norm.weight", hidden, 0)
    kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]
    text = {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "layer_types": kinds,
        "full_attention_interval": interval,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": delta_size,
        "linear_value_head_dim": delta_size,
        "linear_conv_kernel_dim": width,
        "attn_output_gate": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "vocab_size": N_VOCAB,
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": True,
    }


def mamba_model(draw):
    hidden, layers, size, state, width = 768, 24, 64, 128, 4
    inner = 2 * hidden
    heads, channels = inner // size, inner + 2 * state
    draw.matrix("backbone.embeddings.weight", N_VOCAB, hidden)
    for i in range(layers):
        layer = f"backbone.layers.{i}"
        draw.norm(f"{layer}.norm.weight", hidden)
        draw.matrix(f"{layer}.mixer.in_proj.weight", inner + channels + heads, hidden)
        draw.matrix(f"{layer}.mixer.conv1d.weight", channels, 1, width)
        draw.vector(f"{layer}.mixer.conv1d.bias", channels, -0.1, 0.1)
        draw.vector(f"{layer}.mixer.dt_bias", heads, -4, -1)
        draw.vector(f"{layer}.mixer.A_log", heads, 0, 2.7)
        draw.vector(f"{layer}.mixer.D", heads, 0.5, 1.5)
        draw.norm(f"{layer}.mixer.norm.weight", inner)
        draw.matrix(f"{layer}.mixer.out_proj.weight", hidden, inner)
    draw.norm("backbone.norm_f.weight", hidden)
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_heads": heads,
        "head_dim": size,
        "state_size": state,
        "conv_kernel": width,
        "n_groups": 1,
        "expand": 2,
        "chunk_size": 256,
        "time_step_rank": hidden // 16,
        "time_step_limit": [0.0, 1000.0],  # no step comes near it; a JSON reader need not know infinity
        "time_step_min": 0.001,
        "time_step_max": 0.1,
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "rms_norm": True,
        "norm_before_gate": False,
        "residual_in_fp32": True,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
    }


def moe_model(draw):
    hidden, inner, layers, experts, chosen = 512, 384, 10, 16, 4
    heads, kv_heads, size = 8, 4, 64
    draw.matrix("model.embed_tokens.weight", N_VOCAB, hidden)
    for i in range(layers):
        layer = f"model.layers.{i}"
        draw.norm(f"{layer}.input_layernorm.weight", hidden)
        draw.norm(f"{layer}.post_attention_layernorm.weight", hidden)
        draw.attention(f"{layer}.self_attn", hidden, heads * size, kv_heads * size)
        draw.matrix(f"{layer}.self_attn.o_proj.weight", hidden, heads * size)
        draw.norm(f"{layer}.self_attn.q_norm.weight", size)
        draw.norm(f"{layer}.self_attn.k_norm.weight", size)
        draw.matrix(f"{layer}.mlp.gate.weight", experts, hidden)
        for expert in range(experts):
            draw.mlp(f"{layer}.mlp.experts.{expert}", hidden, inner)
    draw.norm("model.norm.weight", hidden)
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "intermediate_size": 4 * inner,
        "moe_intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    }


def delta_alone_model(draw):
    return delta_model(draw, interval=1000)  # none of the layers has attention


MODELS = {"window": window_model, "delta": delta_model, "mamba": mamba_model, "moe": moe_model, "delta-alone": delta_alone_model}


def tokenizer_of(path):
    """tokenizer.json of a GGUF file with SmolLM2's kind of tokenizer: digits one by one, then bytes."""
    fields = gguf.GGUFReader(path).fields
    value = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    tokens = value("tokens")
    special = [i for i, kind in enumerate(value("token_type")) if kind == gguf.TokenType.CONTROL]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in value("merges")],
        },
    }


def write_directory(folder, kind, tokenizer, template, seed):
    folder.mkdir(parents=True, exist_ok=True)
    draw = Draw(seed)
    config = MODELS[kind](draw)
    config |= {"vocab_size": N_VOCAB, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16"}
    save_file(draw.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | special))
    return sum(tensor.size for tensor in draw.tensors.values())


# The name of the pretokenizer is given: transformers takes Qwen's for every model of that family, whatever the
# tokenizer's files say, and the converter would not know what comes out.
CONVERT = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path[:0] = [os.path.dirname(sys.argv[0]), os.path.join(os.path.dirname(sys.argv[0]), "gguf-py")]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "smollm"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def convert(args, source, target):
    command = [args.converter_python, "-c", CONVERT, Path(args.converter).resolve(), source]
    command += ["--outtype", "f16", "--outfile", target]
    if source.name.startswith("delta"):
        command.append("--no-mtp")  # there is no head for further tokens
    subprocess.run([str(word) for word in command], check=True)


def quantize(source, target, file_type):
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = FILE_TYPES[file_type]
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options)) != 0:
        sys.exit(f"llama.cpp could not write {target}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: text.split(",")
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--converter", help="llama.cpp's convert_hf_to_gguf.py; without: no GGUF files")
    parser.add_argument("--converter-python", default=sys.executable)
    parser.add_argument("--kinds", default=["window", "delta", "mamba", "moe"], type=words)
    parser.add_argument("--types", default=["F16", "Q8_0", "Q4_0"], type=words)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", default=str(ROOT / "models" / "smollm2.gguf"), help="a GGUF file")
    args = parser.parse_args()
    unknown = [*(set(args.kinds) - set(MODELS)), *(set(args.types) - set(FILE_TYPES))]
    if unknown:
        parser.error("unknown: " + ", ".join(unknown))
    tokenizer = tokenizer_of(args.tokenizer)
    template = gguf.GGUFReader(args.tokenizer).fields["tokenizer.chat_template"].contents()
    for kind in args.kinds:
        n_parameters = write_directory(args.folder / kind, kind, tokenizer, template, args.seed)
        print(f"{kind}: {n_parameters / 1e6:.0f} million parameters")
        if not args.converter:
            continue
        half = args.folder / f"{kind}-F16.gguf"
        convert(args, args.folder / kind, half)
        for file_type in args.types:
            if file_type != "F16":
                quantize(half, args.folder / f"{kind}-{file_type}.gguf", file_type)


if __name__ == "__main__":
    main()
