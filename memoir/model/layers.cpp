#include "memoir/model/layers.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>
#include <numbers>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/kernels/device.h"

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

}  // namespace

kernels::Linear read_linear(Weights& weights, const std::string& module, int rows, int columns, bool has_bias) {
  kernels::Linear linear{weights.matrix(module, rows, columns)};
  if (has_bias) linear.bias = weights.vector(module + ".bias", rows);
  return linear;
}

kernels::Norm read_rms_norm(Weights& weights, const std::string& module, int size, double eps) {
  const mx::array weight = weights.vector(module + ".weight", size);
  // Converted once, here, and not at each use.
  mx::array typed = mx::contiguous(mx::astype(weight, kernels::activation_dtype(weight.dtype())));
  mx::eval(typed);
  return {std::move(typed), static_cast<float>(eps)};
}

kernels::GatedMlp read_gated_mlp(Weights& weights, const std::string& module, const ModelConfig& config) {
  const int hidden = config.hidden_size;
  const int intermediate = config.intermediate_size;
  return {read_linear(weights, module + ".gate_proj", intermediate, hidden, config.mlp_bias),
          read_linear(weights, module + ".up_proj", intermediate, hidden, config.mlp_bias),
          read_linear(weights, module + ".down_proj", hidden, intermediate, config.mlp_bias), kernels::Gate::kSilu};
}

kernels::Rope make_rope(const ModelConfig& config, const std::optional<mx::array>& factors) {
  const RopeConfig& rope = config.rope;
  const int n_dims = rotated_dims(config.head_dim, rope);
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
  } else if (rope.type != "default") {
    throw UnsupportedError(config.path, "rope type", "'" + rope.type + "' is not supported for " + config.model_type);
  }
  return result;
}

}  // namespace memoir::model
