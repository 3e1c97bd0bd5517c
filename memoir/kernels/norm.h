#pragma once

// Normalizations.

#include <mlx/array.h>

namespace memoir::kernels {

/// x / sqrt(mean(x^2) + eps) * weight over the last axis (arXiv:1910.07467), the mean in float32.
/// x: [..., D] float. weight: [D]. Returns x's shape and type. Lazy.
/// Throws std::invalid_argument if the sizes differ.
mlx::core::array rms_norm(const mlx::core::array& x, const mlx::core::array& weight, float eps);

}  // namespace memoir::kernels
