// How heads turn: the types of scaled rotary position embeddings. The formulas are named in layers.h.

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "memoir/base/error.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

// Wavelengths longer than original / low_freq_factor are stretched by the factor, shorter than
// original / high_freq_factor are left, those between are blended.
double llama3_period(double period, const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_position);
  const double wavelength = 2 * std::numbers::pi * period;
  if (wavelength < original / rope.high_freq_factor) return period;
  if (wavelength > original / rope.low_freq_factor) return period * rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return period / ((1 - smooth) / rope.factor + smooth);
}

// The dimension whose period passes `rotations` times in the original context.
double yarn_dimension(double rotations, int n_dims, const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_position);
  return n_dims * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

// Pairs below the dimension of beta_fast keep their period, above that of beta_slow it is stretched by the factor,
// those between are blended.
void stretch_yarn(const RopeConfig& rope, kernels::Rope& result) {
  double low = yarn_dimension(rope.beta_fast, result.n_dims, rope);
  double high = yarn_dimension(rope.beta_slow, result.n_dims, rope);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, result.n_dims - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < result.periods.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    result.periods[i] = static_cast<float>(result.periods[i] / (stretched / rope.factor + (1 - stretched)));
  }
}

double yarn_magnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const double scale = rope.mscale.value_or(0);
  const double scale_all = rope.mscale_all_dim.value_or(0);
  if (scale == 0 || scale_all == 0) return yarn_magnitude(rope.factor, 1);
  return yarn_magnitude(rope.factor, scale) / yarn_magnitude(rope.factor, scale_all);
}

// All of the head turns, of the pairs behind those of the partial factor by an angle of 0.
kernels::Rope proportional_rope(const RopeConfig& rope, int head_dim) {
  kernels::Rope result{head_dim, /* traditional = */ false, kernels::rope_periods(head_dim, rope.theta)};
  const auto n_turning = static_cast<std::size_t>(rotated_dims(head_dim, rope)) / 2;
  for (std::size_t i = 0; i < result.periods.size(); ++i) {
    result.periods[i] =
        i < n_turning ? static_cast<float>(result.periods[i] * rope.factor) : std::numeric_limits<float>::infinity();
  }
  return result;
}

}  // namespace

kernels::Rope make_rope(const RopeConfig& rope, int head_dim, const std::string& path,
                        const std::optional<mx::array>& factors) {
  if (rope.type == "proportional") return proportional_rope(rope, head_dim);
  const int n_dims = rotated_dims(head_dim, rope);
  kernels::Rope result{n_dims, /* traditional = */ false, kernels::rope_periods(n_dims, rope.theta)};
  if (factors) {
    const mx::array values = mx::contiguous(mx::astype(*factors, mx::float32));
    mx::eval(values);
    for (std::size_t i = 0; i < result.periods.size(); ++i) result.periods[i] *= values.data<float>()[i];
    return result;
  }
  if (rope.type == "linear") {
    result.scale = 1 / rope.factor;
  } else if (rope.type == "llama3") {
    for (float& period : result.periods) period = static_cast<float>(llama3_period(period, rope));
  } else if (rope.type == "yarn") {
    stretch_yarn(rope, result);
    result.magnitude = static_cast<float>(yarn_attention_factor(rope));
  } else if (rope.type != "default" && rope.type != "dynamic") {
    throw UnsupportedError(path, "rope_type", "\"" + rope.type + "\" can't be run");
  }
  return result;
}

kernels::Rope read_rope(Weights& weights, const ModelConfig& config) {
  const std::string name = "rope_freqs.weight";
  std::optional<mx::array> factors;
  if (weights.has(name)) factors = weights.vector(name, rotated_dims(config.head_dim, config.rope) / 2);
  return make_rope(config.rope, config.head_dim, config.path, factors);
}

}  // namespace memoir::model
