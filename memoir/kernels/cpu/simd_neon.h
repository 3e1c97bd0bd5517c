#pragma once

// Vectors of 16 lanes as four NEON registers, with what every 64-bit Arm processor has. Included only by files compiled
// for it; nothing here may be used elsewhere.

#include <arm_neon.h>

#include <cstdint>

namespace memoir::kernels::cpu {

struct Neon {
  struct F {
    float32x4_t q0, q1, q2, q3;
  };
  struct I {
    uint32x4_t q0, q1, q2, q3;
  };

  static constexpr int kRows = 2;        // 2 x kTiles sums of four registers each leave half of the 32
  static constexpr int kTiles = 2;       // multiplied side by side, so that their sums hide each other's latency
  static constexpr int kFewRows = 1;     // rows of attention whose sums for 4 keys fit
  static constexpr int kFixedRows = 1;   // the same where weights are quantized: up to eight registers for each of the
  static constexpr int kFixedTiles = 1;  // two sums of an output

  static F zero() { return set(0); }
  static F set(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value), vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
  static void store(float* p, F a) {
    vst1q_f32(p, a.q0);
    vst1q_f32(p + 4, a.q1);
    vst1q_f32(p + 8, a.q2);
    vst1q_f32(p + 12, a.q3);
  }
  static F add(F a, F b) {
    return each<F>([](auto x, auto y) { return vaddq_f32(x, y); }, a, b);
  }
  static F sub(F a, F b) {
    return each<F>([](auto x, auto y) { return vsubq_f32(x, y); }, a, b);
  }
  static F mul(F a, F b) {
    return each<F>([](auto x, auto y) { return vmulq_f32(x, y); }, a, b);
  }
  static F div(F a, F b) {
    return each<F>([](auto x, auto y) { return vdivq_f32(x, y); }, a, b);
  }
  /// a > b ? a : b. (The instruction for a maximum gives NaN where either is.)
  static F max(F a, F b) {
    return each<F>([](auto x, auto y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }, a, b);
  }
  /// a < b ? x : y.
  static F less(F a, F b, F x, F y) {
    return each<F>([](auto r, auto s, auto t, auto u) { return vbslq_f32(vcltq_f32(r, s), t, u); }, a, b, x, y);
  }
  /// a * b + c, rounded once.
  static F fma(F a, F b, F c) {
    return each<F>([](auto x, auto y, auto z) { return vfmaq_f32(z, x, y); }, a, b, c);
  }

