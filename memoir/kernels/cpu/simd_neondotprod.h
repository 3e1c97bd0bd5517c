#pragma once

// Vectors of 16 lanes as four NEON registers, with the instructions for products of bytes (FEAT_DotProd). Included only
// by files compiled for it; nothing here may be used elsewhere.

#include "memoir/kernels/cpu/simd_neon.h"

namespace memoir::kernels::cpu {

struct NeonDotprod : Neon {
  static constexpr int kFixedRows = 2;  // a sum takes four registers

  /// As Neon's, with any number of additions that fits an integer.
  struct QuarterDot {
    int32x4_t products;
    int32x4_t values;  // 8 bits: sums of each lane's four, times -128
  };
  struct Dot {
    QuarterDot q0, q1, q2, q3;
  };
  static Dot dot_zero() {
    const QuarterDot zero = {vdupq_n_s32(0), vdupq_n_s32(0)};
    return {zero, zero, zero, zero};
  }
  template <int kBits>
  [[gnu::always_inline]] static void dot(Dot& sum, I codes, I values) {
    sum = each<Dot>([](auto s, auto c, auto v) { return quarter_dot<kBits>(s, c, v); }, sum, codes, values);
  }
  template <int kBits>
  static I dot_sum(Dot sum) {
    return each<I>(
        [](auto s) { return vreinterpretq_u32_s32(kBits == 8 ? vsubq_s32(s.products, s.values) : s.products); }, sum);
  }

 private:
  // Each lane adds four products exactly, at most 4 * 128 * 128.
  template <int kBits>
  static QuarterDot quarter_dot(QuarterDot sum, uint32x4_t codes, uint32x4_t values) {
    const int8x16_t v = vreinterpretq_s8_u32(values);
    sum.products = vdotq_s32(sum.products, signed_codes<kBits>(codes), v);
    if constexpr (kBits == 8) sum.values = vdotq_s32(sum.values, vdupq_n_s8(-128), v);
    return sum;
  }
};

}  // namespace memoir::kernels::cpu
