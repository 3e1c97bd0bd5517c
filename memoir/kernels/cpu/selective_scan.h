#pragma once

// Selective state space scans, token by token. No MLX.
//
// Mamba 2 (arXiv:2405.21060): head h has a state S [P, N] and one decay; group h / (H / G) gives it B and C.
//   dt = clamp(softplus(dt + dt_bias)),   S = exp(dt A) S + (dt x) B^T,   y = S C + D x
// Mamba 1 (arXiv:2312.00752): the same with a decay for each channel and state: A is [P, N], dt [P], H = G = 1.
//
// Exact: as gated_delta.h; sums over N run in order in four parts, element n in part n % 4, added as
// (0 + 1) + (2 + 3). Lanes are channels.

#include "memoir/kernels/cpu/token_rows.h"

namespace memoir::kernels::cpu {

struct SelectiveScanArgs {
  int n_sequences = 0;
  int n_tokens = 0;
  int n_heads = 0;
  int head_dim = 0;
  int n_groups = 0;  // a divisor of n_heads
  int state_dim = 0;
  bool is_diagonal = false;  // Mamba 1

  TokenRows x;                     // [B, T, H, P]
  TokenRows dt;                    // [B, T, H]; Mamba 1: [B, T, P]
  TokenRows b;                     // [B, T, G, N]
  TokenRows c;                     // [B, T, G, N]
  const float* a = nullptr;        // [H]; Mamba 1: [P, N]
  const float* d = nullptr;        // [H] or null; Mamba 1: [P]
  const float* dt_bias = nullptr;  // [H] or null; Mamba 1: [P]
  bool has_softplus = true;
  bool is_clamped = false;  // dt to [dt_min, dt_max]
  float dt_min = 0;
  float dt_max = 0;

  StateArgs states;           // [B, H, P, N]
  float* y = nullptr;         // [B, T, H, P]; zeros for padding
  float* prepared = nullptr;  // prepared_floats(args) of scratch
};

/// Scratch for steps and decays; 0 for Mamba 1.
std::size_t prepared_floats(const SelectiveScanArgs& args);

void selective_scan(const SelectiveScanArgs& args);

}  // namespace memoir::kernels::cpu