  static F load_f16(const std::uint16_t* p) {
    const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(p));
    const float16x8_t high = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
            vcvt_high_f32_f16(high)};
  }
  static F load_bf16(const std::uint16_t* p) {
    const uint16x8_t zeros = vdupq_n_u16(0);
    const uint16x8_t low = vld1q_u16(p);
    const uint16x8_t high = vld1q_u16(p + 8);
    return {vreinterpretq_f32_u16(vzip1q_u16(zeros, low)), vreinterpretq_f32_u16(vzip2q_u16(zeros, low)),
            vreinterpretq_f32_u16(vzip1q_u16(zeros, high)), vreinterpretq_f32_u16(vzip2q_u16(zeros, high))};
  }

  static I int_load(const void* p) {
    const auto* bytes = static_cast<const std::uint8_t*>(p);
    return {vreinterpretq_u32_u8(vld1q_u8(bytes)), vreinterpretq_u32_u8(vld1q_u8(bytes + 16)),
            vreinterpretq_u32_u8(vld1q_u8(bytes + 32)), vreinterpretq_u32_u8(vld1q_u8(bytes + 48))};
  }
  static I int_set(std::int32_t value) {
    const uint32x4_t lanes = vdupq_n_u32(static_cast<std::uint32_t>(value));
    return {lanes, lanes, lanes, lanes};
  }
  static I int_add(I a, I b) {
    return each<I>([](auto x, auto y) { return vaddq_u32(x, y); }, a, b);
  }
  static I int_or(I a, I b) {
    return each<I>([](auto x, auto y) { return vorrq_u32(x, y); }, a, b);
  }
  static I int_and(I a, I b) {
    return each<I>([](auto x, auto y) { return vandq_u32(x, y); }, a, b);
  }
  template <int kBits>
  static I shift_right(I a) {
    if constexpr (kBits == 0) {  // which the instruction can't
      return a;
    } else {
      return each<I>([](auto x) { return vshrq_n_u32(x, kBits); }, a);
    }
  }
  template <int kBits>
  static I shift_left(I a) {
    return each<I>([](auto x) { return vshlq_n_u32(x, kBits); }, a);
  }
  static I shift_right_lanes(I a, I counts) {  // to the left by the negative
    return each<I>([](auto x, auto n) { return vshlq_u32(x, vnegq_s32(vreinterpretq_s32_u32(n))); }, a, counts);
  }
  /// Lane i: the bytes pattern[4 i] .. pattern[4 i + 3] of the 16 in low and high, 0 where one is 128 or more.
  static I bytes_to_lanes(std::uint64_t low, std::uint64_t high, const std::uint8_t* pattern) {
    const uint8x16_t bytes = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)));
    return each<I>([&](auto at) { return vreinterpretq_u32_u8(vqtbl1q_u8(bytes, vreinterpretq_u8_u32(at))); },
                   int_load(pattern));
  }
  static F to_float(I a) {
    return each<F>([](auto x) { return vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }, a);
  }
  static I bits_of(F a) {
    return each<I>([](auto x) { return vreinterpretq_u32_f32(x); }, a);
  }
  static F from_bits(I a) {
    return each<F>([](auto x) { return vreinterpretq_f32_u32(x); }, a);
  }

  static I to_nearest(F a) {  // to even where two are as near
    return each<I>([](auto x) { return vreinterpretq_u32_s32(vcvtnq_s32_f32(x)); }, a);
  }
  static int int_max_of_lanes(I a) {
    const int32x4_t low = vmaxq_s32(vreinterpretq_s32_u32(a.q0), vreinterpretq_s32_u32(a.q1));
    const int32x4_t high = vmaxq_s32(vreinterpretq_s32_u32(a.q2), vreinterpretq_s32_u32(a.q3));
    return vmaxvq_s32(vmaxq_s32(low, high));
  }
  static int int_sum_of_lanes(I a) {
    const uint32x4_t sums = vaddq_u32(vaddq_u32(a.q0, a.q1), vaddq_u32(a.q2, a.q3));
    return vaddvq_s32(vreinterpretq_s32_u32(sums));
  }
  /// The low byte of each lane.
  static void store_low_bytes(std::int8_t* p, I a) {
    const uint16x8_t low = vcombine_u16(vmovn_u32(a.q0), vmovn_u32(a.q1));
    const uint16x8_t high = vcombine_u16(vmovn_u32(a.q2), vmovn_u32(a.q3));
    vst1q_s8(p, vreinterpretq_s8_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high))));
  }

  /// Sums of products of bytes: lane i adds codes (not negative, below 2^kBits) times values, its four bytes of each.
  /// A sum takes at most 8 additions before dot_sum().
  ///
  /// Of each register's 16 products the first 8 are added to `low` and the others to `high`. Bytes are multiplied as
  /// signed: codes of 8 bits less 128, and 128 times the values is added at the end.
  struct QuarterDot {
    int32x4_t low, high;  // up to 5 bits: 8 sums of 16 bits each, of single products; else of pairs of them
    int32x4_t values;     // 8 bits: sums of each lane's four
  };
  struct Dot {
    QuarterDot q0, q1, q2, q3;
  };
  static Dot dot_zero() {
    const QuarterDot zero = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
    return {zero, zero, zero, zero};
  }
  template <int kBits>
  [[gnu::always_inline]] static void dot(Dot& sum, I codes, I values) {
    sum = each<Dot>([](auto s, auto c, auto v) { return quarter_dot<kBits>(s, c, v); }, sum, codes, values);
  }
  template <int kBits>
  static I dot_sum(Dot sum) {
    return each<I>([](auto s) { return quarter_dot_sum<kBits>(s); }, sum);
  }

  /// Lane i: that of i ^ kStep.
  template <int kStep>
  static F swapped(F a) {
    if constexpr (kStep == 8) return {a.q2, a.q3, a.q0, a.q1};
    if constexpr (kStep == 4) return {a.q1, a.q0, a.q3, a.q2};
    if constexpr (kStep == 2) {
      return each<F>([](auto x) { return vextq_f32(x, x, 2); }, a);
    } else {
      return each<F>([](auto x) { return vrev64q_f32(x); }, a);
    }
  }
  static float first(F a) { return vgetq_lane_f32(a.q0, 0); }
  /// Quarter q: the q-th vector's lanes added 8, then 4 apart.
  static F quarter_sums(F a, F b, F c, F d) {
    return {sum_of_registers(a), sum_of_registers(b), sum_of_registers(c), sum_of_registers(d)};
  }
  /// Lane 4 q + j: quarter q of the j-th vector, its lanes added 2, then 1 apart.
  static F sums_of_quarters(F a, F b, F c, F d) {
    return each<F>(
        [](auto r, auto s, auto t, auto u) {
          return vpaddq_f32(vaddq_f32(low_halves(r, s), high_halves(r, s)),
                            vaddq_f32(low_halves(t, u), high_halves(t, u)));
        },
        a, b, c, d);
  }

  /// rows[i] lane j <-> rows[j] lane i.
  [[gnu::always_inline]] static void transpose(F (&rows)[16]) {
    F columns[16];
    transpose_quarter<&F::q0>(rows, columns);
    transpose_quarter<&F::q1>(rows, columns + 4);
    transpose_quarter<&F::q2>(rows, columns + 8);
    transpose_quarter<&F::q3>(rows, columns + 12);
    for (int i = 0; i < 16; ++i) rows[i] = columns[i];
  }

 protected:
  // function of each register of the vectors.
  template <typename Result, typename Function, typename... Vectors>
  [[gnu::always_inline]] static Result each(const Function& function, const Vectors&... vectors) {
    return {function(vectors.q0...), function(vectors.q1...), function(vectors.q2...), function(vectors.q3...)};
  }
  // Codes of 8 bits as signed bytes, 128 less.
  template <int kBits>
  static int8x16_t signed_codes(uint32x4_t codes) {
    const uint8x16_t bytes = vreinterpretq_u8_u32(codes);
    return vreinterpretq_s8_u8(kBits == 8 ? veorq_u8(bytes, vdupq_n_u8(0x80)) : bytes);
  }

 private:
  template <int kBits>
  static QuarterDot quarter_dot(QuarterDot sum, uint32x4_t codes, uint32x4_t values) {
    const int8x16_t c = signed_codes<kBits>(codes);
    const int8x16_t v = vreinterpretq_s8_u32(values);
    if constexpr (kBits <= 5) {  // 8 * 31 * 128 < 2^15: all additions fit 16 bits
      const int16x8_t low = vmlal_s8(vreinterpretq_s16_s32(sum.low), vget_low_s8(c), vget_low_s8(v));
      const int16x8_t high = vmlal_high_s8(vreinterpretq_s16_s32(sum.high), c, v);
      return {vreinterpretq_s32_s16(low), vreinterpretq_s32_s16(high), sum.values};
    } else {  // 128 * 128 < 2^15: one product fits them, and pairs are added in 32 bits
      sum.low = vpadalq_s16(sum.low, vmull_s8(vget_low_s8(c), vget_low_s8(v)));
      sum.high = vpadalq_s16(sum.high, vmull_high_s8(c, v));
      if constexpr (kBits == 8) sum.values = vpadalq_s16(sum.values, vpaddlq_s8(v));
      return sum;
    }
  }
  template <int kBits>
  static uint32x4_t quarter_dot_sum(QuarterDot sum) {
    if constexpr (kBits <= 5) {
      sum.low = vpaddlq_s16(vreinterpretq_s16_s32(sum.low));
      sum.high = vpaddlq_s16(vreinterpretq_s16_s32(sum.high));
    }
    const int32x4_t products = vpaddq_s32(sum.low, sum.high);
    return vreinterpretq_u32_s32(kBits == 8 ? vaddq_s32(products, vshlq_n_s32(sum.values, 7)) : products);
  }

  static float32x4_t sum_of_registers(F a) { return vaddq_f32(vaddq_f32(a.q0, a.q2), vaddq_f32(a.q1, a.q3)); }
  static float32x4_t low_halves(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static float32x4_t high_halves(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  // This quarter of the rows becomes four columns.
  template <float32x4_t F::*kQuarter>
  static void transpose_quarter(const F (&rows)[16], F* columns) {
    transpose_4<kQuarter, &F::q0>(rows, columns);
    transpose_4<kQuarter, &F::q1>(rows + 4, columns);
    transpose_4<kQuarter, &F::q2>(rows + 8, columns);
    transpose_4<kQuarter, &F::q3>(rows + 12, columns);
  }
  template <float32x4_t F::*kFrom, float32x4_t F::*kTo>
  static void transpose_4(const F* rows, F* columns) {
    const float32x4_t even_01 = vtrn1q_f32(rows[0].*kFrom, rows[1].*kFrom);
    const float32x4_t odd_01 = vtrn2q_f32(rows[0].*kFrom, rows[1].*kFrom);
    const float32x4_t even_23 = vtrn1q_f32(rows[2].*kFrom, rows[3].*kFrom);
    const float32x4_t odd_23 = vtrn2q_f32(rows[2].*kFrom, rows[3].*kFrom);
    columns[0].*kTo = low_halves(even_01, even_23);
    columns[1].*kTo = low_halves(odd_01, odd_23);
    columns[2].*kTo = high_halves(even_01, even_23);
    columns[3].*kTo = high_halves(odd_01, odd_23);
  }
};

}  // namespace memoir::kernels::cpu
