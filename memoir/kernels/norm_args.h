#pragma once

// How the operations that begin with a norm check it and pass its arrays on. Internal to kernels/.

#include <mlx/array.h>

#include <vector>

#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/norm.h"

namespace memoir::kernels {

/// Throws std::invalid_argument, naming the function, if weight or bias is not [n].
void check_norm(const char* function, const Norm& spec, int n);

/// The weight, and the bias where there is one, as float32.
void append_arrays(const Norm& spec, std::vector<mlx::core::array>& arrays);

/// What an operation remembers of a norm, to read its arrays.
struct NormReader {
  explicit NormReader(const Norm& spec)
      : n(spec.weight.shape(0)), eps(spec.eps), has_bias(spec.bias.has_value()), subtracts_mean(spec.subtracts_mean) {}

  /// floats: array -> const float*, its elements in row-major order.
  template <typename Floats>
  cpu::NormArgs read(ArrayReader& next, const Floats& floats) const {
    cpu::NormArgs args{n, eps, floats(next())};
    if (has_bias) args.bias = floats(next());
    args.subtracts_mean = subtracts_mean;
    return args;
  }

  int n;
  float eps;
  bool has_bias;
  bool subtracts_mean;
};

}  // namespace memoir::kernels
