// The short convolution in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include "memoir/kernels/cpu/short_convolution.h"
#include "memoir/kernels/cpu/state_block_impl.h"

namespace memoir::kernels::cpu {
namespace {

template <typename S>
void convolve(const ShortConvolutionArgs& args, const float* const* inputs, int channel, int n, float* y) {
  using F = typename S::F;
  for (int i = 0; i < n; i += 16) {
    const int at = channel + i;
    F sum = args.bias ? load_some<S>(args.bias + at, n - i) : S::zero();
    for (int j = 0; j < args.width; ++j) {
      const F weight = load_some<S>(args.weight + static_cast<std::ptrdiff_t>(j) * args.n_channels + at, n - i);
      sum = S::fma(weight, inputs[j] ? load_some<S>(inputs[j] + at, n - i) : S::zero(), sum);
    }
    if (args.has_silu) sum = S::mul(sum, sigmoid_of<S>(sum));
    store_some<S>(y + at, n - i, sum);
  }
}

}  // namespace
}  // namespace memoir::kernels::cpu
