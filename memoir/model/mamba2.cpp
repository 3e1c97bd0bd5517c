// Mamba 2 (arXiv:2405.21060): layers of norm and mixer alone; no attention, and so no limit to the context.

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/cache/recurrent.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/selective_scan.h"
#include "memoir/kernels/short_convolution.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr int kMaxWidth = 32;        // of kernels::ShortConvolution
constexpr int kMaxStateSize = 4096;  // of each element of a head

struct MixerSizes {
  int hidden;
  int n_heads;
  int head_dim;
  int n_groups;
  int state;
  int width;  // of the convolution

  int inner() const { return n_heads * head_dim; }
  int group_columns() const { return n_groups * state; }          // of B, and of C
  int channels() const { return inner() + 2 * group_columns(); }  // of the convolution: x, B and C
  int in_rows() const { return inner() + channels() + n_heads; }  // the gate, those, and the time steps
};

MixerSizes read_sizes(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const MixerSizes sizes{config.hidden_size,
                         fields.size("num_heads", kMaxHeads),
                         fields.size("head_dim", kMaxHeadDim),
                         fields.size("n_groups", kMaxHeads),
                         fields.size("state_size", kMaxStateSize),
                         fields.size("conv_kernel", kMaxWidth)};
  const std::int64_t inner = std::int64_t{sizes.n_heads} * sizes.head_dim;
  const double expanded = fields.positive("expand").value_or(2) * config.hidden_size;
  if (static_cast<double>(inner) != std::floor(expanded) || inner > kMaxHiddenSize) {
    fields.fail("num_heads", std::to_string(sizes.n_heads) + " heads of " + std::to_string(sizes.head_dim) +
                                 " are not expand times hidden_size");
  }
  if (sizes.n_heads % sizes.n_groups != 0 || std::int64_t{sizes.n_groups} * sizes.state > kMaxIntermediateSize) {
    fields.fail("n_groups", std::to_string(sizes.n_groups) + " does not divide num_heads " +
                                std::to_string(sizes.n_heads) + ", or gives too large a state");
  }
  return sizes;
}

// [min, max] of the time steps; nullopt: any.
std::optional<kernels::SelectiveScan::Limits> read_limits(const ModelConfig& config) {
  constexpr const char* kKey = "time_step_limit";
  const ConfigFields fields = family_fields(config);
  const nlohmann::json* limits = fields.find(kKey);
  if (!limits) return std::nullopt;
  if (!limits->is_array() || limits->size() != 2 || !(*limits)[0].is_number() || !(*limits)[1].is_number()) {
    fields.fail(kKey, "is not a list of two numbers");
  }
  const double low = (*limits)[0].get<double>();
  const double high = (*limits)[1].get<double>();
  if (!(low >= 0 && low <= high)) fields.fail(kKey, "is not two numbers from 0 on, the smaller first");
  if (low == 0 && std::isinf(high)) return std::nullopt;
  return kernels::SelectiveScan::Limits{static_cast<float>(low), static_cast<float>(high)};
}

mx::array evaluated(mx::array a) {
  mx::eval(a);
  return a;
}

class Mamba2Layer : public DecoderLayer {
 public:
  Mamba2Layer(Weights& weights, const ModelConfig& config, const MixerSizes& sizes, const std::string& module)
      : sizes_(sizes),
        norm_(read_rms_norm(weights, module + ".norm", sizes.hidden, config.rms_norm_eps)),
        in_(read_linear(weights, module + ".mixer.in_proj", sizes.in_rows(), sizes.hidden, has(config, "use_bias"))),
        convolution_{weights.convolution(module + ".mixer.conv1d.weight", sizes.channels(), sizes.width), std::nullopt,
                     true},
        a_(evaluated(mx::negative(mx::exp(float_vector(weights, module + ".mixer.A_log"))))),
        d_(float_vector(weights, module + ".mixer.D")),
        dt_bias_(float_vector(weights, module + ".mixer.dt_bias")),
        limits_(read_limits(config)),
        gated_norm_(plain_norm(sizes.inner() / sizes.n_groups, config.rms_norm_eps)),
        gated_norm_weight_(typed_vector(weights.vector(module + ".mixer.norm.weight", sizes.inner()))),
        out_(read_linear(weights, module + ".mixer.out_proj", sizes.hidden, sizes.inner(), has(config, "use_bias"))) {
    if (has(config, "use_conv_bias")) {
      convolution_.bias = typed_vector(weights.vector(module + ".mixer.conv1d.bias", sizes.channels()));
    }
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions&) const override {
    return std::make_unique<cache::RecurrentCache>(
        cache::RecurrentShape{sizes_.width - 1, sizes_.channels(), {sizes_.n_heads, sizes_.head_dim, sizes_.state}});
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array joined = kernels::linear(kernels::norm(x, norm_), in_);
    const auto columns = [&](const mx::array& from, int begin, int n) {
      return mx::slice(from, {0, 0, begin}, {from.shape(0), from.shape(1), begin + n});
    };
    const mx::array gate = columns(joined, 0, sizes_.inner());
    const mx::array y = by_sequence(step,
                                    {columns(joined, sizes_.inner(), sizes_.channels()),
                                     columns(joined, sizes_.inner() + sizes_.channels(), sizes_.n_heads)},
                                    [&](const std::vector<mx::array>& rows, cache::ModelCache& cache) {
                                      return scan(rows[0], rows[1], cache.recurrent(index));
                                    });
    return kernels::linear(normed(kernels::gate_product(gate, y, kernels::Gate::kSilu)), out_, x);
  }

