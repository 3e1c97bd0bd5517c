#include "memoir/model/gemma4_layers.h"

#include <mlx/ops.h>

#include <algorithm>
#include <map>
#include <utility>

#include "memoir/kernels/linear.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr int kPeriod = 6;

std::vector<std::string> read_pattern(const ModelConfig& config) {
  std::vector<std::string> pattern = sliding_pattern(config, kPeriod);
  pattern.back() = kFullAttention;  // whatever the file says, as in transformers
  return pattern;
}

// Sizes that differ in some layers, in the newer spelling: an object for each such layer's number.
void read_overrides(const ModelConfig& config, const nlohmann::json& overrides, std::vector<Gemma4LayerKeys>& layers) {
  const std::string key = "per_layer_config";
  const ConfigFields fields = family_fields(config);
  if (!overrides.is_object()) fields.fail(key, "is not an object");
  for (const auto& [index, values] : overrides.items()) {
    const std::string name = key + "." + index;
    const bool is_number =
        !index.empty() && index.size() < 6 && std::ranges::all_of(index, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number || std::stoul(index) >= layers.size()) fields.fail(name, "is no layer");
    if (!values.is_object()) fields.fail(name, "is not an object");
    for (const auto& [what, value] : values.items()) {
      if (what != "head_dim" && what != "num_key_value_heads")
        fields.refuse(name + "." + what, "can't differ by layer");
    }
    const ConfigFields layer(values, config.path, name + ".");
    Gemma4LayerKeys& keys = layers[std::stoul(index)];
    if (const auto dim = layer.integer("head_dim", 1, kMaxHeadDim)) keys.head_dim = static_cast<int>(*dim);
    if (const auto n = layer.integer("num_key_value_heads", 1, kMaxHeads)) keys.n_kv_heads = static_cast<int>(*n);
  }
}

// The same in the older spelling, for all layers that see everything.
void read_global_sizes(const ModelConfig& config, bool keys_are_values, std::vector<Gemma4LayerKeys>& layers) {
  const ConfigFields fields = family_fields(config);
  const auto head_dim = fields.integer("global_head_dim", 1, kMaxHeadDim);
  const auto n_kv_heads = fields.integer("num_global_key_value_heads", 1, kMaxHeads);
  for (Gemma4LayerKeys& keys : layers) {
    if (keys.is_sliding) continue;
    if (head_dim) keys.head_dim = static_cast<int>(*head_dim);
    if (n_kv_heads && keys_are_values) keys.n_kv_heads = static_cast<int>(*n_kv_heads);
  }
}

void check_heads_of(const ModelConfig& config, const Gemma4LayerKeys& keys) {
  ModelConfig layer;
  layer.path = config.path;
  layer.n_heads = config.n_heads;
  layer.n_kv_heads = keys.n_kv_heads;
  layer.head_dim = keys.head_dim;
  check_heads(layer, {"num_attention_heads", "num_key_value_heads", "head_dim", "partial_rotary_factor"});
}

kernels::Norm read_norm(Weights& weights, const ModelConfig& config, const std::string& module) {
  return read_rms_norm(weights, module, config.hidden_size, config.rms_norm_eps);
}

class Gemma4Attention {
 public:
  Gemma4Attention(Weights& weights, const ModelConfig& config, const Gemma4LayerKeys& keys, const std::string& module)
      : keys_(keys),
        n_heads_(config.n_heads),
        queries_(read_linear(weights, module + ".q_proj", config.n_heads * keys.head_dim, config.hidden_size,
                             config.attention_bias)),
        query_norm_(read_rms_norm(weights, module + ".q_norm", keys.head_dim, config.rms_norm_eps)),
        output_(read_linear(weights, module + ".o_proj", config.hidden_size, config.n_heads * keys.head_dim,
                            config.attention_bias)),
        options_{1} {
    if (keys.is_sliding) options_.window = config.sliding_window;
    if (keys.source) {
      // Files may have them for these layers too, unused.
      for (const char* name : {".k_proj.", ".v_proj.", ".k_norm."}) weights.pass_over(module + name);
      return;
    }
    const auto projection = [&](const char* name) {
      return read_linear(weights, module + name, keys.n_kv_heads * keys.head_dim, config.hidden_size,
                         config.attention_bias);
    };
    key_projection_ = projection(".k_proj");
    if (!keys.keys_are_values) value_projection_ = projection(".v_proj");
    key_norm_ = read_rms_norm(weights, module + ".k_norm", keys.head_dim, config.rms_norm_eps);
    value_norm_ = plain_norm(keys.head_dim, config.rms_norm_eps);
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& chosen) const {
    if (keys_.source) return nullptr;
    return cache::make_kv_cache(options_.window, std::nullopt, chosen);
  }

