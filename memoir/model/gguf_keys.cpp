#include "memoir/model/gguf_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "memoir/model/config_defaults.h"
#include "memoir/model/layer_pattern.h"

namespace memoir::model {
namespace {

using nlohmann::json;

// Copies the value under one of GGUF's keys to one of Hugging Face's.
void copy_key(const json& raw, const char* gguf_key, const char* key, json& keys) {
  if (raw.contains(gguf_key)) keys[key] = raw[gguf_key];
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
  copy_key(config.raw, "expert_count", "num_local_experts", keys);
  copy_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  add_layer_types(config, 2, keys);
}

// In llama.cpp all layers have experts, and the weights of those chosen sum to 1.
void add_qwen3_moe(const ModelConfig& config, json& keys) {
  copy_key(config.raw, "expert_count", "num_experts", keys);
  copy_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  copy_key(config.raw, "expert_feed_forward_length", "moe_intermediate_size", keys);
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
    keys.erase(key);  // the default, for a size that the file must give
    copy_key(config.raw, gguf_key, key, keys);
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
  keys.erase("mamba_d_ssm");
  copy_key(config.raw, "ssm.inner_size", "mamba_d_ssm", keys);
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
  copy_key(config.raw, "expert_count", "num_experts", keys);
  copy_key(config.raw, "expert_used_count", "num_experts_per_tok", keys);
  copy_key(config.raw, "expert_feed_forward_length", "moe_intermediate_size", keys);
  copy_key(config.raw, "expert_shared_feed_forward_length", "shared_expert_intermediate_size", keys);
  keys["norm_topk_prob"] = true;
}

}  // namespace

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
  if (config.model_type == "lfm2") add_lfm2(config, keys);
  if (config.model_type == "qwen3_next" || config.model_type.starts_with("qwen3_5")) add_qwen3_next(config, keys);
  return keys;
}

}  // namespace memoir::model
