#pragma once

// Gated activations.

#include <mlx/array.h>

namespace memoir::kernels {

/// silu(gate) * up, silu(z) = z * sigmoid(z) (SwiGLU, arXiv:2002.05202).
/// gate, up: the same shape and type, which is also the result's. Lazy.
mlx::core::array swiglu(const mlx::core::array& gate, const mlx::core::array& up);

}  // namespace memoir::kernels
