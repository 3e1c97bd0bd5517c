#pragma once

// Rotary position embedding (arXiv:2104.09864).

#include <mlx/array.h>

#include <optional>

namespace memoir::kernels {

/// What is rotated by how much. Pair i of a head turns by position * scale / periods[i].
struct Rope {
  int n_dims;        // leading dimensions of a head that turn, even; the rest pass unchanged
  bool traditional;  // pairs (2i, 2i + 1) rather than (i, i + n_dims / 2)
  double base;       // periods[i] = base^(2i / n_dims), unless `periods` is given
  double scale = 1;  // positions are multiplied by it (linear scaling: 1 / factor)
  std::optional<mlx::core::array> periods = std::nullopt;  // [n_dims / 2] float32
};

/// x: [B, H, T, D] float, row t at position offset + t. Returns x's shape and type. Lazy.
/// Throws std::invalid_argument if n_dims is odd or larger than D, or offset is negative.
mlx::core::array rope(const mlx::core::array& x, const Rope& rope, int offset);

}  // namespace memoir::kernels
