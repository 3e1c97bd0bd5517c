#pragma once

// The gated feed-forward of a transformer's layer as one operation.
// Threads: the thread that owns MLX's work. Ownership: a GatedMlp is a value of shared handles.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/cpu/rows.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/norm.h"

namespace memoir::kernels {

using cpu::Gate;

/// down(gate(gates(x)) * ups(x)): SwiGLU and GeGLU of arXiv:2002.05202.
struct GatedMlp {
  Linear gates;  // [intermediate, hidden]
  Linear ups;    // [intermediate, hidden]
  Linear down;   // [hidden, intermediate]
  Gate gate;

  std::size_t size_bytes() const { return gates.size_bytes() + ups.size_bytes() + down.size_bytes(); }
};

/// gate(gates) * ups, element by element. Both [..., n] float of one shape and type, which is the result's. Lazy. On
/// the CPU the bits of an element depend on nothing else. Throws std::invalid_argument if the shapes or types differ.
mlx::core::array gate_product(const mlx::core::array& gates, const mlx::core::array& ups, Gate gate);

/// cap * tanh(x / cap), element by element: what keeps scores and logits below a cap. x: [..., n] float; cap above 0.
/// Returns its shape and type. Lazy. On the CPU the bits of an element depend on nothing else.
mlx::core::array soft_cap(const mlx::core::array& x, float cap);

/// mlp(norm(x)) (+ residual).
/// x, residual: [..., hidden] float. Returns x's shape and type. Lazy. On the CPU the bits of a row don't depend on the
/// others, and are those of the single operations.
/// Throws std::invalid_argument if the sizes of the norm, the layers or the residual don't fit.
mlx::core::array gated_mlp(const mlx::core::array& x, const std::optional<Norm>& norm, const GatedMlp& mlp,
                           const std::optional<mlx::core::array>& residual = std::nullopt);

}  // namespace memoir::kernels
