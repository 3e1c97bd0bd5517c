// LFM2 (arXiv:2511.23404): a gated short convolution in most layers, attention with norms on the heads in the others.

#include <mlx/ops.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "memoir/cache/recurrent.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/short_convolution.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr std::string_view kConvolution = "conv";
constexpr int kMaxWidth = 32;  // of kernels::ShortConvolution

// out_proj(C * convolution(B * x)), where in_proj makes B, C and x of the layer's input.
class GatedConvolution {
 public:
  GatedConvolution(Weights& weights, const std::string& module, const ModelConfig& config)
      : hidden_(config.hidden_size), convolution_{mx::array(0.0F)} {
    const ConfigFields fields = family_fields(config);
    const bool has_bias = fields.required_boolean("conv_bias");
    const int width = static_cast<int>(fields.integer("conv_L_cache", 1, kMaxWidth).value_or(3));
    in_ = read_linear(weights, module + ".in_proj", 3 * hidden_, hidden_, has_bias);
    convolution_.weight = weights.convolution(module + ".conv.weight", hidden_, width);
    if (has_bias) convolution_.bias = typed_vector(weights.vector(module + ".conv.bias", hidden_));
    out_ = read_linear(weights, module + ".out_proj", hidden_, hidden_, has_bias);
  }

  std::unique_ptr<cache::LayerCache> make_cache() const {
    return std::make_unique<cache::RecurrentCache>(cache::RecurrentShape{convolution_.weight.shape(0) - 1, hidden_});
  }

  // x: normed.
  mx::array operator()(const mx::array& x, const Step& step, std::size_t index, const mx::array& residual) const {
    const mx::array joined = kernels::linear(x, *in_);
    const auto part = [&](int i) {
      return mx::slice(joined, {0, 0, i * hidden_}, {joined.shape(0), joined.shape(1), (i + 1) * hidden_});
    };
    const mx::array y = by_sequence(step, {mx::multiply(part(0), part(2))},
                                    [&](const std::vector<mx::array>& rows, cache::ModelCache& cache) {
                                      return convolved(rows[0], cache.recurrent(index));
                                    });
    return kernels::linear(mx::multiply(part(1), y), *out_, residual);
  }

  std::size_t size_bytes() const {
    return in_->size_bytes() + out_->size_bytes() + convolution_.weight.nbytes() +
           (convolution_.bias ? convolution_.bias->nbytes() : 0);
  }

 private:
  mx::array convolved(const mx::array& x, cache::RecurrentCache& cache) const {
    const int n_tokens = x.shape(1);
    const cache::RecurrentState before = cache.get(x.shape(0), x.dtype());
    const bool has_replay = cache.wants_replay(n_tokens, x.nbytes());
    const kernels::Recurrence after =
        kernels::short_convolution(x, convolution_, before.tail, {cache.capture_steps(n_tokens, has_replay)});
    cache::StateReplay replay;
    if (has_replay) {
      replay = [x](const cache::RecurrentState& start, int n) {
        return cache::RecurrentState{kernels::tail_behind(*start.tail, first_tokens(x, n))};
      };
    }
    put_states(cache, n_tokens, after, nullptr, std::move(replay));
    return after.y;
  }

  int hidden_;
  std::optional<kernels::Linear> in_;  // [3 * hidden, hidden]
  kernels::ShortConvolution convolution_;
  std::optional<kernels::Linear> out_;  // [hidden, hidden]
};

SelfAttention read_attention(Weights& weights, const std::string& module, const ModelConfig& config) {
  const int q_size = config.n_heads * config.head_dim;
  const int kv_size = config.n_kv_heads * config.head_dim;
  const auto linear = [&](const char* name, int rows, int columns) {
    return read_linear(weights, module + name, rows, columns, false);
  };
  kernels::HeadProjection projection{linear(".q_proj", q_size, config.hidden_size),
                                     linear(".k_proj", kv_size, config.hidden_size),
                                     linear(".v_proj", kv_size, config.hidden_size),
                                     config.n_heads,
                                     config.n_kv_heads,
                                     config.head_dim};
  projection.query_norm = read_rms_norm(weights, module + ".q_layernorm", config.head_dim, config.rms_norm_eps);
  projection.key_norm = read_rms_norm(weights, module + ".k_layernorm", config.head_dim, config.rms_norm_eps);
  SelfAttention attention{std::move(projection),
                          linear(".out_proj", config.hidden_size, q_size),
                          {1 / std::sqrt(static_cast<float>(config.head_dim))}};
  attention.rope = 0;
  return attention;
}

