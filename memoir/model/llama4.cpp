// Llama 4, its text part: chunked attention with rope and plain head norms in most layers; in the others no positions,
// but queries that grow with them; experts in some layers, whose inputs are weighed, beside one that all tokens go
// through.

#include <mlx/ops.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "memoir/kernels/linear.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

// How queries of layers without rope grow: by 1 + scale * log(1 + floor((position + 1) / floor)), arXiv:2501.19399.
struct Temperature {
  float scale;
  float floor;
};

// What the layers are, from the configuration.
struct Llama4Keys {
  std::vector<std::string> pattern;
  std::vector<bool> has_rope;
  std::vector<bool> has_experts;
  std::optional<int> chunk;
  bool has_head_norms;
  std::optional<Temperature> temperature;
  int dense_size;  // of a feed-forward without experts
};

std::vector<bool> layers_with_rope(const ConfigFields& fields, int n_layers) {
  constexpr const char* kKey = "no_rope_layers";  // which has 1 for layers with
  const auto listed = fields.integers(kKey, 0, 1).value_or(std::vector<std::int64_t>());
  std::vector<bool> has_rope;
  if (listed.empty()) {
    const int interval = fields.size("no_rope_layer_interval", kMaxLayers);
    for (int i = 0; i < n_layers; ++i) has_rope.push_back((i + 1) % interval != 0);
    return has_rope;
  }
  if (listed.size() < static_cast<std::size_t>(n_layers)) {
    fields.fail(kKey, "has " + std::to_string(listed.size()) + " numbers for " + std::to_string(n_layers) + " layers");
  }
  for (int i = 0; i < n_layers; ++i) has_rope.push_back(listed[static_cast<std::size_t>(i)] != 0);
  return has_rope;
}

std::vector<bool> layers_with_experts(const ConfigFields& fields, int n_layers) {
  const auto listed = fields.integers("moe_layers", 0, kMaxLayers);
  const int step = listed ? 1 : fields.size("interleave_moe_layer_step", kMaxLayers);
  std::vector<bool> has_experts;
  for (int i = 0; i < n_layers; ++i) {
    has_experts.push_back(listed ? std::ranges::find(*listed, i) != listed->end() : (i + 1) % step == 0);
  }
  return has_experts;
}

// The first files have a number for it, of which only 0 means no.
bool has_temperature(const ConfigFields& fields) {
  constexpr const char* kKey = "attn_temperature_tuning";
  const nlohmann::json* value = fields.find(kKey);
  return value && value->is_number() ? fields.required_number(kKey) != 0 : fields.required_boolean(kKey);
}

std::optional<Temperature> read_temperature(const ConfigFields& fields) {
  if (!has_temperature(fields)) return std::nullopt;
  return Temperature{static_cast<float>(fields.required_number("attn_scale")),
                     static_cast<float>(fields.size("floor_scale", kMaxPosition))};
}

Llama4Keys read_keys(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  Llama4Keys keys;
  keys.has_rope = layers_with_rope(fields, config.n_layers);
  keys.has_experts = layers_with_experts(fields, config.n_layers);
  if (const auto chunk = fields.integer("attention_chunk_size", 1, kMaxPosition)) keys.chunk = static_cast<int>(*chunk);
  keys.pattern = layer_pattern(config, {kFullAttention, kChunkedAttention}, [&](int i) {
    return keys.has_rope[static_cast<std::size_t>(i)] && keys.chunk ? kChunkedAttention : kFullAttention;
  });
  keys.has_head_norms = fields.required_boolean("use_qk_norm");
  keys.temperature = read_temperature(fields);
  keys.dense_size = fields.size("intermediate_size_mlp", kMaxIntermediateSize);
  return keys;
}

// `module`.experts.gate_up_proj [n, hidden, 2 * intermediate], gates then ups, as published; or stacked.
kernels::Experts read_llama4_experts(Weights& weights, const std::string& module, const ExpertsShape& shape,
                                     kernels::Gate gate) {
  const std::string fused = module + ".experts.gate_up_proj";
  if (weights.has(module + ".experts.gate_proj.weight")) {
    return read_experts(weights, module, module + ".experts", shape, gate);
  }
  const mx::array both = weights.tensor(fused, {shape.n, shape.hidden, 2 * shape.intermediate});
  const mx::array down = weights.tensor(module + ".experts.down_proj", {shape.n, shape.intermediate, shape.hidden});
  kernels::Experts experts{transposed_stack(both, 0, shape.intermediate),
                           transposed_stack(both, shape.intermediate, 2 * shape.intermediate),
                           transposed_stack(down, 0, shape.hidden)};
  experts.gate = gate;
  return experts;
}

