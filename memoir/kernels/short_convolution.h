#pragma once

// Causal depthwise convolution over the last few tokens, in front of recurrent layers or (LFM2) instead of them.
//
// y[t] = activation(bias + sum over j of weight[j] x[t - (K - 1) + j]); the K - 1 inputs before the call are its state,
// the tail.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/recurrence.h"

namespace memoir::kernels {

struct ShortConvolution {
  mlx::core::array weight;  // [K, C], K from 1 to 32, the newest input's row last: a checkpoint's [C, 1, K], transposed
  std::optional<mlx::core::array> bias = std::nullopt;  // [C]
  bool has_silu = false;
};

/// x: [B, T, C]; tail: [B, K - 1, C] of x's type, oldest first; none: zeros. Returns y [B, T, C] in x's type and tails
/// as the state, which hold copies, never a part of x. Lazy. Throws std::invalid_argument if shapes, types or options
/// don't fit.
Recurrence short_convolution(const mlx::core::array& x, const ShortConvolution& spec,
                             const std::optional<mlx::core::array>& tail, const RecurrenceOptions& options = {});

/// The tail behind x where `tail` was before it: short_convolution()'s state without its outputs. Lazy; a copy.
mlx::core::array tail_behind(const mlx::core::array& tail, const mlx::core::array& x);

}  // namespace memoir::kernels
