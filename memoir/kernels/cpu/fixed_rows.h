#pragma once

// Rows of activations in fixed point, the form in which quantized weights are multiplied with them (matmul.h). No MLX.
//
// A row is cut into blocks of kBlock = 32 values. A block has a scale, its largest magnitude by kLargestFixed, and each
// value x becomes the nearest integer q to x / scale: an error of at most 1 / 65278 of the block's largest value. q is
// kept as two digits of base 256, each from -128 to 127: q = high * 256 + low. Products of weights' codes with digits
// are products of bytes, of which a processor does four times as many at once as of floats.
//
// Where the largest value of a block is below 2^-100, the scale is that of 2^-100.

#include <cstdint>

#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels::cpu {

inline constexpr int kDigits = 2;
inline constexpr int kLargestFixed = 127 * 256 + 127;

struct FixedBlock {
  std::int8_t digits[kDigits][kBlock];  // high, low
  float scale;                          // NaN where a value is not finite, with digits of zero
  float sum;                            // of the block's q, times scale: what a weight's bias is multiplied with
};

// The function of a Kernels (kernels.h):
//
// fix_row: one row of n values, a multiple of kBlock, to n / kBlock blocks.

}  // namespace memoir::kernels::cpu
