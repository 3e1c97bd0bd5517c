#pragma once

// The feed-forward of a mixture: each token through the few experts it was routed to, as one operation.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/mlp.h"
#include "memoir/kernels/routing.h"
#include "memoir/kernels/weight_stack.h"

namespace memoir::kernels {

using cpu::ClampedGate;

struct Experts {
  WeightStack gates;                                           // E of [intermediate, hidden]
  WeightStack ups;                                             // the same
  WeightStack down;                                            // E of [hidden, intermediate]
  std::optional<mlx::core::array> gate_biases = std::nullopt;  // [E, intermediate]
  std::optional<mlx::core::array> up_biases = std::nullopt;    // the same
  std::optional<mlx::core::array> down_biases = std::nullopt;  // [E, hidden]
  Gate gate = Gate::kSilu;
  std::optional<ClampedGate> clamped_gate = std::nullopt;  // instead of gate
  bool weighs_inputs = false;  // an expert's input is multiplied by the route's weight, rather than its output

  std::size_t size_bytes() const;
};

/// The sum over a token's routes of weight * down(gate(gates(x)) * ups(x)) of the expert, in their order (+ residual).
/// x, residual: [..., hidden] float; routes: of the same tokens. Returns x's shape and type. Lazy.
/// On the CPU only the weights of experts that are used are read, tokens of one expert share the reading, and the bits
/// of a row don't depend on which others there are.
/// Throws std::invalid_argument if sizes don't fit.
mlx::core::array mix_experts(const mlx::core::array& x, const Routes& routes, const Experts& experts,
                             const std::optional<mlx::core::array>& residual = std::nullopt);

}  // namespace memoir::kernels
