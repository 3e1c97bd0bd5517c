#include "memoir/model/gguf_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "memoir/model/config_defaults.h"
#include "memoir/model/layer_pattern.h"

namespace memoir::model {
namespace {

using nlohmann::json;

struct Name {
  std::string_view gguf;
  std::string_view hugging_face;
};

// Names of modules: of the model, and of those inside "blk.<i>." / "model.layers.<i>.".
constexpr std::array kTop = {Name{"token_embd", "model.embed_tokens"}, Name{"output_norm", "model.norm"},
                             Name{"output", "lm_head"}};
constexpr std::array kAttention = {Name{"attn_norm", "input_layernorm"}, Name{"attn_q", "self_attn.q_proj"},
                                   Name{"attn_k", "self_attn.k_proj"}, Name{"attn_v", "self_attn.v_proj"},
                                   Name{"attn_output", "self_attn.o_proj"}};
constexpr std::array kDense = {Name{"ffn_gate", "mlp.gate_proj"}, Name{"ffn_up", "mlp.up_proj"},
                               Name{"ffn_down", "mlp.down_proj"}};
constexpr std::array kPreNorm = {Name{"ffn_norm", "post_attention_layernorm"}};
constexpr std::array kHeadNorms = {Name{"attn_q_norm", "self_attn.q_norm"}, Name{"attn_k_norm", "self_attn.k_norm"}};
constexpr std::array kGemmaNorms = {Name{"post_attention_norm", "post_attention_layernorm"},
                                    Name{"ffn_norm", "pre_feedforward_layernorm"},
                                    Name{"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr std::array kQwenExperts = {
    Name{"ffn_gate_inp", "mlp.gate"}, Name{"ffn_gate_exps", "mlp.switch_mlp.gate_proj"},
    Name{"ffn_up_exps", "mlp.switch_mlp.up_proj"}, Name{"ffn_down_exps", "mlp.switch_mlp.down_proj"}};
constexpr std::array kGptOss = {Name{"post_attention_norm", "post_attention_layernorm"},
                                Name{"attn_sinks", "self_attn.sinks"},
                                Name{"ffn_gate_inp", "mlp.router"},
                                Name{"ffn_gate_exps", "mlp.experts.gate_proj"},
                                Name{"ffn_up_exps", "mlp.experts.up_proj"},
                                Name{"ffn_down_exps", "mlp.experts.down_proj"}};

using Names = std::span<const Name>;

struct Family {
  std::string_view model_type;
  std::array<Names, 4> names;  // of a layer's modules, some of them empty
};

constexpr std::array kFamilies = {
    Family{"llama", {kAttention, kPreNorm, kDense}},
    Family{"qwen2", {kAttention, kPreNorm, kDense}},
    Family{"qwen3", {kAttention, kPreNorm, kDense, kHeadNorms}},
    Family{"qwen3_moe", {kAttention, kPreNorm, kHeadNorms, kQwenExperts}},
    Family{"gemma3_text", {kAttention, kGemmaNorms, kDense, kHeadNorms}},
    Family{"gpt_oss", {kAttention, kGptOss}},
    Family{"cohere2", {kAttention, kDense}},
};

const Family* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(kFamilies, model_type, &Family::model_type);
  return found == kFamilies.end() ? nullptr : &*found;
}

std::string_view find_name(Names names, std::string_view gguf_name) {
  const auto found = std::ranges::find(names, gguf_name, &Name::gguf);
  return found == names.end() ? std::string_view() : found->hugging_face;
}

// ---- keys ----

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

void add_cohere2(const ModelConfig& config, json& keys) {
  copy_key(config.raw, "logit_scale", "logit_scale", keys);
  add_layer_types(config, 4, keys);
}

}  // namespace

bool has_gguf_names(std::string_view model_type) {
  return find_family(model_type) != nullptr;
}

std::optional<std::string> name_of_gguf_tensor(const std::string& gguf_name, std::string_view model_type) {
  if (gguf_name == "rope_freqs.weight") return gguf_name;  // which Hugging Face's files do not have
  const std::size_t suffix_at = gguf_name.rfind('.');
  const Family* family = find_family(model_type);
  if (suffix_at == std::string::npos || family == nullptr) return std::nullopt;
  const std::string suffix = gguf_name.substr(suffix_at);
  const std::string module = gguf_name.substr(0, suffix_at);
  if (const std::string_view top = find_name(kTop, module); !top.empty()) return std::string(top) + suffix;
  constexpr std::string_view kBlock = "blk.";
  const std::size_t dot = module.find('.', kBlock.size());
  if (!module.starts_with(kBlock) || dot == std::string::npos) return std::nullopt;
  const std::string layer = "model.layers." + module.substr(kBlock.size(), dot - kBlock.size()) + ".";
  for (const Names names : family->names) {
    const std::string_view inner = find_name(names, std::string_view(module).substr(dot + 1));
    if (inner.empty()) continue;
    // Sinks are a vector without a layer around it.
    return layer + std::string(inner) + (inner == "self_attn.sinks" && suffix == ".weight" ? "" : suffix);
  }
  return std::nullopt;
}

json family_keys_of_gguf(const ModelConfig& config) {
  json keys = config_defaults(config.model_type);
  if (config.model_type == "gemma3_text") add_gemma3(config, keys);
  if (config.model_type == "gpt_oss") add_gpt_oss(config, keys);
  if (config.model_type == "qwen3_moe") add_qwen3_moe(config, keys);
  if (config.model_type == "cohere2") add_cohere2(config, keys);
  return keys;
}

}  // namespace memoir::model
