#pragma once

// Rows of activations in fixed point, the form in which quantized weights are multiplied with them (matmul.h). No MLX.
//
// A row is cut into blocks of kBlock = 32 values. A block has one power of two as its scale, chosen so that its largest
// value takes 22 bits, and each value x becomes the nearest integer q to x / scale: |q| <= 2^22, an error of at most
// 2^-22 of the block's largest value, less than what float32 sums of that length lose. q is kept as three digits of
// base 256, the most significant first, each from -128 to 127: q = (d0 * 256 + d1) * 256 + d2. Products of weights'
// codes with digits are products of bytes, of which a processor does four times as many at once as of floats.
//
// Where the largest value of a block is below 2^-105, the scale is 2^-126, and the error at most half of that.
//
// Where 8 bits are asked for (set_n_digits), there is one digit, from -127 to 127, and the scale is the largest
// value by 127: what other runtimes multiply quantized weights with.

#include <cstdint>

#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels::cpu {

inline constexpr int kDigits = 3;
inline constexpr int kFixedBits = 22;

struct FixedBlock {
  std::int8_t digits[kDigits][kBlock];  // all of them, or the first alone
  float scale;                          // NaN where a value is not finite, with digits of zero
  float sum;                            // of the block's q, times scale: what a weight's bias is multiplied with
};

// The function of a Kernels (kernels.h):
//
// fix_row: one row of n values, a multiple of kBlock, to n / kBlock blocks of n_digits: kDigits or 1.

/// How many digits products of this process take: kDigits (the default) or 1, else std::invalid_argument. Not to be
/// changed between passes over one cache: the bits of a prefix would no longer be those of computing it again.
void set_n_digits(int n);
int n_digits();

}  // namespace memoir::kernels::cpu
