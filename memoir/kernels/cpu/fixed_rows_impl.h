// Fixed point in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include <limits>

#include "memoir/kernels/cpu/fixed_rows.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

inline float power_of_two(int biased_exponent) {
  const std::uint32_t bits = static_cast<std::uint32_t>(biased_exponent) << 23;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename S>
[[gnu::always_inline]] inline void store_digits(FixedBlock& block, int at, typename S::I q) {
  S::store_low_bytes(block.digits[2] + at, q);
  S::store_low_bytes(block.digits[1] + at, S::template shift_right<8>(S::int_add(q, S::int_set(0x80))));
  S::store_low_bytes(block.digits[0] + at, S::template shift_right<16>(S::int_add(q, S::int_set(0x8080))));
}

template <typename S>
void fix_row(int n, const float* x, FixedBlock* out) {
  constexpr int kInfinite = 255;         // the biased exponent of infinity and NaN
  constexpr int kSmallest = kFixedBits;  // below, the scale would not be a normal number
  constexpr int kExponentBias = 127;
  for (; n > 0; n -= kBlock, x += kBlock, ++out) {
    const typename S::F low = S::load(x);
    const typename S::F high = S::load(x + kLanes);
    const typename S::I magnitude = S::int_set(0x7fffffff);
    const int largest = std::max(S::int_max_of_lanes(S::int_and(S::bits_of(low), magnitude)),
                                 S::int_max_of_lanes(S::int_and(S::bits_of(high), magnitude)));
    const int exponent = std::max(largest >> 23, kSmallest);
    if (exponent == kInfinite) {
      *out = {};
      out->scale = out->sum = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const typename S::F factor = S::set(power_of_two(2 * kExponentBias + kFixedBits - 1 - exponent));
    const typename S::I q_low = S::to_nearest(S::mul(low, factor));
    const typename S::I q_high = S::to_nearest(S::mul(high, factor));
    store_digits<S>(*out, 0, q_low);
    store_digits<S>(*out, kLanes, q_high);
    out->scale = power_of_two(exponent - (kFixedBits - 1));
    out->sum = static_cast<float>(S::int_sum_of_lanes(S::int_add(q_low, q_high))) * out->scale;
  }
}

}  // namespace
}  // namespace memoir::kernels::cpu
