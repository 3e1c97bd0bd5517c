#pragma once

// Vectors of 16 lanes as plain arrays: right on every machine, and what the others are tested against.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include "memoir/base/half.h"

namespace memoir::kernels::cpu {

struct Portable {
  struct F {
    float lane[16];
  };
  struct I {
    std::int32_t lane[16];
  };

  static constexpr int kRows = 2;       // multiplied at once,
  static constexpr int kTiles = 4;      // with as many tiles side by side
  static constexpr int kFewRows = 1;    // rows of attention at once, where they are few
  static constexpr int kFixedRows = 1;  // and where weights are quantized
  static constexpr int kFixedTiles = 1;

  static F zero() { return set(0); }
  static F set(float value) {
    return each([&](int) { return value; });
  }
  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, F a) { std::memcpy(p, a.lane, sizeof(a.lane)); }
  static F add(F a, F b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  /// a > b ? a : b.
  static F max(F a, F b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  /// a < b ? x : y.
  static F less(F a, F b, F x, F y) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static F load_f16(const std::uint16_t* p) {
    return each([&](int i) { return float16_to_float(p[i]); });
  }
  static F load_bf16(const std::uint16_t* p) {
    return each([&](int i) { return bfloat16_to_float(p[i]); });
  }

  static I int_load(const void* p) {
    I a;
    std::memcpy(a.lane, p, sizeof(a.lane));
    return a;
  }
  static I int_set(std::int32_t value) {
    return int_each([&](int) { return static_cast<std::uint32_t>(value); });
  }
  static I int_add(I a, I b) {
    return int_each([&](int i) { return bits(a, i) + bits(b, i); });
  }
  static I int_or(I a, I b) {
    return int_each([&](int i) { return bits(a, i) | bits(b, i); });
  }
  static I int_and(I a, I b) {
    return int_each([&](int i) { return bits(a, i) & bits(b, i); });
  }
  template <int kBits>
  static I shift_right(I a) {
    return int_each([&](int i) { return bits(a, i) >> kBits; });
  }
  template <int kBits>
  static I shift_left(I a) {
    return int_each([&](int i) { return bits(a, i) << kBits; });
  }
  static I shift_right_lanes(I a, I counts) {
    return int_each([&](int i) { return bits(a, i) >> bits(counts, i); });
  }
  /// Lane i: the bytes pattern[4 i] .. pattern[4 i + 3] of the 16 in low and high, 0 where one is 128 or more.
  static I bytes_to_lanes(std::uint64_t low, std::uint64_t high, const std::uint8_t* pattern) {
    return int_each([&](int i) {
      std::uint32_t value = 0;
      for (int b = 0; b < 4; ++b) {
        const std::uint32_t index = pattern[4 * i + b];
        if (index >= 128) continue;
        value |= static_cast<std::uint32_t>(((index < 8 ? low : high) >> (index % 8 * 8)) & 0xFFU) << (8 * b);
      }
      return value;
    });
  }
  static F to_float(I a) {
    return each([&](int i) { return static_cast<float>(a.lane[i]); });
  }
  static I bits_of(F a) {
    I bits;
    std::memcpy(bits.lane, a.lane, sizeof(a.lane));
    return bits;
  }
  static F from_bits(I a) {
    F value;
    std::memcpy(value.lane, a.lane, sizeof(a.lane));
    return value;
  }

  static I to_nearest(F a) {  // to even where two are as near
    return int_each([&](int i) { return std::lrint(a.lane[i]); });
  }
  static int int_max_of_lanes(I a) { return *std::max_element(a.lane, a.lane + 16); }
  static int int_sum_of_lanes(I a) { return std::accumulate(a.lane, a.lane + 16, 0); }
  /// The low byte of each lane.
  static void store_low_bytes(std::int8_t* p, I a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.lane[i] & 0xff);
  }

  /// Sums of products of bytes: lane i adds codes (not negative, below 2^kBits) times values, its four bytes of each.
  using Dot = I;
  static Dot dot_zero() { return int_set(0); }
  template <int kBits>
  static void dot(Dot& sum, I codes, I values) {
    std::uint8_t code[64];
    std::int8_t value[64];
    std::memcpy(code, codes.lane, sizeof(code));
    std::memcpy(value, values.lane, sizeof(value));
    for (int i = 0; i < 16; ++i) {
      for (int b = 4 * i; b < 4 * i + 4; ++b) sum.lane[i] += code[b] * value[b];
    }
  }
  template <int kBits>
  static I dot_sum(Dot sum) {
    return sum;
  }

  /// Lane i: that of i ^ kStep.
  template <int kStep>
  static F swapped(F a) {
    return each([&](int i) { return a.lane[i ^ kStep]; });
  }
  static float first(F a) { return a.lane[0]; }
  /// Quarter q: the q-th vector's lanes added 8, then 4 apart.
  static F quarter_sums(F a, F b, F c, F d) {
    const F* vectors[4] = {&a, &b, &c, &d};
    return each([&](int i) {
      const float* lane = vectors[i / 4]->lane + i % 4;
      return (lane[0] + lane[8]) + (lane[4] + lane[12]);
    });
  }
  /// Lane 4 q + j: quarter q of the j-th vector, its lanes added 2, then 1 apart.
  static F sums_of_quarters(F a, F b, F c, F d) {
    const F* vectors[4] = {&a, &b, &c, &d};
    return each([&](int i) {
      const float* lane = vectors[i % 4]->lane + i / 4 * 4;
      return (lane[0] + lane[2]) + (lane[1] + lane[3]);
    });
  }

  /// rows[i] lane j <-> rows[j] lane i.
  static void transpose(F (&rows)[16]) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < i; ++j) std::swap(rows[i].lane[j], rows[j].lane[i]);
    }
  }

 private:
  static std::uint32_t bits(const I& a, int i) { return static_cast<std::uint32_t>(a.lane[i]); }

  template <typename Function>
  static F each(const Function& function) {
    F a;
    for (int i = 0; i < 16; ++i) a.lane[i] = function(i);
    return a;
  }
  template <typename Function>
  static I int_each(const Function& function) {
    I a;
    for (int i = 0; i < 16; ++i) a.lane[i] = static_cast<std::int32_t>(function(i));
    return a;
  }
};

}  // namespace memoir::kernels::cpu
