#pragma once

// Products of activations with a weight matrix, and rows of an embedding table.
//
// On the CPU, with packed weights: activations and sums are float32 and the bits of a row don't depend on how many
// rows there are (cpu/matmul.h). Elsewhere MLX's own products.
// Threads: the thread that owns MLX's work. Ownership: a Linear is a value of shared handles.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/weight.h"

namespace memoir::kernels {

/// y = x W^T (+ bias).
struct Linear {
  Weight weight;                                        // [rows, columns]
  std::optional<mlx::core::array> bias = std::nullopt;  // [rows]

  int rows() const { return weight.rows(); }
  int columns() const { return weight.columns(); }
  std::size_t size_bytes() const { return weight.size_bytes() + (bias ? bias->nbytes() : 0); }
};

/// y = x W^T (+ bias) (+ residual).
/// x: [..., columns], float. residual: [..., rows]. Returns [..., rows] in x's type. Lazy.
/// Throws std::invalid_argument if the last axis of x, the bias or the residual does not fit.
mlx::core::array linear(const mlx::core::array& x, const Linear& layer,
                        const std::optional<mlx::core::array>& residual = std::nullopt);

/// Rows of an embedding table. ids: [...] int32, each 0 <= id < rows (the caller checks: an id outside reads memory
/// that isn't the table's). Returns [..., columns] in `dtype`. Lazy.
mlx::core::array embed(const mlx::core::array& ids, const Weight& table, mlx::core::Dtype dtype);

}  // namespace memoir::kernels