  std::size_t rope() const { return keys_.rope; }

  // x: normed.
  mx::array operator()(const mx::array& x, Step& step, std::size_t index) const {
    const kernels::Turns& turns = step.turns.at(keys_.rope);
    const mx::array queries =
        kernels::rope(kernels::norm(cut_heads(kernels::linear(x, queries_), n_heads_), query_norm_), turns);
    const Histories histories = keys_.source ? step.histories.at(*keys_.source) : append(x, turns, step, index);
    if (keys_.is_source) step.histories.emplace(index, histories);
    return kernels::linear(kernels::attention(queries, histories, options_), output_);
  }

  std::size_t size_bytes() const {
    return queries_.size_bytes() + output_.size_bytes() + (key_projection_ ? key_projection_->size_bytes() : 0) +
           (value_projection_ ? value_projection_->size_bytes() : 0);
  }

 private:
  Histories append(const mx::array& x, const kernels::Turns& turns, const Step& step, std::size_t index) const {
    const mx::array keys = cut_heads(kernels::linear(x, *key_projection_), keys_.n_kv_heads);
    const mx::array values =
        value_projection_ ? cut_heads(kernels::linear(x, *value_projection_), keys_.n_kv_heads) : keys;
    return update(step, index, kernels::rope(kernels::norm(keys, *key_norm_), turns),
                  kernels::norm(values, *value_norm_));
  }

  Gemma4LayerKeys keys_;
  int n_heads_;
  kernels::Linear queries_;
  kernels::Norm query_norm_;
  kernels::Linear output_;
  kernels::AttentionOptions options_;
  std::optional<kernels::Linear> key_projection_;  // nullopt where another layer's keys and values are read
  std::optional<kernels::Linear> value_projection_;
  std::optional<kernels::Norm> key_norm_;
  std::optional<kernels::Norm> value_norm_;
};

// Experts beside a layer's feed-forward, each with norms of its own.
class Gemma4Experts {
 public:
  Gemma4Experts(Weights& weights, const ModelConfig& config, const std::string& module)
      : after_mlp_(read_norm(weights, config, module + ".post_feedforward_layernorm_1")),
        router_norm_(plain_norm(config.hidden_size, config.rms_norm_eps)),
        norm_(read_norm(weights, config, module + ".pre_feedforward_layernorm_2")),
        mixture_(read_mixture(weights, config, module)),
        after_(read_norm(weights, config, module + ".post_feedforward_layernorm_2")) {
    const mx::array scale = weights.vector(module + ".router.scale", config.hidden_size);
    const float root = 1 / std::sqrt(static_cast<float>(config.hidden_size));
    router_norm_.weight = typed_vector(mx::multiply(mx::astype(scale, mx::float32), mx::array(root)));
  }

  // x: the layer's, before norms; mlp: what its feed-forward makes of it.
  mx::array operator()(const mx::array& x, const mx::array& mlp) const {
    const mx::array logits = kernels::linear(kernels::norm(x, router_norm_), mixture_.router);
    const kernels::Routes routes = kernels::route(logits, mixture_.routing);
    const mx::array mixed = kernels::mix_experts(kernels::norm(x, norm_), routes, mixture_.experts);
    return mx::add(kernels::norm(mlp, after_mlp_), kernels::norm(mixed, after_));
  }

  std::size_t size_bytes() const { return mixture_.size_bytes() + 4 * norm_.weight.nbytes(); }