Mixture read_mixture(Weights& weights, const ModelConfig& config, const std::string& module) {
  const ExpertCounts counts = read_expert_counts(config);
  const ExpertsShape shape{counts.n, config.hidden_size, config.intermediate_size};
  kernels::Routing routing;
  routing.score = kernels::Routing::Score::kSigmoid;
  routing.n_chosen = counts.n_chosen;
  Mixture mixture{read_linear(weights, module + ".router", counts.n, config.hidden_size, false), routing,
                  read_llama4_experts(weights, module, shape, read_gate(config)),
                  read_gated_mlp(weights, module + ".shared_expert", config, config.intermediate_size)};
  mixture.experts.weighs_inputs = true;
  return mixture;
}

class Llama4Layer : public DecoderLayer {
 public:
  Llama4Layer(Weights& weights, const ModelConfig& config, const Llama4Keys& keys, int index)
      : attention_norm_(read_norm(weights, config, index, ".input_layernorm")),
        attention_(read_self_attention(weights, layer_module(index) + ".self_attn", config.hidden_size,
                                       attention_layout(config))),
        mlp_norm_(read_norm(weights, config, index, ".post_attention_layernorm")) {
    const auto at = static_cast<std::size_t>(index);
    const std::string module = layer_module(index) + ".feed_forward";
    if (keys.has_experts[at]) {
      mixture_ = read_mixture(weights, config, module);
    } else {
      mlp_ = read_gated_mlp(weights, module, config, keys.dense_size);
    }
    if (keys.pattern[at] == kChunkedAttention) attention_.options.chunk = keys.chunk;
    if (keys.has_rope[at]) {
      attention_.rope = 0;
      if (keys.has_head_norms) head_norm_ = plain_norm(config.head_dim, config.rms_norm_eps);
    } else {
      temperature_ = keys.temperature;
    }
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return attention_.make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array y = attend(x, step, index);
    return mlp_ ? kernels::gated_mlp(y, mlp_norm_, *mlp_, y) : mix(kernels::norm(y, mlp_norm_), *mixture_, y);
  }

  std::size_t size_bytes() const override {
    return 2 * attention_norm_.weight.nbytes() + attention_.size_bytes() +
           (mlp_ ? mlp_->size_bytes() : mixture_->size_bytes());
  }

  std::optional<KeyPositions> key_positions() const override { return KeyPositions{attention_.rope}; }

 private:
  static kernels::Norm read_norm(Weights& weights, const ModelConfig& config, int index, const char* name) {
    return read_rms_norm(weights, layer_module(index) + name, config.hidden_size, config.rms_norm_eps);
  }

  mx::array attend(const mx::array& x, const Step& step, std::size_t index) const {
    const std::optional<kernels::Turns> turns =
        attention_.rope ? std::optional(step.turns.at(*attention_.rope)) : std::nullopt;
    kernels::Heads heads = kernels::project_heads(x, attention_norm_, attention_.projection, turns);
    if (head_norm_) {
      heads.queries = kernels::norm(heads.queries, *head_norm_);
      heads.keys = kernels::norm(heads.keys, *head_norm_);
    }
    if (temperature_)
      heads.queries = mx::multiply(heads.queries, query_factors(step.positions(), heads.queries.dtype()));
    const Histories histories = update(step, index, heads.keys, heads.values);
    return kernels::linear(kernels::attention(heads.queries, histories, attention_.options), attention_.output, x);
  }

  // [T, 1]
  mx::array query_factors(const std::vector<int>& positions, mx::Dtype dtype) const {
    std::vector<float> factors;
    for (const int position : positions) {
      const float step = std::floor((static_cast<float>(position) + 1) / temperature_->floor);
      factors.push_back(std::log1p(step) * temperature_->scale + 1);
    }
    return mx::astype(mx::array(factors.data(), {static_cast<int>(factors.size()), 1}, mx::float32), dtype);
  }

  kernels::Norm attention_norm_;
  SelfAttention attention_;
  kernels::Norm mlp_norm_;
  std::optional<kernels::Norm> head_norm_;  // of queries and keys that have turned
  std::optional<Temperature> temperature_;
  std::optional<kernels::GatedMlp> mlp_;
  std::optional<Mixture> mixture_;  // instead of mlp_
};

}  // namespace

std::unique_ptr<Model> make_llama4(const ModelConfig& config, Weights& weights) {
  const Llama4Keys keys = read_keys(config);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    layers.push_back(std::make_unique<Llama4Layer>(weights, config, keys, i));
  }
  kernels::Rope rope = read_rope(weights, config);
  rope.traditional = true;
  return std::make_unique<Decoder>(
      config, read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
      std::vector{std::move(rope)}, std::move(layers));
}

}  // namespace memoir::model
