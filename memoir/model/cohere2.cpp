// Cohere 2 (Command R7B): attention and feed-forward side by side behind one layer norm, windows with rope in most
// layers, no positions at all in the others.

#include <mlx/ops.h>

#include <utility>
#include <vector>

#include "memoir/model/config_fields.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

kernels::Norm read_layer_norm(Weights& weights, const std::string& module, const ModelConfig& config) {
  kernels::Norm norm = read_rms_norm(weights, module, config.hidden_size, config.rms_norm_eps);
  norm.subtracts_mean = true;
  return norm;
}

class Cohere2Layer : public DecoderLayer {
 public:
  Cohere2Layer(Weights& weights, const ModelConfig& config, int index, bool is_sliding)
      : norm_(read_layer_norm(weights, layer_module(index) + ".input_layernorm", config)),
        attention_(read_self_attention(weights, layer_module(index) + ".self_attn", config.hidden_size,
                                       attention_layout(config))),
        mlp_(read_gated_mlp(weights, layer_module(index) + ".mlp", config, config.intermediate_size)) {
    if (!is_sliding || !config.sliding_window) return;
    attention_.rope = 0;
    attention_.options.window = config.sliding_window;
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return attention_.make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array y = attend(x, norm_, attention_, step, index, x);
    return kernels::gated_mlp(x, norm_, mlp_, y);
  }

  std::size_t size_bytes() const override {
    return norm_.weight.nbytes() + attention_.size_bytes() + mlp_.size_bytes();
  }

  std::optional<KeyPositions> key_positions() const override { return KeyPositions{attention_.rope}; }

 private:
  kernels::Norm norm_;
  SelfAttention attention_;
  kernels::GatedMlp mlp_;
};

}  // namespace

std::unique_ptr<Model> make_cohere2(const ModelConfig& config, Weights& weights) {
  const std::vector<std::string> pattern = sliding_pattern(config);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const bool is_sliding = pattern[static_cast<std::size_t>(i)] == kSlidingAttention;
    layers.push_back(std::make_unique<Cohere2Layer>(weights, config, i, is_sliding));
  }
  DecoderEnds ends = read_ends(weights, config, read_layer_norm(weights, "model.norm", config));
  ends.logit_scale = static_cast<float>(family_fields(config).required_number("logit_scale"));
  kernels::Rope rope = make_rope(config.rope, config.head_dim, config.path);
  rope.traditional = true;
  return std::make_unique<Decoder>(config, std::move(ends), std::vector{std::move(rope)}, std::move(layers));
}

}  // namespace memoir::model
