#include "memoir/model/layers.h"

#include <mlx/ops.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/kernels/activation.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/norm.h"

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

mx::array float_array(const std::vector<double>& values) {
  const std::vector<float> floats(values.begin(), values.end());
  return mx::array(floats.data(), {static_cast<int>(floats.size())}, mx::float32);
}

}  // namespace

Linear Linear::read(Weights& weights, const std::string& module, int rows, int columns, bool has_bias) {
  Linear linear{weights.matrix(module, rows, columns), std::nullopt};
  if (has_bias) linear.bias = weights.vector(module + ".bias", rows);
  return linear;
}

mx::array Linear::operator()(const mx::array& x) const {
  return kernels::linear(x, weight, bias);
}

std::size_t Linear::size_bytes() const {
  return weight.size_bytes() + (bias ? bias->nbytes() : 0);
}

RmsNorm RmsNorm::read(Weights& weights, const std::string& module, int size, double eps) {
  return {weights.vector(module + ".weight", size), static_cast<float>(eps)};
}

mx::array RmsNorm::operator()(const mx::array& x) const {
  return kernels::rms_norm(x, weight, eps);
}

GatedMlp GatedMlp::read(Weights& weights, const std::string& module, const ModelConfig& config) {
  const int hidden = config.hidden_size;
  const int intermediate = config.intermediate_size;
  return {Linear::read(weights, module + ".gate_proj", intermediate, hidden, config.mlp_bias),
          Linear::read(weights, module + ".up_proj", intermediate, hidden, config.mlp_bias),
          Linear::read(weights, module + ".down_proj", hidden, intermediate, config.mlp_bias)};
}

mx::array GatedMlp::operator()(const mx::array& x) const {
  return down(kernels::swiglu(gate(x), up(x)));
}

kernels::Rope make_rope(const ModelConfig& config, const std::optional<mx::array>& factors) {
  const RopeConfig& rope = config.rope;
  const int n_dims = rotated_dims(config.head_dim, rope);
  kernels::Rope result{n_dims, /* traditional = */ false, rope.theta};
  std::vector<double> periods(static_cast<std::size_t>(n_dims / 2));
  for (std::size_t i = 0; i < periods.size(); ++i) {
    periods[i] = std::pow(rope.theta, 2.0 * static_cast<double>(i) / n_dims);
  }
  if (factors) {
    result.periods = mx::multiply(float_array(periods), mx::astype(*factors, mx::float32));
  } else if (rope.type == "linear") {
    result.scale = 1 / rope.factor;
  } else if (rope.type == "llama3") {
    for (double& period : periods) period = llama3_period(period, rope);
    result.periods = float_array(periods);
  } else if (rope.type != "default") {
    throw UnsupportedError(config.path, "rope type", "'" + rope.type + "' is not supported for " + config.model_type);
  }
  return result;
}

mx::array split_heads(const mx::array& x, int n_heads, int head_dim) {
  return mx::transpose(mx::reshape(x, {x.shape(0), x.shape(1), n_heads, head_dim}), {0, 2, 1, 3});
}

mx::array join_heads(const mx::array& x) {
  return mx::reshape(mx::transpose(x, {0, 2, 1, 3}), {x.shape(0), x.shape(2), x.shape(1) * x.shape(3)});
}

}  // namespace memoir::model
