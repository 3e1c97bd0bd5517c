// Fixed point in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include <limits>

#include "memoir/kernels/cpu/fixed_rows.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

template <typename S>
[[gnu::always_inline]] inline void store_digits(FixedBlock& block, int at, typename S::I q) {
  S::store_low_bytes(block.digits[1] + at, q);
  S::store_low_bytes(block.digits[0] + at, S::template shift_right<8>(S::int_add(q, S::int_set(0x80))));
}

// Whether the scale and sum of a block that holds a value which is not finite are set, and all is done.
inline bool is_done_as_nan(int largest_bits, FixedBlock& block) {
  constexpr int kInfinity = 0x7f800000;
  if (largest_bits < kInfinity) return false;
  block = {};
  block.scale = block.sum = std::numeric_limits<float>::quiet_NaN();
  return true;
}

// The bits of the largest magnitude: ordered as the values are, and NaN above all.
template <typename S>
[[gnu::always_inline]] inline int largest_magnitude(typename S::F low, typename S::F high) {
  const typename S::I magnitude = S::int_set(0x7fffffff);
  return std::max(S::int_max_of_lanes(S::int_and(S::bits_of(low), magnitude)),
                  S::int_max_of_lanes(S::int_and(S::bits_of(high), magnitude)));
}

template <typename S>
void fix_row(int n, const float* x, FixedBlock* out) {
  constexpr float kLargest = kLargestFixed;
  constexpr float kSmallest = 0x1p-100F;  // so that neither the scale nor its inverse overflows
  for (; n > 0; n -= kBlock, x += kBlock, ++out) {
    const typename S::F low = S::load(x);
    const typename S::F high = S::load(x + kLanes);
    const int largest_bits = largest_magnitude<S>(low, high);
    if (is_done_as_nan(largest_bits, *out)) continue;
    float largest = 0;
    std::memcpy(&largest, &largest_bits, sizeof(largest));
    largest = std::max(largest, kSmallest);
    const typename S::F factor = S::set(kLargest / largest);
    const typename S::I q_low = S::to_nearest(S::mul(low, factor));
    const typename S::I q_high = S::to_nearest(S::mul(high, factor));
    store_digits<S>(*out, 0, q_low);
    store_digits<S>(*out, kLanes, q_high);
    out->scale = largest / kLargest;
    out->sum = static_cast<float>(S::int_sum_of_lanes(S::int_add(q_low, q_high))) * out->scale;
  }
}

}  // namespace
}  // namespace memoir::kernels::cpu
