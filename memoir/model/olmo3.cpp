// OLMo 3 (arXiv:2512.13961): norms behind attention and feed-forward only, norms over all heads of queries and of keys
// together, windows in three of four layers; only the others turn by a scaled rope.

#include <mlx/ops.h>

#include <utility>
#include <vector>

#include "memoir/kernels/linear.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr std::size_t kFullRope = 0;
constexpr std::size_t kSlidingRope = 1;
constexpr int kPeriod = 4;

class Olmo3Layer : public DecoderLayer {
 public:
  Olmo3Layer(Weights& weights, const ModelConfig& config, int index, bool is_sliding)
      : attention_(read_self_attention(weights, layer_module(index) + ".self_attn", config.hidden_size,
                                       attention_layout(config))),
        query_norm_(read_norm(weights, config, index, ".self_attn.q_norm", config.n_heads * config.head_dim)),
        key_norm_(read_norm(weights, config, index, ".self_attn.k_norm", config.n_kv_heads * config.head_dim)),
        after_attention_(read_norm(weights, config, index, ".post_attention_layernorm", config.hidden_size)),
        mlp_(read_gated_mlp(weights, layer_module(index) + ".mlp", config, config.intermediate_size)),
        after_mlp_(read_norm(weights, config, index, ".post_feedforward_layernorm", config.hidden_size)) {
    attention_.rope = is_sliding ? kSlidingRope : kFullRope;
    if (is_sliding) attention_.options.window = config.sliding_window;
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return attention_.make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array y = mx::add(x, kernels::norm(attend(x, step, index), after_attention_));
    return mx::add(y, kernels::norm(kernels::gated_mlp(y, std::nullopt, mlp_), after_mlp_));
  }

  std::size_t size_bytes() const override {
    return attention_.size_bytes() + query_norm_.weight.nbytes() + key_norm_.weight.nbytes() +
           2 * after_mlp_.weight.nbytes() + mlp_.size_bytes();
  }

  std::optional<KeyPositions> key_positions() const override { return KeyPositions{attention_.rope}; }

 private:
  static kernels::Norm read_norm(Weights& weights, const ModelConfig& config, int index, const char* name, int size) {
    return read_rms_norm(weights, layer_module(index) + name, size, config.rms_norm_eps);
  }

  mx::array attend(const mx::array& x, const Step& step, std::size_t index) const {
    const kernels::HeadProjection& projection = attention_.projection;
    const kernels::Turns& turns = step.turns.at(*attention_.rope);
    const auto turned = [&](const kernels::Linear& layer, const kernels::Norm& norm, int n_heads) {
      return kernels::rope(cut_heads(kernels::norm(kernels::linear(x, layer), norm), n_heads), turns);
    };
    const mx::array queries = turned(projection.queries, query_norm_, projection.n_heads);
    const mx::array keys = turned(projection.keys, key_norm_, projection.n_kv_heads);
    const mx::array values = cut_heads(kernels::linear(x, projection.values), projection.n_kv_heads);
    const Histories histories = update(step, index, keys, values);
    return kernels::linear(kernels::attention(queries, histories, attention_.options), attention_.output);
  }

  SelfAttention attention_;
  kernels::Norm query_norm_;  // [n_heads * head_dim]
  kernels::Norm key_norm_;    // [n_kv_heads * head_dim]
  kernels::Norm after_attention_;
  kernels::GatedMlp mlp_;
  kernels::Norm after_mlp_;
};

std::vector<kernels::Rope> read_ropes(const ModelConfig& config) {
  RopeConfig plain;
  plain.theta = family_fields(config).positive("rope_theta").value_or(plain.theta);
  if (config.layer_ropes.empty() && config.raw.contains("rope_parameters")) plain.theta = config.rope.theta;
  const RopeConfig full = config.layer_ropes.empty() ? config.rope : rope_of_type(config, kFullAttention, plain);
  return {make_rope(full, config.head_dim, config.path),
          make_rope(rope_of_type(config, kSlidingAttention, plain), config.head_dim, config.path)};
}

}  // namespace

std::unique_ptr<Model> make_olmo3(const ModelConfig& config, Weights& weights) {
  const std::vector<std::string> pattern = sliding_pattern(config, kPeriod);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const bool is_sliding = pattern[static_cast<std::size_t>(i)] == kSlidingAttention;
    layers.push_back(std::make_unique<Olmo3Layer>(weights, config, i, is_sliding));
  }
  return std::make_unique<Decoder>(
      config, read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
      read_ropes(config), std::move(layers));
}

}  // namespace memoir::model
