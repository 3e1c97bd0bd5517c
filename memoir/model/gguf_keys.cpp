#include "memoir/model/gguf_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/model/config_defaults.h"
#include "memoir/model/layer_pattern.h"

namespace memoir::model {
namespace {

using nlohmann::json;

// Copies the value under one of GGUF's keys to one of Hugging Face's.
void copy_key(const json& raw, const char* gguf_key, const char* key, json& keys) {
  if (raw.contains(gguf_key)) keys[key] = raw[gguf_key];
}

// The same for one that every such file has: without it no default stands in.
void take_key(const json& raw, const char* gguf_key, const char* key, json& keys) {
  keys.erase(key);
  copy_key(raw, gguf_key, key, keys);
}

// layer_types: those that attention.sliding_window_pattern names, else all but every period-th.
void add_layer_types(const ModelConfig& config, int period, json& keys) {
  const json pattern = config.raw.value("attention.sliding_window_pattern", json());
  if (pattern.is_number_integer() && pattern > 0) period = pattern.get<int>();
  json types = json::array();
  for (int i = 0; i < config.n_layers; ++i) {
    bool is_sliding = (i + 1) % period != 0;
    const auto at = static_cast<std::size_t>(i);
    if (pattern.is_array() && at < pattern.size()) is_sliding = pattern[at] == 1;
    types.push_back(is_sliding && config.sliding_window ? kSlidingAttention : kFullAttention);
  }
  keys["layer_types"] = std::move(types);
}

void add_gemma3(const ModelConfig& config, json& keys) {
  constexpr int kLayersOf27B = 62;  // the one size that is scaled by another number
  keys["query_pre_attn_scalar"] =
      config.n_layers == kLayersOf27B ? config.hidden_size / config.n_heads : config.head_dim;
  copy_key(config.raw, "rope.freq_base_swa", "rope_local_base_freq", keys);
  copy_key(config.raw, "final_logit_softcapping", "final_logit_softcapping", keys);
  add_layer_types(config, 6, keys);
}

void add_gpt_oss(const ModelConfig& config, json& keys) {
  take_key(config.raw, "expert_count", "num_local_experts", keys);
  take_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  add_layer_types(config, 2, keys);
}

// In llama.cpp all layers have experts, and the weights of those chosen sum to 1.
void add_qwen3_moe(const ModelConfig& config, json& keys) {
  take_key(config.raw, "expert_count", "num_experts", keys);
  take_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  take_key(config.raw, "expert_feed_forward_length", "moe_intermediate_size", keys);
  keys["norm_topk_prob"] = true;
}

// In layers that slide heads turn without scaling.
void add_olmo3(const ModelConfig& config, json& keys) {
  keys["rope_theta"] = config.rope.theta;
  copy_key(config.raw, "rope.freq_base_swa", "rope_theta", keys);
  add_layer_types(config, 4, keys);
}

void add_cohere2(const ModelConfig& config, json& keys) {
  copy_key(config.raw, "logit_scale", "logit_scale", keys);
  add_layer_types(config, 4, keys);
}

std::optional<std::int64_t> integer(const json& raw, const char* key) {
  const auto found = raw.find(key);
  return found != raw.end() && found->is_number_integer() ? std::optional(found->get<std::int64_t>()) : std::nullopt;
}

// What a mixer's sizes are called, in Hugging Face's configuration of a family.
struct MixerKeys {
  const char* n_heads;
  const char* head_dim;
  const char* n_groups;
  const char* state;
  const char* width;
};

// The inner width is shared out among the heads.
void add_mixer(const ModelConfig& config, const MixerKeys& names, json& keys) {
  for (const auto& [gguf_key, key] :
       {std::pair("ssm.time_step_rank", names.n_heads), std::pair("ssm.group_count", names.n_groups),
        std::pair("ssm.state_size", names.state), std::pair("ssm.conv_kernel", names.width)}) {
    take_key(config.raw, gguf_key, key, keys);
  }
  const auto inner = integer(config.raw, "ssm.inner_size");
  const auto n_heads = integer(config.raw, "ssm.time_step_rank");
  if (inner && n_heads && *n_heads > 0) keys[names.head_dim] = *inner / *n_heads;
}

constexpr MixerKeys kMambaKeys = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"};

// By how much the inner width is larger than the model's, such that rounding down the product gives that width.
void add_expansion(const ModelConfig& config, const char* key, json& keys) {
  const auto inner = integer(config.raw, "ssm.inner_size");
  if (!inner || *inner < 1) return;
  keys[key] = std::nextafter(static_cast<double>(*inner) / config.hidden_size, std::numeric_limits<double>::max());
}

void add_mamba2(const ModelConfig& config, const GgufFile& file, json& keys) {
  add_mixer(config, {"num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"}, keys);
  add_expansion(config, "expand", keys);
  keys["use_bias"] = has_tensor_like(file, ".ssm_in.bias");
  keys["use_conv_bias"] = has_tensor_like(file, ".ssm_conv1d.bias");
}

// The converter has put the multipliers into the weights.
void add_falcon_h1(const ModelConfig& config, const GgufFile& file, json& keys) {
  add_mixer(config, kMambaKeys, keys);
  take_key(config.raw, "ssm.inner_size", "mamba_d_ssm", keys);
  keys["mamba_proj_bias"] = has_tensor_like(file, ".ssm_in.bias");
  keys["projectors_bias"] = has_tensor_like(file, ".ssm_out.bias");
  keys["mamba_conv_bias"] = has_tensor_like(file, ".ssm_conv1d.bias");
  keys["mamba_rms_norm"] = has_tensor_like(file, ".ssm_norm.weight");
  keys["mamba_norm_before_gate"] = false;
}

// Layers without key heads have no attention.
void add_types_by_heads(const ModelConfig& config, std::string_view without, json& keys) {
  const json heads = config.raw.value("attention.head_count_kv", json());
  json types = json::array();
  for (int i = 0; i < config.n_layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool has_none = heads.is_array() ? at < heads.size() && heads[at] == 0 : heads == 0;
    types.push_back(has_none ? without : kFullAttention);
  }
  keys["layer_types"] = std::move(types);
}

void add_granite(const ModelConfig& config, const GgufFile& file, json& keys) {
  add_mixer(config, kMambaKeys, keys);
  add_expansion(config, "mamba_expand", keys);
  add_types_by_heads(config, kLinearAttention, keys);
  keys["mamba_proj_bias"] = has_tensor_like(file, ".ssm_in.bias");
  keys["mamba_conv_bias"] = has_tensor_like(file, ".ssm_conv1d.bias");
  keys["attention_multiplier"] = 1 / std::sqrt(static_cast<double>(config.head_dim));
  for (const auto& [gguf_key, key] :
       {std::pair("attention.scale", "attention_multiplier"), std::pair("embedding_scale", "embedding_multiplier"),
        std::pair("residual_scale", "residual_multiplier"), std::pair("logit_scale", "logits_scaling")}) {
    const json value = config.raw.value(gguf_key, json());
    if (value != 0) copy_key(config.raw, gguf_key, key, keys);  // 0: as if it were not there
  }
  if (config.raw.value("rope.scaling.finetuned", json(true)) == true) keys["position_embedding_type"] = "rope";
  keys["num_local_experts"] = 0;
  copy_key(config.raw, "expert_count", "num_local_experts", keys);
  copy_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  const bool has_experts = keys["num_local_experts"] != 0;
  keys["shared_intermediate_size"] = config.intermediate_size;
  if (has_experts) copy_key(config.raw, "expert_shared_feed_forward_length", "shared_intermediate_size", keys);
}

void add_lfm2(const ModelConfig& config, json& keys) {
  add_types_by_heads(config, "conv", keys);
  copy_key(config.raw, "shortconv.l_cache", "conv_L_cache", keys);
  keys["block_auto_adjust_ff_dim"] = false;  // the converter has
}

// In llama.cpp the weights of the experts chosen sum to 1.
void add_qwen3_next(const ModelConfig& config, json& keys) {
  add_mixer(config,
            {"linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim",
             "linear_conv_kernel_dim"},
            keys);
  copy_key(config.raw, "full_attention_interval", "full_attention_interval", keys);
  if (const json recurrent = config.raw.value("attention.recurrent_layers", json()); recurrent.is_array()) {
    json types = json::array();
    for (std::size_t i = 0; i < recurrent.size() && i < static_cast<std::size_t>(config.n_layers); ++i) {
      types.push_back(recurrent[i] == true || recurrent[i] == 1 ? kLinearAttention : kFullAttention);
    }
    keys["layer_types"] = std::move(types);
  }
  keys[std::string(kTiledValueHeads)] = config.model_type != "qwen3_next";
  if (config.model_type == "qwen3_5_text") return;
  take_key(config.raw, "expert_count", "num_experts", keys);
  take_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  take_key(config.raw, "expert_feed_forward_length", "moe_intermediate_size", keys);
  copy_key(config.raw, "expert_shared_feed_forward_length", "shared_expert_intermediate_size", keys);
  keys["norm_topk_prob"] = true;
}

[[noreturn]] void refuse(const ModelConfig& config, const std::string& key, const std::string& reason) {
  throw UnsupportedError(config.path, key, reason);
}

// Groups of experts have only files of late 2025 on: without them any expert may be chosen, as in llama.cpp.
void add_deepseek(const ModelConfig& config, json& keys) {
  constexpr int kSigmoid = 2;
  const std::string prefix = "deepseek2.";
  if (config.raw.value("expert_gating_func", json()) != kSigmoid) {
    refuse(config, prefix + "expert_gating_func", "is not 2, of experts scored by a sigmoid: DeepSeek-V2 can't be run");
  }
  if (config.raw.contains("attention.temperature_scale")) {
    refuse(config, prefix + "attention.temperature_scale", "is there: DeepSeek-V3's queries don't grow");
  }
  keys.update({{"q_lora_rank", nullptr},
               {"n_group", 1},
               {"topk_group", 1},
               {"first_k_dense_replace", 0},
               {"norm_topk_prob", false},
               {"routed_scaling_factor", 1.0},
               {"num_nextn_predict_layers", 0}});
  for (const auto& [gguf_key, key] :
       {std::pair("attention.kv_lora_rank", "kv_lora_rank"), std::pair("rope.dimension_count", "qk_rope_head_dim"),
        std::pair("attention.value_length", "v_head_dim"), std::pair("expert_count", "n_routed_experts"),
        std::pair("expert_used_count", "num_experts_per_tok"), std::pair("expert_shared_count", "n_shared_experts"),
        std::pair("expert_feed_forward_length", "moe_intermediate_size")}) {
    take_key(config.raw, gguf_key, key, keys);
  }
  for (const auto& [gguf_key, key] :
       {std::pair("attention.q_lora_rank", "q_lora_rank"), std::pair("attention.value_length_mla", "v_head_dim"),
        std::pair("expert_group_count", "n_group"), std::pair("expert_group_used_count", "topk_group"),
        std::pair("expert_weights_scale", "routed_scaling_factor"), std::pair("expert_weights_norm", "norm_topk_prob"),
        std::pair("leading_dense_block_count", "first_k_dense_replace")}) {
    copy_key(config.raw, gguf_key, key, keys);
  }
  if (const auto turned = integer(keys, "qk_rope_head_dim")) keys["qk_nope_head_dim"] = config.head_dim - *turned;
}

// Chunks, the layers without rope, and how queries grow there are the same in all of llama.cpp's Llama 4 models; those
// of 128 experts have no norms on heads.
void add_llama4(const ModelConfig& config, json& keys) {
  constexpr int kExpertsWithoutNorms = 128;
  copy_key(config.raw, "feed_forward_length", "intermediate_size_mlp", keys);
  take_key(config.raw, "interleave_moe_layer_step", "interleave_moe_layer_step", keys);
  take_key(config.raw, "expert_count", "num_local_experts", keys);
  take_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  keys["use_qk_norm"] = config.raw.value("expert_count", json()) != kExpertsWithoutNorms;
  if (config.raw.contains("attention.sliding_window")) {
    refuse(config, "llama4.attention.sliding_window", "is there: only models with chunks can be run");
  }
}

// What `raw` has for a layer under a key: one number for all, or a list.
json of_layer(const json& raw, const char* key, int layer) {
  const auto found = raw.find(key);
  if (found == raw.end() || !found->is_array()) return found == raw.end() ? json() : *found;
  const auto at = static_cast<std::size_t>(layer);
  return at < found->size() ? (*found)[at] : json();
}

// The last layers, which read other layers' keys and values, may have a feed-forward of twice the width.
void add_gemma4_widths(const ModelConfig& config, json& keys) {
  copy_key(config.raw, "attention.shared_kv_layers", "num_kv_shared_layers", keys);
  const auto n_shared = integer(keys, "num_kv_shared_layers").value_or(0);
  const json last = of_layer(config.raw, "feed_forward_length", config.n_layers - 1);
  const bool is_doubled = n_shared > 0 && last == 2 * std::int64_t{config.intermediate_size};
  keys["use_double_wide_mlp"] = is_doubled;
  for (int i = 0; i < config.n_layers; ++i) {
    const bool is_wide = is_doubled && i >= config.n_layers - n_shared;
    if (of_layer(config.raw, "feed_forward_length", i) != (is_wide ? 2 : 1) * std::int64_t{config.intermediate_size}) {
      refuse(config, "gemma4.feed_forward_length", "differs in other layers than the last that share keys and values");
    }
  }
}

void add_gemma4(const ModelConfig& config, const GgufFile& file, json& keys) {
  add_layer_types(config, 6, keys);
  add_gemma4_widths(config, keys);
  json sizes = json::object();
  for (int i = 0; i < config.n_layers; ++i) {
    const bool is_sliding = keys["layer_types"][static_cast<std::size_t>(i)] == kSlidingAttention;
    sizes[std::to_string(i)] = {
        {"head_dim", config.raw.value(is_sliding ? "attention.key_length_swa" : "attention.key_length", json())},
        {"num_key_value_heads", of_layer(config.raw, "attention.head_count_kv", i)}};
    const std::string block = "blk." + std::to_string(i);
    if (!is_sliding && has_tensor(file, block + ".attn_k.weight") && !has_tensor(file, block + ".attn_v.weight")) {
      keys["attention_k_eq_v"] = true;
    }
  }
  keys["per_layer_config"] = std::move(sizes);
  keys["hidden_size_per_layer_input"] = 0;
  copy_key(config.raw, "embedding_length_per_layer_input", "hidden_size_per_layer_input", keys);
  keys["vocab_size_per_layer_input"] = config.vocab_size;
  copy_key(config.raw, "final_logit_softcapping", "final_logit_softcapping", keys);
  const bool has_experts = has_tensor_like(file, ".ffn_gate_inp.weight");
  keys["enable_moe_block"] = has_experts;
  if (!has_experts) return;
  take_key(config.raw, "expert_count", "num_experts", keys);
  take_key(config.raw, "expert_used_count", "top_k_experts", keys);
  take_key(config.raw, "expert_feed_forward_length", "moe_intermediate_size", keys);
}

}  // namespace

bool has_tensor(const GgufFile& file, std::string_view name) {
  return std::ranges::find(file.tensors(), name, &GgufTensor::name) != file.tensors().end();
}

bool has_tensor_like(const GgufFile& file, std::string_view ending) {
  return std::ranges::any_of(file.tensors(), [&](const GgufTensor& tensor) { return tensor.name.ends_with(ending); });
}

json family_keys_of_gguf(const ModelConfig& config, const GgufFile& file) {
  json keys = config_defaults(config.model_type);
  if (config.model_type == "gemma3_text") add_gemma3(config, keys);
  if (config.model_type == "gpt_oss") add_gpt_oss(config, keys);
  if (config.model_type == "qwen3_moe") add_qwen3_moe(config, keys);
  if (config.model_type == "cohere2") add_cohere2(config, keys);
  if (config.model_type == "olmo3") add_olmo3(config, keys);
  if (config.model_type == "mamba2") add_mamba2(config, file, keys);
  if (config.model_type == "falcon_h1") add_falcon_h1(config, file, keys);
  if (config.model_type == "granitemoehybrid") add_granite(config, file, keys);
  if (config.model_type == "deepseek_v3") add_deepseek(config, keys);
  if (config.model_type == "llama4_text") add_llama4(config, keys);
  if (config.model_type == "gemma4_text") add_gemma4(config, file, keys);
  if (config.model_type == "lfm2") add_lfm2(config, keys);
  if (config.model_type == "qwen3_next" || config.model_type.starts_with("qwen3_5")) add_qwen3_next(config, keys);
  return keys;
}

}  // namespace memoir::model
