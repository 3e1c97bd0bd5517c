#pragma once

// The two 16-bit floats that weights are stored in, as bit patterns, and their conversions.
//
//   float16  (IEEE 754 binary16): sign, 5 bits of exponent with bias 15, 10 bits of fraction.
//   bfloat16: the upper half of a float32.
// To float32 is exact. To 16 bits rounds to nearest, ties to even; what is too large becomes infinity, NaN stays NaN.
// No state, any thread.

#include <bit>
#include <cstdint>

namespace memoir {

constexpr float float16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  std::uint32_t magnitude = ((exponent + 112) << 23) | (fraction << 13);  // 112 = 127 - 15
  if (exponent == 0) {
    magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  } else if (exponent == 31) {
    magnitude = 0x7F800000U | (fraction << 13);
  }
  return std::bit_cast<float>(sign | magnitude);
}

constexpr std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t rounded = 0;
  if (magnitude > 0x7F800000U) {
    rounded = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520, half way between the largest float16 and the next step
    rounded = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14 the steps are 2^-24, those of a float32 between 0.5 and 1
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    rounded = (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
  }
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | rounded);
}

/// As float_to_float16, but what is finite stays finite: a value beyond the type's largest, 65504, becomes that.
constexpr std::uint16_t float_to_finite_float16(float value) {
  const std::uint16_t half = float_to_float16(value);
  const bool is_finite = (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) < 0x7F800000U;
  const bool is_infinity = (half & 0x7FFFU) == 0x7C00U;
  return is_finite && is_infinity ? static_cast<std::uint16_t>(half - 1) : half;
}

constexpr float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

constexpr std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const std::uint32_t rounded = is_nan ? bits | 0x00400000U : bits + 0x7FFFU + ((bits >> 16) & 1U);
  return static_cast<std::uint16_t>(rounded >> 16);
}

}  // namespace memoir
