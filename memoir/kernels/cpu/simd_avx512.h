#pragma once

// Vectors of 16 lanes as one AVX-512 register. Included only by files compiled for it; nothing here may be used
// elsewhere.

#include <immintrin.h>

#include <cstdint>

namespace memoir::kernels::cpu {

struct Avx512 {
  using F = __m512;   // 16 float32
  using I = __m512i;  // 16 int32

  static constexpr int kRows = 6;        // 6 x kTiles sums fit the 32 registers
  static constexpr int kTiles = 4;       // multiplied side by side, so that their sums hide each other's latency
  static constexpr int kFewRows = 4;     // rows of attention whose sums for 4 keys fit
  static constexpr int kFixedRows = 4;   // the same where weights are quantized: two sums of integers for each output,
  static constexpr int kFixedTiles = 2;  // and one of floats

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float value) { return _mm512_set1_ps(value); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  /// a > b ? a : b.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  /// a < b ? x : y.
  static F less(F a, F b, F x, F y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
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
  static I int_add(I a, I b) { return _mm512_add_epi32(a, b); }
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
  static I shift_right_lanes(I a, I counts) { return _mm512_srlv_epi32(a, counts); }
  /// Lane i: the bytes pattern[4 i] .. pattern[4 i + 3] of the 16 in low and high, 0 where one is 128 or more.
  static I bytes_to_lanes(std::uint64_t low, std::uint64_t high, const std::uint8_t* pattern) {
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_set_epi64x(static_cast<std::int64_t>(high), static_cast<std::int64_t>(low)));
    const auto* patterns = reinterpret_cast<const __m256i*>(pattern);
    const __m256i first = _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(patterns));
    const __m256i second = _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(patterns + 1));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I bits_of(F a) { return _mm512_castps_si512(a); }
  static F from_bits(I a) { return _mm512_castsi512_ps(a); }

  static I to_nearest(F a) { return _mm512_cvtps_epi32(a); }
  static int int_max_of_lanes(I a) { return _mm512_reduce_max_epi32(a); }
  static int int_sum_of_lanes(I a) { return _mm512_reduce_add_epi32(a); }
  /// The low byte of each lane.
  static void store_low_bytes(std::int8_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }

  /// Sums of products of bytes: lane i adds codes (not negative, below 2^kBits) times values, its four bytes of each.
  /// A sum takes at most kQuads of 8 additions before dot_sum().
  using Dot = I;
  static Dot dot_zero() { return _mm512_setzero_si512(); }
  template <int kBits>
  static void dot(Dot& sum, I codes, I values) {
    if constexpr (kBits <= 4) {  // 8 * 2 * 15 * 128 < 2^15: all additions fit 16 bits
      sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(codes, values));
    } else if constexpr (kBits <= 6) {  // 2 * 63 * 128 < 2^15
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, values), _mm512_set1_epi16(1)));
    } else {
      const I even = _mm512_madd_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0xff)),
                                       _mm512_srai_epi16(_mm512_slli_epi16(values, 8), 8));
      const I odd = _mm512_madd_epi16(_mm512_srli_epi16(codes, 8), _mm512_srai_epi16(values, 8));
      sum = _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
    }
  }
  template <int kBits>
  static I dot_sum(Dot sum) {
    return kBits <= 4 ? _mm512_madd_epi16(sum, _mm512_set1_epi16(1)) : sum;
  }

  /// Lane i: that of i ^ kStep.
  template <int kStep>
  static F swapped(F a) {
    if constexpr (kStep >= 4) return _mm512_shuffle_f32x4(a, a, kStep == 8 ? 0x4e : 0xb1);
    return _mm512_permute_ps(a, kStep == 2 ? 0x4e : 0xb1);
  }
  static float first(F a) { return _mm512_cvtss_f32(a); }
  /// Quarter q: the q-th vector's lanes added 8, then 4 apart.
  static F quarter_sums(F a, F b, F c, F d) {
    const F ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const F cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }
  /// Lane 4 q + j: quarter q of the j-th vector, its lanes added 2, then 1 apart.
  static F sums_of_quarters(F a, F b, F c, F d) {
    const F ab = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const F cd = _mm512_add_ps(_mm512_shuffle_ps(c, d, 0x44), _mm512_shuffle_ps(c, d, 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
  }

  /// rows[i] lane j <-> rows[j] lane i.
  [[gnu::always_inline]] static void transpose(F (&rows)[16]) {
    F t[16];
    for (int i = 0; i < 16; i += 4) {
      const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(rows[i], rows[i + 1]));
      const __m512d ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(rows[i], rows[i + 1]));
      const __m512d cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(rows[i + 2], rows[i + 3]));
      const __m512d cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(rows[i + 2], rows[i + 3]));
      t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low));
      t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low));
      t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high));
      t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high));
    }
    // t[4 q + c]: in its quarter p the rows 4 q .. 4 q + 3 of column 4 p + c.
    for (int c = 0; c < 4; ++c) {
      const F even_01 = _mm512_shuffle_f32x4(t[c], t[4 + c], 0x88);
      const F odd_01 = _mm512_shuffle_f32x4(t[c], t[4 + c], 0xdd);
      const F even_23 = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0x88);
      const F odd_23 = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0xdd);
      rows[c] = _mm512_shuffle_f32x4(even_01, even_23, 0x88);
      rows[4 + c] = _mm512_shuffle_f32x4(odd_01, odd_23, 0x88);
      rows[8 + c] = _mm512_shuffle_f32x4(even_01, even_23, 0xdd);
      rows[12 + c] = _mm512_shuffle_f32x4(odd_01, odd_23, 0xdd);
    }
  }
};

}  // namespace memoir::kernels::cpu
