// Gemma 3 (arXiv:2503.19786): norms before and behind attention and feed-forward, norms on the heads of queries and
// keys, windows in most layers, which turn faster than the others.

#include <mlx/ops.h>

#include <cmath>
#include <utility>
#include <vector>

#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/gemma.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr std::size_t kFullRope = 0;
constexpr std::size_t kSlidingRope = 1;

class Gemma3Layer : public DecoderLayer {
 public:
  Gemma3Layer(Weights& weights, const ModelConfig& config, int index, bool is_sliding)
      : attention_norm_(read_norm(weights, config, index, ".input_layernorm")),
        attention_(read_attention(weights, config, index)),
        after_attention_(read_norm(weights, config, index, ".post_attention_layernorm")),
        mlp_norm_(read_norm(weights, config, index, ".pre_feedforward_layernorm")),
        mlp_(read_gated_mlp(weights, layer_module(index) + ".mlp", config, config.intermediate_size)),
        after_mlp_(read_norm(weights, config, index, ".post_feedforward_layernorm")) {
    attention_.rope = is_sliding ? kSlidingRope : kFullRope;
    if (is_sliding) attention_.options.window = config.sliding_window;
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return attention_.make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array heads = attend(x, attention_norm_, attention_, step, index, std::nullopt);
    const mx::array y = mx::add(x, kernels::norm(heads, after_attention_));
    return mx::add(y, kernels::norm(kernels::gated_mlp(y, mlp_norm_, mlp_), after_mlp_));
  }

  std::size_t size_bytes() const override {
    return 4 * attention_norm_.weight.nbytes() + attention_.size_bytes() + mlp_.size_bytes();
  }

  std::optional<KeyPositions> key_positions() const override { return KeyPositions{attention_.rope}; }

 private:
  static kernels::Norm read_norm(Weights& weights, const ModelConfig& config, int index, const char* name) {
    return read_centered_norm(weights, layer_module(index) + name, config.hidden_size, config.rms_norm_eps);
  }

  static SelfAttention read_attention(Weights& weights, const ModelConfig& config, int index) {
    const std::string module = layer_module(index) + ".self_attn";
    SelfAttention attention = read_self_attention(weights, module, config.hidden_size, attention_layout(config));
    const auto head_norm = [&](const char* name) {
      return read_centered_norm(weights, module + name, config.head_dim, config.rms_norm_eps);
    };
    attention.projection.query_norm = head_norm(".q_norm");
    attention.projection.key_norm = head_norm(".k_norm");
    const int scalar = family_fields(config).size("query_pre_attn_scalar", kMaxHiddenSize);
    attention.options.scale = 1 / std::sqrt(static_cast<float>(scalar));
    return attention;
  }

  kernels::Norm attention_norm_;
  SelfAttention attention_;
  kernels::Norm after_attention_;
  kernels::Norm mlp_norm_;
  kernels::GatedMlp mlp_;
  kernels::Norm after_mlp_;
};

void check_supported_keys(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  if (fields.boolean("use_bidirectional_attention").value_or(false)) {
    fields.refuse("use_bidirectional_attention", "is true: the model is none that writes text");
  }
  if (fields.find("attn_logit_softcapping") != nullptr) {
    fields.refuse("attn_logit_softcapping", "can't be run in Gemma 3");
  }
}

// Full layers turn as rope_theta and rope_scaling say, sliding ones as rope_local_base_freq does.
std::vector<kernels::Rope> read_ropes(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  RopeConfig full;
  full.theta = fields.positive("rope_theta").value_or(full.theta);
  if (config.layer_ropes.empty()) full = config.rope;
  RopeConfig sliding;
  sliding.theta = fields.positive("rope_local_base_freq").value_or(sliding.theta);
  return {make_rope(rope_of_type(config, kFullAttention, full), config.head_dim, config.path),
          make_rope(rope_of_type(config, kSlidingAttention, sliding), config.head_dim, config.path)};
}

}  // namespace

std::unique_ptr<Model> make_gemma3(const ModelConfig& config, Weights& weights) {
  check_supported_keys(config);
  const std::vector<std::string> pattern = sliding_pattern(config);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const bool is_sliding = pattern[static_cast<std::size_t>(i)] == kSlidingAttention;
    layers.push_back(std::make_unique<Gemma3Layer>(weights, config, i, is_sliding));
  }
  DecoderEnds ends =
      read_ends(weights, config, read_centered_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps));
  ends.embedding_scale = gemma_embedding_scale(ends.embedding, config.hidden_size);
  ends.logit_cap = static_cast<float>(family_fields(config).positive("final_logit_softcapping").value_or(0));
  return std::make_unique<Decoder>(config, std::move(ends), read_ropes(config), std::move(layers));
}

}  // namespace memoir::model