 private:
  static Mixture read_mixture(Weights& weights, const ModelConfig& config, const std::string& module) {
    const ConfigFields fields = family_fields(config);
    const ExpertsShape shape{fields.size("num_experts", kMaxExperts), config.hidden_size,
                             fields.size("moe_intermediate_size", kMaxIntermediateSize)};
    kernels::Routing routing;
    routing.n_chosen = fields.size("top_k_experts", kMaxExperts);
    if (routing.n_chosen > shape.n) {
      fields.fail("top_k_experts",
                  "is " + std::to_string(routing.n_chosen) + " of " + std::to_string(shape.n) + " experts");
    }
    routing.is_normalized = true;
    routing.expert_scales = typed_vector(weights.vector(module + ".router.per_expert_scale", shape.n));
    return {read_linear(weights, module + ".router.proj", shape.n, config.hidden_size, false), routing,
            read_experts(weights, module, module + ".experts.switch_glu", shape, read_gate(config))};
  }

  kernels::Norm after_mlp_;
  kernels::Norm router_norm_;
  kernels::Norm norm_;
  Mixture mixture_;
  kernels::Norm after_;
};

// What a layer adds from each token's input for it alone.
class LayerInput {
 public:
  LayerInput(Weights& weights, const ModelConfig& config, const std::string& module, int size)
      : gate_(read_gate(config)),
        gates_(read_linear(weights, module + ".per_layer_input_gate", size, config.hidden_size, false)),
        output_(read_linear(weights, module + ".per_layer_projection", config.hidden_size, size, false)),
        after_(read_norm(weights, config, module + ".post_per_layer_input_norm")) {}

  mx::array operator()(const mx::array& x, const mx::array& inputs, std::size_t index) const {
    const mx::array own = mx::take(inputs, static_cast<int>(index), 2);  // [B, T, P]
    const mx::array y = kernels::linear(kernels::gate_product(kernels::linear(x, gates_), own, gate_), output_);
    return mx::add(x, kernels::norm(y, after_));
  }

  std::size_t size_bytes() const { return gates_.size_bytes() + output_.size_bytes() + after_.weight.nbytes(); }

 private:
  kernels::Gate gate_;
  kernels::Linear gates_;
  kernels::Linear output_;
  kernels::Norm after_;
};

class Gemma4Layer : public DecoderLayer {
 public:
  Gemma4Layer(Weights& weights, const ModelConfig& config, const Gemma4Keys& all, int index)
      : Gemma4Layer(weights, config, all, all.layers[static_cast<std::size_t>(index)], layer_module(index)) {}

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return attention_.make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array heads = attention_(kernels::norm(x, attention_norm_), step, index);
    const mx::array y = mx::add(x, kernels::norm(heads, after_attention_));
    mx::array mlp = kernels::gated_mlp(y, mlp_norm_, mlp_);
    if (experts_) mlp = (*experts_)(y, mlp);
    mx::array z = mx::add(y, kernels::norm(mlp, after_mlp_));
    if (input_) z = (*input_)(z, *step.layer_inputs, index);
    return mx::multiply(z, mx::astype(scalar_, z.dtype()));
  }

  std::size_t size_bytes() const override {
    return 4 * attention_norm_.weight.nbytes() + attention_.size_bytes() + mlp_.size_bytes() +
           (experts_ ? experts_->size_bytes() : 0) + (input_ ? input_->size_bytes() : 0);
  }

  std::optional<KeyPositions> key_positions() const override { return KeyPositions{attention_.rope()}; }

 private:
  Gemma4Layer(Weights& weights, const ModelConfig& config, const Gemma4Keys& all, const Gemma4LayerKeys& keys,
              const std::string& module)
      : attention_norm_(read_norm(weights, config, module + ".input_layernorm")),
        attention_(weights, config, keys, module + ".self_attn"),
        after_attention_(read_norm(weights, config, module + ".post_attention_layernorm")),
        mlp_norm_(read_norm(weights, config, module + ".pre_feedforward_layernorm")),
        mlp_(read_gated_mlp(weights, module + ".mlp", config, keys.mlp_size)),
        after_mlp_(read_norm(weights, config, module + ".post_feedforward_layernorm")),
        scalar_(typed_vector(weights.vector(module + ".layer_scalar", 1))) {
    if (all.has_experts) experts_.emplace(weights, config, module);
    if (all.input_size > 0) input_.emplace(weights, config, module, all.input_size);
  }

  kernels::Norm attention_norm_;
  Gemma4Attention attention_;
  kernels::Norm after_attention_;
  kernels::Norm mlp_norm_;
  kernels::GatedMlp mlp_;
  std::optional<Gemma4Experts> experts_;
  kernels::Norm after_mlp_;
  std::optional<LayerInput> input_;
  mx::array scalar_;  // [1]: what comes out is multiplied by it
};

}  // namespace

