#pragma once

// The gated delta rule (Gated DeltaNet, arXiv:2412.06464) of Qwen3-Next, Qwen3.5 and their like.
//
// For each token, with S [Dv, Dk] the state of a value head and q, k those of key head h / (Hv / Hk), or, where values
// are tiled, h % Hk:
//   S = exp(decay) S,   S = S + beta (v - S k) k^T,   y = S q
// as transformers' torch_recurrent_gated_delta_rule. Sums and state are float32.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/recurrence.h"

namespace memoir::kernels {

/// Makes gates of what the projections give: decay = a softplus(decay + dt_bias), beta = sigmoid(beta).
struct DeltaGates {
  mlx::core::array a;        // [Hv], -exp(A_log) of a checkpoint
  mlx::core::array dt_bias;  // [Hv]
};

struct GatedDelta {
  mlx::core::array queries;  // [B, T, Hk, Dk]
  mlx::core::array keys;     // [B, T, Hk, Dk]
  mlx::core::array values;   // [B, T, Hv, Dv], Hv a multiple of Hk
  mlx::core::array decays;   // [B, T, Hv], logarithms; with `gates`, raw
  mlx::core::array betas;    // [B, T, Hv]; with `gates`, raw

  std::optional<mlx::core::array> state = std::nullopt;  // [B, Hv, Dv, Dk] float32; none: zeros
  std::optional<DeltaGates> gates = std::nullopt;
  bool normalizes = false;  // queries and keys to length 1: x / sqrt(sum x^2 + eps)
  float eps = 1e-6F;
  float scale = 1;  // of the queries, after that; usually 1 / sqrt(Dk)
  bool has_tiled_values = false;
};

/// Returns y [B, T, Hv, Dv] in the values' type and states [B, Hv, Dv, Dk] float32. Lazy. On the CPU inputs are
/// read where they lie if their last axis does so side by side.
/// Throws std::invalid_argument if shapes, types or options don't fit.
Recurrence gated_delta(const GatedDelta& input, const RecurrenceOptions& options = {});

}  // namespace memoir::kernels
