// Qwen2 (arXiv:2407.10671), Qwen3 and Qwen3-MoE (arXiv:2505.09388): Llama's blocks with biases on queries, keys and
// values (2) or norms on the heads of queries and keys (3), windows in the upper layers, experts in some.

#include <utility>
#include <vector>

#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace memoir::model {
namespace {

// What differs between the three.
struct Traits {
  bool has_qkv_bias;
  bool has_output_bias;
  bool has_head_norms;
  std::vector<std::string> pattern;  // of attention
  std::vector<bool> has_experts;     // of each layer
};

SelfAttention read_attention(Weights& weights, const ModelConfig& config, const Traits& traits, int index) {
  const std::string module = layer_module(index) + ".self_attn";
  AttentionLayout layout = attention_layout(config);
  layout.has_qkv_bias = traits.has_qkv_bias;
  layout.has_output_bias = traits.has_output_bias;
  SelfAttention attention = read_self_attention(weights, module, config.hidden_size, layout);
  if (traits.has_head_norms) {
    attention.projection.query_norm = read_rms_norm(weights, module + ".q_norm", config.head_dim, config.rms_norm_eps);
    attention.projection.key_norm = read_rms_norm(weights, module + ".k_norm", config.head_dim, config.rms_norm_eps);
  }
  if (traits.pattern[static_cast<std::size_t>(index)] == kSlidingAttention) {
    attention.options.window = config.sliding_window;
  }
  attention.rope = 0;
  return attention;
}

Mixture read_mixture(Weights& weights, const ModelConfig& config, const std::string& module) {
  const ConfigFields fields = family_fields(config);
  const ExpertCounts counts = read_expert_counts(config);
  kernels::Routing routing;
  routing.n_chosen = counts.n_chosen;
  routing.is_normalized = fields.required_boolean("norm_topk_prob");
  const ExpertsShape shape{counts.n, config.hidden_size, fields.size("moe_intermediate_size", kMaxIntermediateSize)};
  return {read_linear(weights, module + ".gate", counts.n, config.hidden_size, false), routing,
          read_experts(weights, module, module + ".switch_mlp", shape, read_gate(config))};
}

std::unique_ptr<DecoderLayer> read_layer(Weights& weights, const ModelConfig& config, const Traits& traits, int index) {
  const std::string module = layer_module(index);
  const auto norm = [&](const char* name) {
    return read_rms_norm(weights, module + name, config.hidden_size, config.rms_norm_eps);
  };
  kernels::Norm attention_norm = norm(".input_layernorm");
  SelfAttention attention = read_attention(weights, config, traits, index);
  kernels::Norm mlp_norm = norm(".post_attention_layernorm");
  if (traits.has_experts[static_cast<std::size_t>(index)]) {
    return std::make_unique<PreNormLayer>(std::move(attention_norm), std::move(attention), std::move(mlp_norm),
                                          read_mixture(weights, config, module + ".mlp"));
  }
  return std::make_unique<PreNormLayer>(std::move(attention_norm), std::move(attention), std::move(mlp_norm),
                                        read_gated_mlp(weights, module + ".mlp", config, config.intermediate_size));
}

std::unique_ptr<Model> make_qwen(const ModelConfig& config, Weights& weights, const Traits& traits) {
  read_gate(config);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) layers.push_back(read_layer(weights, config, traits, i));
  return std::make_unique<Decoder>(
      config, read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
      std::vector{read_rope(weights, config)}, std::move(layers));
}

// The window, where it is used, holds from layer max_window_layers on.
std::vector<std::string> upper_layers_slide(const ModelConfig& config) {
  const auto first = family_fields(config).integer("max_window_layers", 0, kMaxLayers).value_or(0);
  return layer_pattern(config, {kFullAttention, kSlidingAttention},
                       [&](int i) { return config.sliding_window && i >= first ? kSlidingAttention : kFullAttention; });
}

std::vector<bool> no_experts(const ModelConfig& config) {
  return std::vector<bool>(static_cast<std::size_t>(config.n_layers));
}

}  // namespace

std::unique_ptr<Model> make_qwen2(const ModelConfig& config, Weights& weights) {
  return make_qwen(config, weights, {true, false, false, upper_layers_slide(config), no_experts(config)});
}

std::unique_ptr<Model> make_qwen3(const ModelConfig& config, Weights& weights) {
  const bool bias = config.attention_bias;
  return make_qwen(config, weights, {bias, bias, true, upper_layers_slide(config), no_experts(config)});
}

std::unique_ptr<Model> make_qwen3_moe(const ModelConfig& config, Weights& weights) {
  const bool bias = config.attention_bias;
  const std::string type(config.sliding_window ? kSlidingAttention : kFullAttention);
  const std::vector<std::string> pattern(static_cast<std::size_t>(config.n_layers), type);
  return make_qwen(config, weights, {bias, bias, true, pattern, layers_with_experts(config)});
}

}  // namespace memoir::model