  std::size_t size_bytes() const override {
    return norm_.weight.nbytes() + in_.size_bytes() + out_.size_bytes() + convolution_.weight.nbytes() + a_.nbytes() +
           d_.nbytes() + dt_bias_.nbytes() + gated_norm_weight_.nbytes() +
           (convolution_.bias ? convolution_.bias->nbytes() : 0);
  }

 private:
  static bool has(const ModelConfig& config, const char* key) { return family_fields(config).required_boolean(key); }

  mx::array float_vector(Weights& weights, const std::string& name) const {
    return evaluated(mx::astype(weights.vector(name, sizes_.n_heads), mx::float32));
  }

  // inputs: x, B and C [B, T, channels]; dt: [B, T, n_heads]. Returns y [B, T, inner].
  mx::array scan(const mx::array& inputs, const mx::array& dt, cache::RecurrentCache& cache) const {
    const int n_tokens = inputs.shape(1);
    const cache::RecurrentState before = cache.get(inputs.shape(0), inputs.dtype());
    const kernels::RecurrenceOptions options{cache.capture_steps(n_tokens)};
    const kernels::Recurrence convolved = kernels::short_convolution(inputs, convolution_, before.tail, options);
    const auto part = [&](int begin, int n, int size) {
      const mx::array some = mx::slice(convolved.y, {0, 0, begin}, {inputs.shape(0), n_tokens, begin + n * size});
      return mx::reshape(some, {inputs.shape(0), n_tokens, n, size});
    };
    const kernels::SelectiveScan input{part(0, sizes_.n_heads, sizes_.head_dim),
                                       dt,
                                       a_,
                                       part(sizes_.inner(), sizes_.n_groups, sizes_.state),
                                       part(sizes_.inner() + sizes_.group_columns(), sizes_.n_groups, sizes_.state),
                                       before.state,
                                       d_,
                                       dt_bias_,
                                       true,
                                       limits_};
    const kernels::Recurrence scanned = kernels::selective_scan(input, options);
    std::vector<cache::RecurrentState> captured;
    for (std::size_t i = 0; i < scanned.captured.size(); ++i) {
      captured.push_back({convolved.captured[i], scanned.captured[i]});
    }
    cache.put({convolved.state, scanned.state}, n_tokens, captured);
    return mx::flatten(scanned.y, 2, 3);
  }

  // The norm behind the gate, of each group's columns by themselves.
  mx::array normed(const mx::array& gated) const {
    const mx::array groups =
        mx::reshape(gated, {gated.shape(0), gated.shape(1), sizes_.n_groups, sizes_.inner() / sizes_.n_groups});
    return mx::multiply(mx::flatten(kernels::norm(groups, gated_norm_), 2, 3), gated_norm_weight_);
  }

  MixerSizes sizes_;
  kernels::Norm norm_;
  kernels::Linear in_;  // [in_rows, hidden]
  kernels::ShortConvolution convolution_;
  mx::array a_;  // [n_heads], as the next two
  mx::array d_;
  mx::array dt_bias_;
  std::optional<kernels::SelectiveScan::Limits> limits_;
  kernels::Norm gated_norm_;     // of a group
  mx::array gated_norm_weight_;  // [inner]
  kernels::Linear out_;          // [hidden, inner]
};

}  // namespace

std::unique_ptr<Model> make_mamba2(const ModelConfig& config, Weights& weights) {
  if (read_gate(config) != kernels::Gate::kSilu) {
    throw UnsupportedError(config.path, "hidden_act", "'" + config.hidden_act + "' is not supported, expected silu");
  }
  const MixerSizes sizes = read_sizes(config);
  DecoderEnds ends{weights.matrix("backbone.embeddings", config.vocab_size, config.hidden_size), 1,
                   read_rms_norm(weights, "backbone.norm_f", config.hidden_size, config.rms_norm_eps), std::nullopt};
  if (!config.tie_embeddings) {
    ends.head = kernels::Linear{weights.matrix("lm_head", config.vocab_size, config.hidden_size)};
  }
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    layers.push_back(std::make_unique<Mamba2Layer>(weights, config, sizes, "backbone.layers." + std::to_string(i)));
  }
  return std::make_unique<Decoder>(config, std::move(ends), std::vector<kernels::Rope>{}, std::move(layers));
}

}  // namespace memoir::model
