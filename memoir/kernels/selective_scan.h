#pragma once

// Selective state space scans: Mamba 2 (arXiv:2405.21060; Falcon-H1, Granite hybrids, Nemotron-H) and Mamba 1
// (arXiv:2312.00752; Jamba, Falcon-Mamba).
//
//   Mamba 2: head h has a state S [P, N]; group h / (H / G) gives it B and C.
//     dt = clamp(softplus(dt + dt_bias)),   S = exp(dt A) S + dt x B^T,   y = S C + D x
//   Mamba 1: the same for each channel c and state n, with a decay exp(dt[c] A[c, n]).
// as transformers' mamba2_selective_state_update and mamba_selective_scan. Sums and state are float32.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/recurrence.h"

namespace memoir::kernels {

struct SelectiveScan {
  //                     Mamba 2         Mamba 1
  mlx::core::array x;   // [B, T, H, P]   [B, T, C]
  mlx::core::array dt;  // [B, T, H]      [B, T, C]
  mlx::core::array a;   // [H]            [C, N]      -exp(A_log) of a checkpoint
  mlx::core::array b;   // [B, T, G, N]   [B, T, N]   G a divisor of H
  mlx::core::array c;   // [B, T, G, N]   [B, T, N]

  std::optional<mlx::core::array> state = std::nullopt;    // [B, H, P, N] or [B, C, N] float32; none: zeros
  std::optional<mlx::core::array> d = std::nullopt;        // [H] or [C]
  std::optional<mlx::core::array> dt_bias = std::nullopt;  // [H] or [C]
  bool has_softplus = true;

  struct Limits {
    float min;
    float max;
  };
  std::optional<Limits> dt_limits = std::nullopt;  // dt is clamped to [min, max], min <= max
};

/// Which of the two: by the axes of x. Returns y of x's shape and type and float32 states. Lazy. On the CPU inputs are
/// read where they lie if their last axis does so side by side. Throws std::invalid_argument if shapes, types or
/// options don't fit.
Recurrence selective_scan(const SelectiveScan& input, const RecurrenceOptions& options = {});

}  // namespace memoir::kernels
