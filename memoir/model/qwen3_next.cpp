// Qwen3-Next and Qwen3.5, with experts and without: a gated delta rule in most layers, attention through a gate in the
// others, norms that multiply by 1 + w.
//
// Weights under "mtp." predict further tokens (mtp_head.h); the model itself passes them over.

#include <mlx/ops.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/delta_mixer.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

// What is the same for all layers.
struct Plan {
  std::vector<std::string> pattern;
  bool weighs_by_sum;       // of the chosen experts' scores
  bool has_centered_norms;  // files of mlx-lm hold 1 + w
};

std::vector<std::string> read_pattern(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const auto interval = fields.integer("full_attention_interval", 1, kMaxLayers).value_or(4);
  return layer_pattern(config, {kLinearAttention, kFullAttention},
                       [&](int i) { return (i + 1) % interval == 0 ? kFullAttention : kLinearAttention; });
}

// mlx-lm adds the 1 where it brings convolutions into MLX's order; to Qwen3-Next's norms also where it stacks experts,
// should there be no convolution to tell by.
bool holds_centered_norms(const Weights& weights, const ModelConfig& config) {
  for (int i = 0; i < config.n_layers; ++i) {
    if (weights.is_mlx_convolution(layer_module(i) + ".linear_attn.conv1d.weight")) return false;
    const bool has_stack = weights.has(layer_module(i) + ".mlp.switch_mlp.gate_proj.weight");
    if (has_stack && config.model_type == "qwen3_next") return false;
  }
  return true;
}

kernels::Norm read_norm(Weights& weights, const std::string& module, int size, const ModelConfig& config,
                        const Plan& plan) {
  return plan.has_centered_norms ? read_centered_norm(weights, module, size, config.rms_norm_eps)
                                 : read_rms_norm(weights, module, size, config.rms_norm_eps);
}

// Of q_proj, which has for each head the rows of its query, then those of its gate.
kernels::Linear half_of_heads(const kernels::Weight& stored, const std::optional<mx::array>& bias, int n_heads,
                              int head_dim, int half) {
  std::vector<int> rows;
  for (int head = 0; head < n_heads; ++head) {
    for (int i = 0; i < head_dim; ++i) rows.push_back((2 * head + half) * head_dim + i);
  }
  kernels::Linear linear{kernels::prepared(kernels::chosen_rows(stored, rows))};
  if (bias) {
    const mx::array indices(rows.data(), {static_cast<int>(rows.size())}, mx::int32);
    linear.bias = typed_vector(mx::take(*bias, indices, 0));
  }
  return linear;
}

SelfAttention read_attention(Weights& weights, const std::string& module, const ModelConfig& config, const Plan& plan) {
  const int n_heads = config.n_heads;
  const int head_dim = config.head_dim;
  const int hidden = config.hidden_size;
  const bool has_bias = config.attention_bias;
  const kernels::Weight both = weights.stored_matrix(module + ".q_proj", {2 * n_heads * head_dim, hidden});
  std::optional<mx::array> bias;
  if (has_bias) bias = weights.vector(module + ".q_proj.bias", 2 * n_heads * head_dim);
  const int kv_size = config.n_kv_heads * head_dim;
  SelfAttention attention{
      {half_of_heads(both, bias, n_heads, head_dim, 0),
       read_linear(weights, module + ".k_proj", kv_size, hidden, has_bias),
       read_linear(weights, module + ".v_proj", kv_size, hidden, has_bias), n_heads, config.n_kv_heads, head_dim},
      read_linear(weights, module + ".o_proj", hidden, n_heads * head_dim, has_bias),
      {1 / std::sqrt(static_cast<float>(head_dim))}};
  attention.gates = half_of_heads(both, bias, n_heads, head_dim, 1);
  attention.projection.query_norm = read_norm(weights, module + ".q_norm", head_dim, config, plan);
  attention.projection.key_norm = read_norm(weights, module + ".k_norm", head_dim, config, plan);
  attention.rope = 0;
  return attention;
}

