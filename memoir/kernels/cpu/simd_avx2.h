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

  static constexpr int kRows = 3;        // 3 x kTiles sums of two registers each leave some of the 16
  static constexpr int kTiles = 2;       // multiplied side by side, so that their sums hide each other's latency
  static constexpr int kFewRows = 1;     // rows of attention whose sums for 4 keys fit
  static constexpr int kFixedRows = 2;   // the same where weights are quantized: two sums of integers for each output,
  static constexpr int kFixedTiles = 1;  // and one of floats

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

  static I to_nearest(F a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
  static int int_max_of_lanes(I a) {
    std::int32_t lanes[16];
    int_store(lanes, a);
    std::int32_t largest = lanes[0];
    for (const std::int32_t lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
  }
  static int int_sum_of_lanes(I a) {
    std::int32_t lanes[16];
    int_store(lanes, a);
    std::int32_t sum = 0;
    for (const std::int32_t lane : lanes) sum += lane;
    return sum;
  }
  /// The low byte of each lane.
  static void store_low_bytes(std::int8_t* p, I a) {
    const __m256i low_bytes = _mm256_set1_epi32(0xff);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(a.low, low_bytes), _mm256_and_si256(a.high, low_bytes));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
  }

  /// Sums of products of bytes: lane i adds codes (not negative, below 2^kBits) times values, its four bytes of each.
  /// A sum takes at most 8 additions before dot_sum().
  using Dot = I;
  static Dot dot_zero() { return int_set(0); }
  template <int kBits>
  static void dot(Dot& sum, I codes, I values) {
    sum = {half_dot<kBits>(sum.low, codes.low, values.low), half_dot<kBits>(sum.high, codes.high, values.high)};
  }
  template <int kBits>
  static I dot_sum(Dot sum) {
    if constexpr (kBits > 4) return sum;
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(sum.low, ones), _mm256_madd_epi16(sum.high, ones)};
  }

  /// Lane i: that of i ^ kStep.
  template <int kStep>
  static F swapped(F a) {
    if constexpr (kStep == 8) return {a.high, a.low};
    if constexpr (kStep == 4)
      return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
    constexpr int kOrder = kStep == 2 ? 0x4e : 0xb1;
    return {_mm256_permute_ps(a.low, kOrder), _mm256_permute_ps(a.high, kOrder)};
  }
  static float first(F a) { return _mm256_cvtss_f32(a.low); }
  /// Quarter q: the q-th vector's lanes added 8, then 4 apart.
  static F quarter_sums(F a, F b, F c, F d) {
    return {quarter_pair(_mm256_add_ps(a.low, a.high), _mm256_add_ps(b.low, b.high)),
            quarter_pair(_mm256_add_ps(c.low, c.high), _mm256_add_ps(d.low, d.high))};
  }
  /// Lane 4 q + j: quarter q of the j-th vector, its lanes added 2, then 1 apart.
  static F sums_of_quarters(F a, F b, F c, F d) {
    return {half_of_quarters(a.low, b.low, c.low, d.low), half_of_quarters(a.high, b.high, c.high, d.high)};
  }

  /// rows[i] lane j <-> rows[j] lane i.
  [[gnu::always_inline]] static void transpose(F (&rows)[16]) {
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
  static __m256 quarter_pair(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  static __m256 half_of_quarters(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 ab = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    const __m256 cd = _mm256_add_ps(_mm256_shuffle_ps(c, d, 0x44), _mm256_shuffle_ps(c, d, 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd));
  }
  static void int_store(std::int32_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.high);
  }
  template <int kBits>
  static __m256i half_dot(__m256i sum, __m256i codes, __m256i values) {
    if constexpr (kBits <= 4) {  // 8 * 2 * 15 * 128 < 2^15: all additions fit 16 bits
      return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, values));
    } else if constexpr (kBits <= 6) {  // 2 * 63 * 128 < 2^15
      const __m256i ones = _mm256_set1_epi16(1);
      return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, values), ones));
    } else {
      const __m256i even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0xff)),
                                             _mm256_srai_epi16(_mm256_slli_epi16(values, 8), 8));
      const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), _mm256_srai_epi16(values, 8));
      return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
    }
  }
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
