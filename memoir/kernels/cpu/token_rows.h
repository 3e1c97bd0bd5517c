#pragma once

// How the recurrent kernels find their inputs' rows and hand out states. No MLX.

#include <cstddef>

namespace memoir::kernels::cpu {

/// Float32 elements [B, T, H, D] or [B, T, D], the last axis side by side; strides in elements.
struct TokenRows {
  const float* data = nullptr;
  std::ptrdiff_t sequence_stride = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;

  const float* at(int sequence, int token, int head = 0) const {
    return data + sequence * sequence_stride + token * token_stride + head * head_stride;
  }
};

/// The real tokens of one sequence of a call, begin <= end; those before and after are padding.
struct TokenSpan {
  int begin;
  int end;
};

/// The states that a call reads and writes, each of the same shape.
struct StateArgs {
  const float* initial = nullptr;    // null: zeros
  float* final = nullptr;            // may be initial
  const TokenSpan* spans = nullptr;  // one for each sequence; null: every token is real

  /// States after some of the call's steps: captured[i] is the one after step steps[i]. Steps ascend, each from 1 to
  /// T - 1; a step counts padding too.
  int n_captured = 0;
  const int* steps = nullptr;
  float* const* captured = nullptr;

  TokenSpan span(int sequence, int n_tokens) const { return spans ? spans[sequence] : TokenSpan{0, n_tokens}; }
};

}  // namespace memoir::kernels::cpu