// The feed-forward's width: block_ff_dim (or intermediate_size), where block_auto_adjust_ff_dim says so two thirds of
// it, times a factor, rounded up to a multiple (transformers, Lfm2MLP).
int mlp_width(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const auto stated = fields.integer("block_ff_dim", 1, kMaxIntermediateSize);
  std::int64_t width = stated.value_or(config.intermediate_size);
  if (!fields.required_boolean("block_auto_adjust_ff_dim")) return static_cast<int>(width);
  width = 2 * width / 3;
  if (const auto factor = fields.positive("block_ffn_dim_multiplier")) {
    width = static_cast<std::int64_t>(*factor * static_cast<double>(width));
  }
  const std::int64_t multiple = fields.size("block_multiple_of", kMaxIntermediateSize);
  width = (width + multiple - 1) / multiple * multiple;
  if (width < 1 || width > kMaxIntermediateSize) {
    fields.fail("block_ffn_dim_multiplier", "gives a feed-forward of " + std::to_string(width) + " rows");
  }
  return static_cast<int>(width);
}

class Lfm2Layer : public DecoderLayer {
 public:
  Lfm2Layer(Weights& weights, const ModelConfig& config, int index, bool is_convolution)
      : operator_norm_(
            read_rms_norm(weights, layer_module(index) + ".operator_norm", config.hidden_size, config.rms_norm_eps)),
        mlp_norm_(read_rms_norm(weights, layer_module(index) + ".ffn_norm", config.hidden_size, config.rms_norm_eps)),
        mlp_(read_mlp(weights, layer_module(index) + ".feed_forward", config)) {
    if (is_convolution) {
      convolution_.emplace(weights, layer_module(index) + ".conv", config);
    } else {
      attention_ = read_attention(weights, layer_module(index) + ".self_attn", config);
    }
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return convolution_ ? convolution_->make_cache() : attention_->make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array y = convolution_ ? (*convolution_)(kernels::norm(x, operator_norm_), step, index, x)
                                     : attend(x, operator_norm_, *attention_, step, index, x);
    return kernels::gated_mlp(y, mlp_norm_, mlp_, y);
  }

  std::size_t size_bytes() const override {
    return operator_norm_.weight.nbytes() + mlp_norm_.weight.nbytes() + mlp_.size_bytes() +
           (convolution_ ? convolution_->size_bytes() : attention_->size_bytes());
  }

 private:
  static kernels::GatedMlp read_mlp(Weights& weights, const std::string& module, const ModelConfig& config) {
    const int width = mlp_width(config);
    return {read_linear(weights, module + ".w1", width, config.hidden_size, false),
            read_linear(weights, module + ".w3", width, config.hidden_size, false),
            read_linear(weights, module + ".w2", config.hidden_size, width, false), kernels::Gate::kSilu};
  }

  kernels::Norm operator_norm_;
  std::optional<GatedConvolution> convolution_;
  std::optional<SelfAttention> attention_;  // instead of it
  kernels::Norm mlp_norm_;
  kernels::GatedMlp mlp_;
};

// layer_types, or the older full_attn_idxs, without which every layer has attention.
std::vector<std::string> read_pattern(const ModelConfig& config) {
  const auto full = family_fields(config).integers("full_attn_idxs", 0, kMaxLayers);
  return layer_pattern(config, {kConvolution, kFullAttention}, [&full](int i) {
    return !full || std::ranges::find(*full, i) != full->end() ? kFullAttention : kConvolution;
  });
}

}  // namespace

std::unique_ptr<Model> make_lfm2(const ModelConfig& config, Weights& weights) {
  const std::vector<std::string> pattern = read_pattern(config);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const bool is_convolution = pattern[static_cast<std::size_t>(i)] == kConvolution;
    layers.push_back(std::make_unique<Lfm2Layer>(weights, config, i, is_convolution));
  }
  return std::make_unique<Decoder>(
      config,
      read_ends(weights, config,
                read_rms_norm(weights, "model.embedding_norm", config.hidden_size, config.rms_norm_eps)),
      std::vector{read_rope(weights, config)}, std::move(layers));
}

}  // namespace memoir::model