Gemma4Keys read_gemma4_keys(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const bool keys_are_values = fields.required_boolean("attention_k_eq_v");
  Gemma4Keys keys;
  for (const std::string& type : read_pattern(config)) {
    const bool is_sliding = type == kSlidingAttention;
    keys.layers.push_back({is_sliding, config.head_dim, config.n_kv_heads, keys_are_values && !is_sliding, {}});
    keys.layers.back().mlp_size = config.intermediate_size;
  }
  if (const nlohmann::json* overrides = fields.find("per_layer_config")) {
    read_overrides(config, *overrides, keys.layers);
  } else {
    read_global_sizes(config, keys_are_values, keys.layers);
  }
  for (const Gemma4LayerKeys& layer : keys.layers) check_heads_of(config, layer);
  keys.input_size = static_cast<int>(fields.integer("hidden_size_per_layer_input", 0, kMaxHiddenSize).value_or(0));
  keys.has_experts = fields.required_boolean("enable_moe_block");
  return keys;
}

std::vector<kernels::Rope> make_gemma4_ropes(const ModelConfig& config, std::vector<Gemma4LayerKeys>& layers) {
  std::map<std::pair<bool, int>, std::size_t> indices;
  std::vector<kernels::Rope> ropes;
  for (Gemma4LayerKeys& keys : layers) {
    const auto [found, is_new] = indices.emplace(std::pair(keys.is_sliding, keys.head_dim), ropes.size());
    keys.rope = found->second;
    if (!is_new) continue;
    const std::string_view type = keys.is_sliding ? kSlidingAttention : kFullAttention;
    if (!config.layer_ropes.contains(std::string(type))) {
      family_fields(config).fail("rope_parameters", "has no " + std::string(type));
    }
    const RopeConfig rope = rope_of_type(config, type, config.rope);
    if (rope.type == "default" && rope.partial_rotary_factor != 1) {
      family_fields(config).refuse("rope_parameters", "turns a part of a head, which in Gemma 4 only proportional may");
    }
    ropes.push_back(make_rope(rope, keys.head_dim, config.path));
  }
  return ropes;
}

void read_gemma4_sharing(const ModelConfig& config, Gemma4Keys& keys) {
  std::vector<Gemma4LayerKeys>& layers = keys.layers;
  const ConfigFields fields = family_fields(config);
  const auto n_shared = fields.integer("num_kv_shared_layers", 0, config.n_layers - 1).value_or(0);
  const bool is_doubled = fields.required_boolean("use_double_wide_mlp");
  const auto first = layers.size() - static_cast<std::size_t>(n_shared);
  for (std::size_t i = first; i < layers.size(); ++i) {
    for (std::size_t j = 0; j < first; ++j) {
      if (layers[j].is_sliding == layers[i].is_sliding) layers[i].source = j;
    }
    if (!layers[i].source) fields.fail("num_kv_shared_layers", "leaves layers without any of their kind before them");
    Gemma4LayerKeys& source = layers[*layers[i].source];
    source.is_source = true;
    if (source.head_dim != layers[i].head_dim || source.n_kv_heads != layers[i].n_kv_heads) {
      fields.fail("num_kv_shared_layers", "lets layers share heads of different sizes");
    }
    if (is_doubled) layers[i].mlp_size = 2 * config.intermediate_size;
  }
}

std::unique_ptr<DecoderLayer> make_gemma4_layer(Weights& weights, const ModelConfig& config, const Gemma4Keys& keys,
                                                int index) {
  return std::make_unique<Gemma4Layer>(weights, config, keys, index);
}

}  // namespace memoir::model
