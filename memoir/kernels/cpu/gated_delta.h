#pragma once

// The gated delta rule (Gated DeltaNet, arXiv:2412.06464), token by token. No MLX.
//
// Each value head h has a state S [Dv, Dk]; it reads the queries and keys of key head h / (Hv / Hk), or, where values
// are tiled, h % Hk. For each token
//   memory = g S k,   delta = beta (v - memory),   S = g S + delta k^T,   y = S q
// which is computed from the sums S k and S q over the old state, read together, as memory = g (S k) and
// y = g (S q) + (q k) delta.
//
// Exact: a state's elements are updated one token after the other whatever the call's length. Sums over Dk run in
// order, even and odd elements apart, then even + odd. Lanes are value columns, so blocks and threads don't enter.

#include "memoir/kernels/cpu/token_rows.h"

namespace memoir::kernels::cpu {

struct GatedDeltaArgs {
  int n_sequences = 0;
  int n_tokens = 0;
  int n_key_heads = 0;
  int n_value_heads = 0;  // a multiple of n_key_heads
  int key_dim = 0;
  int value_dim = 0;
  bool has_tiled_values = false;

  TokenRows queries;  // [B, T, Hk, Dk]
  TokenRows keys;     // [B, T, Hk, Dk]
  TokenRows values;   // [B, T, Hv, Dv]

  /// [B, T, Hv]: the logarithm of g, and beta. With a and dt_bias (both [Hv]) they are what the projections gave:
  /// log g = a softplus(decay + dt_bias), beta = sigmoid(beta).
  TokenRows decays;
  TokenRows betas;
  const float* a = nullptr;
  const float* dt_bias = nullptr;

  bool normalizes = false;  // queries and keys to length 1: x / sqrt(sum x^2 + eps)
  float eps = 1e-6F;
  float scale = 1;  // of the queries, after that

  StateArgs states;           // [B, Hv, Dv, Dk]
  float* y = nullptr;         // [B, T, Hv, Dv]; zeros for padding
  float* prepared = nullptr;  // prepared_floats(args) of scratch
};

/// Scratch for queries and keys as they are multiplied, and gates.
std::size_t prepared_floats(const GatedDeltaArgs& args);

void gated_delta(const GatedDeltaArgs& args);

}  // namespace memoir::kernels::cpu
