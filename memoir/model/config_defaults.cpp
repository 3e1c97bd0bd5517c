#include "memoir/model/config_defaults.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

namespace memoir::model {
namespace {

using nlohmann::json;

struct Defaults {
  std::string_view model_type;
  std::string_view keys;
};

// From transformers 5.24, models/*/configuration_*.py. Gemma's published files leave out sizes too. Llama and Mistral
// without ids of tokens: there are vocabularies of all kinds under these names.
constexpr std::array kDefaults = {
    Defaults{"llama", R"({"max_position_embeddings": 2048})"},
    Defaults{"mistral", R"({"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096})"},
    Defaults{"qwen2", R"({"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096,
                          "use_sliding_window": false, "max_window_layers": 28})"},
    Defaults{"qwen3", R"({"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
                          "sliding_window": 4096, "use_sliding_window": false, "max_window_layers": 28})"},
    Defaults{"qwen3_moe", R"({"num_key_value_heads": 4, "max_position_embeddings": 32768, "sliding_window": 4096,
                              "use_sliding_window": false, "decoder_sparse_step": 1, "moe_intermediate_size": 768,
                              "num_experts_per_tok": 8, "num_experts": 128, "norm_topk_prob": false})"},
    Defaults{"qwen3_next",
             R"({"num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768,
                 "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                 "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                 "decoder_sparse_step": 1, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
                 "num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": true, "intermediate_size": 5632,
                 "full_attention_interval": 4})"},
    Defaults{"qwen3_5_text",
             R"({"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
                 "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                 "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                 "full_attention_interval": 4})"},
    Defaults{"qwen3_5_moe_text",
             R"({"num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768,
                 "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                 "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                 "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8,
                 "num_experts": 256, "full_attention_interval": 4})"},
    Defaults{"gemma3_text", R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                                "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                                "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
                                "max_position_embeddings": 131072, "eos_token_id": 1, "bos_token_id": 2,
                                "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                                "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4})"},
    Defaults{"lfm2", R"({"num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5,
                         "eos_token_id": 2, "bos_token_id": 1, "tie_word_embeddings": true, "rope_theta": 1e6,
                         "conv_bias": false, "conv_L_cache": 3, "block_multiple_of": 256,
                         "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": true})"},
    Defaults{"mamba2", R"({"num_heads": 128, "head_dim": 64, "state_size": 128, "layer_norm_epsilon": 1e-5, "expand": 2,
                           "conv_kernel": 4, "n_groups": 8, "use_bias": false, "use_conv_bias": true,
                           "bos_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": false})"},
    Defaults{"falcon_h1",
             R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
                 "max_position_embeddings": 8192, "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto",
                 "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
                 "mamba_conv_bias": true, "mamba_proj_bias": false, "mamba_norm_before_gate": true,
                 "mamba_rms_norm": false, "projectors_bias": false})"},
    Defaults{"granitemoehybrid",
             R"({"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "embedding_multiplier": 1.0,
                 "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0,
                 "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024,
                 "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto",
                 "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false})"},
    Defaults{"olmo3", R"({"max_position_embeddings": 2048, "eos_token_id": 50279, "rms_norm_eps": 1e-5,
                          "sliding_window": 4096, "rope_theta": 5e5})"},
    Defaults{"cohere2", R"({"max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "bos_token_id": 5,
                            "eos_token_id": 255001, "tie_word_embeddings": true, "logit_scale": 0.0625,
                            "sliding_window": 4096, "sliding_window_pattern": 4})"},
    Defaults{"gpt_oss", R"({"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128, "rms_norm_eps": 1e-5,
                            "max_position_embeddings": 131072, "num_local_experts": 128, "num_experts_per_tok": 4,
                            "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": true, "rope_theta": 150000.0,
                            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                             "truncate": false, "original_max_position_embeddings": 4096}})"},
    Defaults{"llama4_text", R"({"intermediate_size_mlp": 16384, "num_key_value_heads": 8, "head_dim": 128,
                                "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "bos_token_id": 1,
                                "eos_token_id": 2, "num_experts_per_tok": 1, "num_local_experts": 16,
                                "interleave_moe_layer_step": 1, "use_qk_norm": true, "no_rope_layer_interval": 4,
                                "attention_chunk_size": 8192, "attn_temperature_tuning": true, "floor_scale": 8192,
                                "attn_scale": 0.1, "rope_theta": 5e5})"},
    Defaults{"gemma4_text",
             R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
                 "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
                 "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "eos_token_id": 1,
                 "bos_token_id": 2, "tie_word_embeddings": true, "sliding_window": 512,
                 "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                     "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                                        "rope_theta": 1e6}},
                 "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "attention_k_eq_v": false,
                 "num_kv_shared_layers": 0, "enable_moe_block": false, "use_double_wide_mlp": false})"},
    Defaults{"gemma4_unified_text",
             R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
                 "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
                 "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 262144, "eos_token_id": 1,
                 "bos_token_id": 2, "tie_word_embeddings": true, "sliding_window": 1024,
                 "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                     "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                                        "rope_theta": 1e6}},
                 "attention_k_eq_v": false, "num_kv_shared_layers": 0, "enable_moe_block": false,
                 "use_double_wide_mlp": false})"},
    Defaults{"deepseek_v3", R"({"moe_intermediate_size": 2048, "n_shared_experts": 1, "n_routed_experts": 256,
                                "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
                                "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8,
                                "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
                                "norm_topk_prob": true, "max_position_embeddings": 4096, "bos_token_id": 0,
                                "eos_token_id": 1, "rope_interleave": true, "num_nextn_predict_layers": 1})"},
};

