#pragma once

// MXFP4 (OCP Microscaling Formats 1.0): groups of 32 values, each a 4-bit float, with a power of two for the group. As
// MLX's affine form, which the kernels multiply with. No MLX.
//
// A 4-bit float (E2M1: sign in bit 3, two bits of exponent, one of fraction) is a multiple of 0.5 from -6 to 6: twice
// it plus 16 is a code c of 5 bits, and the value 2^(e - 127) * (c - 16) / 2. So the scale is 2^(e - 128), the bias -16
// times that: both exact in bfloat16, and so is the value in float32. The bias is what the scale implies, and packed
// weights leave it out: 5.5 bits a value where MXFP4 takes 4.25. No state, any thread.

#include <cstddef>
#include <cstdint>
#include <span>

namespace memoir {

inline constexpr int kMxfp4Group = 32;
inline constexpr int kMxfp4AffineBits = 5;

/// Which values the 16 bytes of a group hold.
enum class Mxfp4Order : std::uint8_t {
  kPairs,   // byte j: value 2j in the low, 2j + 1 in the high half (gpt-oss as published, MLX)
  kHalves,  // byte j: value j in the low, j + 16 in the high half (GGUF)
};

/// Where the affine form of n groups is written: 5 words of codes, low bits first, a scale and a bias for each.
struct Mxfp4Affine {
  std::span<std::uint32_t> words;   // n * 5
  std::span<std::uint16_t> scales;  // n, bfloat16
  std::span<std::uint16_t> biases;  // n, bfloat16
};

/// codes: 16 bytes a group; exponents: e of each group, exponent_stride bytes apart and the codes code_stride.
struct Mxfp4Groups {
  const std::byte* codes;
  std::size_t code_stride;
  const std::byte* exponents;
  std::size_t exponent_stride;
  Mxfp4Order order;
};

/// Returns false if an exponent is above 251, with which the bias passes bfloat16 (255 stands for NaN); `out` is then
/// partly written. The number of groups is that of out.scales; std::invalid_argument if the spans don't fit each other.
[[nodiscard]] bool mxfp4_to_affine(const Mxfp4Groups& groups, const Mxfp4Affine& out);

}  // namespace memoir