Mixture read_mixture(Weights& weights, const std::string& module, const ModelConfig& config, const Plan& plan) {
  const ConfigFields fields = family_fields(config);
  const ExpertCounts counts = read_expert_counts(config);
  kernels::Routing routing;
  routing.n_chosen = counts.n_chosen;
  routing.is_normalized = plan.weighs_by_sum;
  const ExpertsShape shape{counts.n, config.hidden_size, fields.size("moe_intermediate_size", kMaxIntermediateSize)};
  const int shared = fields.size("shared_expert_intermediate_size", kMaxIntermediateSize);
  return {read_linear(weights, module + ".gate", counts.n, config.hidden_size, false), routing,
          read_experts(weights, module, module + ".switch_mlp", shape, read_gate(config)),
          read_gated_mlp(weights, module + ".shared_expert", config, shared),
          read_linear(weights, module + ".shared_expert_gate", 1, config.hidden_size, false)};
}

// What one layer is.
struct LayerKind {
  bool is_linear;
  bool has_experts;
};

class Qwen3NextLayer : public DecoderLayer {
 public:
  Qwen3NextLayer(Weights& weights, const ModelConfig& config, const Plan& plan, const std::string& module,
                 LayerKind kind)
      : mixer_norm_(read_norm(weights, module + ".input_layernorm", config.hidden_size, config, plan)),
        mlp_norm_(read_norm(weights, module + ".post_attention_layernorm", config.hidden_size, config, plan)) {
    if (kind.is_linear) {
      delta_.emplace(weights, module + ".linear_attn", read_delta_sizes(config), config.rms_norm_eps);
    } else {
      attention_ = read_attention(weights, module + ".self_attn", config, plan);
    }
    if (kind.has_experts) {
      mixture_ = read_mixture(weights, module + ".mlp", config, plan);
    } else {
      mlp_ = read_gated_mlp(weights, module + ".mlp", config, config.intermediate_size);
    }
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return delta_ ? delta_->make_cache() : attention_->make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array y =
        delta_ ? (*delta_)(x, mixer_norm_, step, index, x) : attend(x, mixer_norm_, *attention_, step, index, x);
    return mlp_ ? kernels::gated_mlp(y, mlp_norm_, *mlp_, y) : mix(kernels::norm(y, mlp_norm_), *mixture_, y);
  }

  std::size_t size_bytes() const override {
    return mixer_norm_.weight.nbytes() + mlp_norm_.weight.nbytes() +
           (delta_ ? delta_->size_bytes() : attention_->size_bytes()) +
           (mlp_ ? mlp_->size_bytes() : mixture_->size_bytes());
  }

 private:
  kernels::Norm mixer_norm_;
  std::optional<DeltaMixer> delta_;
  std::optional<SelfAttention> attention_;  // instead of it
  kernels::Norm mlp_norm_;
  std::optional<kernels::GatedMlp> mlp_;
  std::optional<Mixture> mixture_;  // instead of it
};

Plan read_plan(const ModelConfig& config, const Weights& weights) {
  if (read_gate(config) != kernels::Gate::kSilu) {  // of the convolutions too
    throw UnsupportedError(config.path, "hidden_act", "'" + config.hidden_act + "' is not supported, expected silu");
  }
  Plan plan{read_pattern(config), true, true};
  plan.has_centered_norms = holds_centered_norms(weights, config);
  if (config.model_type == "qwen3_next") plan.weighs_by_sum = family_fields(config).required_boolean("norm_topk_prob");
  return plan;
}

std::unique_ptr<Model> make_hybrid(const ModelConfig& config, Weights& weights, const std::vector<bool>& has_experts) {
  const Plan plan = read_plan(config, weights);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const LayerKind kind{plan.pattern[at] == kLinearAttention, has_experts[at]};
    layers.push_back(std::make_unique<Qwen3NextLayer>(weights, config, plan, layer_module(i), kind));
  }
  for (const char* prefix : {"mtp.", "model.mtp."}) weights.pass_over(prefix);
  return std::make_unique<Decoder>(
      config, read_ends(weights, config, read_norm(weights, "model.norm", config.hidden_size, config, plan)),
      std::vector{read_rope(weights, config)}, std::move(layers));
}

