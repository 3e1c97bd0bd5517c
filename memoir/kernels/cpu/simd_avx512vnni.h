#pragma once

// Vectors of 16 lanes as one AVX-512 register, with the instructions for products of bytes (VNNI). Included only by
// files compiled for it; nothing here may be used elsewhere.

#include "memoir/kernels/cpu/simd_avx512.h"

namespace memoir::kernels::cpu {

struct Avx512Vnni : Avx512 {
  template <int kBits>
  static void dot(Dot& sum, I codes, I values) {
    sum = _mm512_dpbusd_epi32(sum, codes, values);
  }
  template <int kBits>
  static I dot_sum(Dot sum) {
    return sum;
  }
};

}  // namespace memoir::kernels::cpu
