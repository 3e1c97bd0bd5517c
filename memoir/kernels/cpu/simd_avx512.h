#pragma once

// Vectors of 16 lanes as one AVX-512 register. Included only by files compiled for it; nothing here may be used
// elsewhere.

#include <immintrin.h>

#include <cstdint>

namespace memoir::kernels::cpu {

struct Avx512 {
  using F = __m512;   // 16 float32
  using I = __m512i;  // 16 int32

  static constexpr int kRows = 6;  // 6 x kTileRun sums fit the 32 registers

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float value) { return _mm512_set1_ps(value); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  /// a * b + c, rounded once.
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const std::uint16_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }

  static I int_load(const void* p) { return _mm512_loadu_si512(p); }
  static I int_set(std::int32_t value) { return _mm512_set1_epi32(value); }
  static I int_or(I a, I b) { return _mm512_or_si512(a, b); }
  static I int_and(I a, I b) { return _mm512_and_si512(a, b); }
  template <int kBits>
  static I shift_right(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  template <int kBits>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
};

}  // namespace memoir::kernels::cpu