// Another name for a key of a model type, which counts where a file has both.
struct OtherName {
  std::string_view model_type;
  const char* name;
  const char* key;
};

constexpr std::array kOtherNames = {
    OtherName{"lfm2", "block_ff_dim", "intermediate_size"},
    OtherName{"lfm2", "tie_embedding", "tie_word_embeddings"},
    OtherName{"gpt_oss", "num_experts", "num_local_experts"},
    OtherName{"deepseek_v3", "num_local_experts", "n_routed_experts"},
    OtherName{"deepseek_v3", "num_mtp_layers", "num_nextn_predict_layers"},
};

// What a text part is called by the name of the whole; also of files that have the whole's name and the text part
// alone. (A text part of another kind has a name of its own.)
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kTextParts = {{
    {"gemma3", "gemma3_text"},
    {"gemma4", "gemma4_text"},
    {"gemma4_unified", "gemma4_unified_text"},
    {"gemma4_assistant", "gemma4_text"},
    {"llama4", "llama4_text"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
    {"mistral3", "mistral"},
    {"cohere2_vision", "cohere2"},
    {"lfm2_vl", "lfm2"},
}};

bool has_value(const json* object, const std::string& key) {
  if (object == nullptr) return false;
  const auto found = object->find(key);
  return found != object->end() && !found->is_null();
}

bool is_token_or_tie(const std::string& key) {
  return key == "eos_token_id" || key == "bos_token_id" || key == "tie_word_embeddings";
}

}  // namespace

const json& config_defaults(std::string_view model_type) {
  static const std::map<std::string_view, json> kParsed = [] {
    std::map<std::string_view, json> parsed;
    for (const Defaults& defaults : kDefaults) parsed[defaults.model_type] = json::parse(defaults.keys);
    return parsed;
  }();
  static const json kNone = json::object();
  const auto found = kParsed.find(model_type);
  return found == kParsed.end() ? kNone : found->second;
}

std::string text_part_type(const std::string& model_type) {
  const auto found = std::ranges::find(kTextParts, model_type, [](const auto& part) { return part.first; });
  return found == kTextParts.end() ? model_type : std::string(found->second);
}

json with_defaults(std::string_view model_type, const json& text, const json* outer) {
  json merged = text;
  for (const OtherName& other : kOtherNames) {
    if (other.model_type == model_type && has_value(&text, other.name)) merged[other.key] = text[other.name];
  }
  for (const auto& [key, value] : config_defaults(model_type).items()) {
    const bool is_rope = key == "rope_scaling" || key == "rope_parameters";
    if (is_rope ? has_value(&text, "rope_scaling") || has_value(&text, "rope_parameters") : merged.contains(key))
      continue;
    if (is_token_or_tie(key) && has_value(outer, key)) continue;
    merged[key] = value;
  }
  return merged;
}

}  // namespace memoir::model
