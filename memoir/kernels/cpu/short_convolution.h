#pragma once

// Causal convolution of each channel over its last few inputs, with the inputs before the call carried as a tail. No
// MLX.
//
// y[t] = bias + sum over j of weight[j] x[t - (K - 1) + j], j in order, one fused multiply-add each; then SiLU where it
// is asked for. Every output depends on K inputs alone, so that splits of a call, blocks and threads don't enter.

#include "memoir/kernels/cpu/token_rows.h"

namespace memoir::kernels::cpu {

constexpr int kMaxConvolutionWidth = 32;

struct ShortConvolutionArgs {
  int n_sequences = 0;
  int n_tokens = 0;
  int n_channels = 0;
  int width = 0;                  // K, from 1 to kMaxConvolutionWidth
  TokenRows x;                    // [B, T, C]
  const float* weight = nullptr;  // [K, C]; the last row is multiplied with the newest input
  const float* bias = nullptr;    // [C] or null
  bool has_silu = false;
  StateArgs states;    // [B, K - 1, C]: the newest inputs, oldest first
  float* y = nullptr;  // [B, T, C]; zeros for padding
};

void short_convolution(const ShortConvolutionArgs& args);

}  // namespace memoir::kernels::cpu
