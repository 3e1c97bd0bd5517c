#pragma once

// Products of activations with a weight matrix, and rows of an embedding table.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/weight.h"

namespace memoir::kernels {

/// y = x W^T (+ bias).
/// x: [..., columns], float. w: [rows, columns]. bias: [rows]. Returns [..., rows] in x's type. Lazy.
/// Throws std::invalid_argument if the last axis of x or the bias does not fit w.
mlx::core::array linear(const mlx::core::array& x, const Weight& w,
                        const std::optional<mlx::core::array>& bias = std::nullopt);

/// Rows of an embedding table. ids: [...] int32, each 0 <= id < rows (the caller checks: an id outside reads memory
/// that isn't the table's). Returns [..., columns] in `dtype`. Lazy.
mlx::core::array embed(const mlx::core::array& ids, const Weight& table, mlx::core::Dtype dtype);

}  // namespace memoir::kernels
