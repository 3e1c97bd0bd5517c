#pragma once

// Vectors of 16 lanes as two AVX2 registers. Included only by files compiled for it; nothing here may be used
// elsewhere.

#include <immintrin.h>

#include <cstdint>

namespace memoir::kernels::cpu {

struct Avx2 {
  struct F {
    __m256 low, high;
  };
  struct I {
    __m256i low, high;
  };

  static constexpr int kRows = 3;     // 3 x kTiles sums of two registers each leave some of the 16
  static constexpr int kTiles = 2;    // multiplied side by side, so that their sums hide each other's latency
  static constexpr int kFewRows = 2;  // rows whose sums fit beside weights that are made on the way

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  /// a > b ? a : b.
  static F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  /// a < b ? x : y.
  static F less(F a, F b, F x, F y) {
    return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
  }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }

  static F load_f16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static F load_bf16(const std::uint16_t* p) { return {bf16(p), bf16(p + 8)}; }

  static I int_load(const void* p) {
    const auto* words = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  static I int_set(std::int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static I int_add(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static I int_or(I a, I b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
  static I int_and(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
  template <int kBits>
  static I shift_right(I a) {
    return {_mm256_srli_epi32(a.low, kBits), _mm256_srli_epi32(a.high, kBits)};
  }
  template <int kBits>
  static I shift_left(I a) {
    return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
  }
  static I shift_right_lanes(I a, I counts) {
    return {_mm256_srlv_epi32(a.low, counts.low), _mm256_srlv_epi32(a.high, counts.high)};
  }
  /// Lane i: the bytes pattern[4 i] .. pattern[4 i + 3] of the 16 in low and high, 0 where one is 128 or more.
  static I bytes_to_lanes(std::uint64_t low, std::uint64_t high, const std::uint8_t* pattern) {
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_set_epi64x(static_cast<std::int64_t>(high), static_cast<std::int64_t>(low)));
    const auto* patterns = reinterpret_cast<const __m256i*>(pattern);
    return {_mm256_shuffle_epi8(bytes, _mm256_loadu_si256(patterns)),
            _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(patterns + 1))};
  }
  static F to_float(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
  static I bits_of(F a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
  static F from_bits(I a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }

  /// The codes of kBits bits in the low bits of each lane as floats.
  template <int kBits>
  static F low_code(I a) {
    return to_float(int_and(a, int_set((1 << kBits) - 1)));
  }

  /// rows[i] lane j <-> rows[j] lane i.
  static void transpose(F (&rows)[16]) {
    __m256 quarter[4][8];  // top left, top right, bottom left, bottom right
    for (int i = 0; i < 8; ++i) {
      quarter[0][i] = rows[i].low;
      quarter[1][i] = rows[i].high;
      quarter[2][i] = rows[i + 8].low;
      quarter[3][i] = rows[i + 8].high;
    }
    for (auto& q : quarter) transpose_8(q);
    for (int i = 0; i < 8; ++i) {
      rows[i] = {quarter[0][i], quarter[2][i]};
      rows[i + 8] = {quarter[1][i], quarter[3][i]};
    }
  }

 private:
  static void transpose_8(__m256 (&r)[8]) {
    __m256 t[8];
    for (int i = 0; i < 8; i += 4) {
      const __m256d ab_low = _mm256_castps_pd(_mm256_unpacklo_ps(r[i], r[i + 1]));
      const __m256d ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(r[i], r[i + 1]));
      const __m256d cd_low = _mm256_castps_pd(_mm256_unpacklo_ps(r[i + 2], r[i + 3]));
      const __m256d cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(r[i + 2], r[i + 3]));
      t[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, cd_low));
      t[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, cd_low));
      t[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high));
      t[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high));
    }
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
      r[4 + c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
    }
  }
  static __m256 bf16(const std::uint16_t* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

}  // namespace memoir::kernels::cpu
