#pragma once

// New rows of keys or values into a cache's buffer, turned to the buffer's form on the way. No MLX.
//
// Dense elements are rounded to nearest, ties to even; finite ones stay finite in float16 (base/half.h). Codes are
// those of mx::quantize of the rounded elements, to the bit: for each group scale = (max - min) / (2^bits - 1), at
// least 1e-7, signed and then adjusted so that the edge of larger magnitude (which is the bias) falls on a code; code =
// rint((x - bias) / scale), clamped.

#include <span>

#include "memoir/kernels/cpu/attention.h"

namespace memoir::kernels::cpu {

/// Consecutive rows of a buffer.
struct RowRun {
  int begin_row;
  int n_rows;
};

/// One buffer and what goes into it.
struct KvWriteArgs {
  int n_sequences;
  int n_heads;
  int n_tokens;
  const float* x;  // [n_sequences, n_heads, n_tokens, rows.dim] by strides, a row's elements side by side
  std::ptrdiff_t x_sequence_stride;
  std::ptrdiff_t x_head_stride;
  std::ptrdiff_t x_row_stride;
  KvRows rows;  // of sequence 0; its pointers are written to. rows.dim a multiple of the group if quantized
  std::ptrdiff_t sequence_stride;        // elements between the sequences' data
  std::ptrdiff_t scale_sequence_stride;  // and their scales and biases
  std::span<const RowRun> runs;          // token 0 goes to the first row of the first run and so on; n_tokens rows
};

void write_rows(const KvWriteArgs& args);

}  // namespace memoir::kernels::cpu
