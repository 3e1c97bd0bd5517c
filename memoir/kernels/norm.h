#pragma once

// Norms over the last axis.
// Threads: the thread that owns MLX's work. Ownership: a Norm is a value of shared handles.

#include <mlx/array.h>

#include <optional>

namespace memoir::kernels {

/// (x - mean) / sqrt(variance + eps) * weight (+ bias). Without a mean (root mean square norm, arXiv:1910.07467) the
/// variance is that of the plain squares.
struct Norm {
  mlx::core::array weight;  // [D]; float32 on the CPU saves a conversion at each use
  float eps;
  std::optional<mlx::core::array> bias = std::nullopt;  // [D]
  bool subtracts_mean = false;                          // layer norm, arXiv:1607.06450
};

/// x: [..., D] float. Returns its shape and type; the sums are float32. Lazy. On the CPU the bits of a row don't depend
/// on the others.
/// Throws std::invalid_argument if weight or bias is not [D].
mlx::core::array norm(const mlx::core::array& x, const Norm& spec);

}  // namespace memoir::kernels
