#!/usr/bin/env python3
"""What transformers makes of configurations that leave keys out: defaults.json, cases of what a file gives and what
its configuration class understands.

    python make.py > defaults.json

Made with transformers 5.24.0; nothing of torch is needed.
"""
import json
import sys

from transformers import CONFIG_MAPPING

SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 12, "num_attention_heads": 16,
         "vocab_size": 256100}
FAMILIES = ["cohere2", "deepseek_v3", "falcon_h1", "gemma3_text", "gemma4_text", "gemma4_unified_text", "gpt_oss",
            "granitemoehybrid", "lfm2", "llama", "llama4_text", "mamba2", "mistral", "olmo3", "qwen2", "qwen3",
            "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next"]
WHOLES = ["cohere2_vision", "gemma3", "gemma4", "gemma4_unified", "lfm2_vl", "llama4", "mistral3", "qwen3_5",
          "qwen3_5_moe"]
# Sizes whose defaults hang together with those above.
MORE = {"deepseek_v3": {"num_key_value_heads": 16}, "falcon_h1": {"mamba_d_ssm": 1024}, "mamba2": {"hidden_size": 4096},
        "qwen2": {"num_key_value_heads": 16}, "qwen3": {"num_key_value_heads": 16},
        "granitemoehybrid": {"mamba_n_heads": 16, "mamba_d_head": 12}}
ROPES = {
    "theta": {"rope_theta": 123456.0},
    "linear": {"rope_theta": 123456.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "older_type": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "parameters": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 123456.0}},
    "parameters_without_theta": {"rope_theta": 123456.0, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
}
KEYED = {
    "keyed": {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 123456.0},
                                  "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0}}},
    "keyed_without_theta": {"rope_theta": 123456.0,
                            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0},
                                                "sliding_attention": {"rope_type": "default"}}},
    "keyed_with_null": {"rope_theta": 123456.0,
                        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0},
                                            "sliding_attention": None}},
    "local": {"rope_theta": 123456.0, "rope_local_base_freq": 7000.0,
              "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
}
NOT_OF_THE_MODEL = {"transformers_version", "architectures", "output_hidden_states", "return_dict", "dtype",
                    "chunk_size_feed_forward", "is_encoder_decoder", "id2label", "label2id", "problem_type",
                    "_name_or_path", "output_attentions", "initializer_range", "use_cache", "pad_token_id",
                    "attention_dropout", "output_router_logits", "router_aux_loss_coef", "time_step_limit"}


def understood(given):
    config = CONFIG_MAPPING[given["model_type"]](**{k: v for k, v in json.loads(json.dumps(given)).items()
                                                    if k != "model_type"})
    whole = json.loads(json.dumps(config.to_dict()))
    text = whole.get("text_config", whole)
    return {key: value for key, value in text.items() if key not in NOT_OF_THE_MODEL}


def cases():
    for family in FAMILIES:
        base = {"model_type": family, **SIZES, **MORE.get(family, {})}
        yield family, base
        if family in ("gemma4_text", "gemma4_unified_text", "mamba2"):
            continue  # ropes in one spelling, or none
        keyed = family in ("gemma3_text", "olmo3")
        for name, rope in ROPES.items():
            if not keyed or name in ("theta", "linear"):
                yield family + "_" + name, {**base, **rope}
        for name, rope in KEYED.items() if keyed else ():
            # Of OLMo 3's layers transformers gives a rope_theta beside rope_parameters to the full ones alone.
            if family == "gemma3_text" or name == "keyed":
                yield family + "_" + name, {**base, **rope}
    for whole in WHOLES:
        # A text part without a type.
        yield whole, {"model_type": whole, "text_config": dict(SIZES)}
    yield "lfm2_older_names", {"model_type": "lfm2", **SIZES, "block_ff_dim": 200, "tie_embedding": False}
    yield "deepseek_v3_other_names", {"model_type": "deepseek_v3", **SIZES, **MORE["deepseek_v3"], "num_local_experts": 32,
                                      "num_mtp_layers": 0}
    yield "gpt_oss_other_name", {"model_type": "gpt_oss", **SIZES, "num_experts": 32}
    yield "gemma3_text_pattern", {"model_type": "gemma3_text", **SIZES, "sliding_window_pattern": 4}
    yield "cohere2_pattern", {"model_type": "cohere2", **SIZES, "sliding_window_pattern": 3}
    yield "qwen2_window", {"model_type": "qwen2", **SIZES, **MORE["qwen2"], "use_sliding_window": True, "max_window_layers": 5}
    yield "qwen3_5_text_interval", {"model_type": "qwen3_5_text", **SIZES, "full_attention_interval": 3}
    yield "qwen3_next_interval", {"model_type": "qwen3_next", **SIZES, "full_attention_interval": 3}


json.dump({name: {"given": given, "understood": understood(given)} for name, given in cases()}, sys.stdout, indent=0)
print()