std::vector<bool> in_all_layers(const ModelConfig& config, bool has_experts) {
  return std::vector<bool>(static_cast<std::size_t>(config.n_layers), has_experts);
}

}  // namespace

std::unique_ptr<Model> make_qwen3_next(const ModelConfig& config, Weights& weights) {
  const ConfigFields fields = family_fields(config);
  const bool has_none = fields.integer("num_experts", 0, kMaxExperts) == 0;
  return make_hybrid(config, weights, has_none ? in_all_layers(config, false) : layers_with_experts(config));
}

std::unique_ptr<Model> make_qwen3_5(const ModelConfig& config, Weights& weights) {
  return make_hybrid(config, weights, in_all_layers(config, false));
}

std::unique_ptr<Model> make_qwen3_5_moe(const ModelConfig& config, Weights& weights) {
  return make_hybrid(config, weights, in_all_layers(config, true));
}

namespace {

// Published heads have one, which is used again for each further token. What several would do nobody says: vLLM takes
// one after the other in turn, llama.cpp refuses them.
void check_has_one_layer(const ModelConfig& config, const Weights& weights) {
  const std::string expected = " layers, expected one, which is used again for each further token";
  const ConfigFields family = family_fields(config);
  const ConfigFields all(config.raw, config.path);  // of a GGUF file
  const auto check = [&](const ConfigFields& fields, const char* key) {
    const std::optional<std::int64_t> n = fields.integer(key, 0, kMaxLayers);
    if (n && *n > 1) fields.refuse(key, "the head has " + std::to_string(*n) + expected);
  };
  check(family, "mtp_num_hidden_layers");
  check(family, "num_nextn_predict_layers");
  check(all, "nextn_predict_layers");
  if (weights.has_any("mtp.layers.0.") && weights.has_any("mtp.layers.1.")) {
    family.refuse("mtp_num_hidden_layers", "the head has several" + expected);
  }
}

bool has_any_of(const Weights& weights, const std::string& module, std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [&](const char* name) { return weights.has_any(module + name); });
}

// As its tensors say, whichever of them are there, so that what is missing is named; without any, as in the model.
bool head_has_experts(const ModelConfig& config, const Weights& weights) {
  const std::string mlp = "mtp.layers.0.mlp.";
  if (has_any_of(weights, mlp, {"gate.", "experts.", "switch_mlp.", "shared_expert"})) return true;
  if (has_any_of(weights, mlp, {"gate_proj.", "up_proj.", "down_proj."})) return false;
  if (config.model_type != "qwen3_next") return has_experts_alone(config.model_type);
  return family_fields(config).integer("num_experts", 0, kMaxExperts).value_or(0) > 0;
}

}  // namespace

std::unique_ptr<MtpHead> make_qwen_mtp_head(const ModelConfig& config, Weights& weights) {
  const Plan plan = read_plan(config, weights);
  for (const char* prefix : {"model.", "lm_head."}) weights.pass_over(prefix);
  const auto norm = [&](const char* name) {
    return read_norm(weights, std::string("mtp.") + name, config.hidden_size, config, plan);
  };
  check_has_one_layer(config, weights);
  const LayerKind kind{false, head_has_experts(config, weights)};
  MtpParts parts{norm("pre_fc_norm_embedding"),
                 norm("pre_fc_norm_hidden"),
                 read_linear(weights, "mtp.fc", config.hidden_size, 2 * config.hidden_size, false),
                 std::make_unique<Qwen3NextLayer>(weights, config, plan, "mtp.layers.0", kind),
                 norm("norm"),
                 read_rope(weights, config)};
  weights.finish();
  return std::make_unique<MtpHead>(std::move(parts));
}

}  // namespace memoir::model
