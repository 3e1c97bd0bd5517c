#pragma once

// MLX operations over packed weights: they run on the CPU stream of the calling thread.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/weight.h"

namespace memoir::kernels {

/// linear() for a packed weight: the product of x as float32, the sum in float32, the result in x's type.
/// x: [..., columns]. Lazy. The caller has checked the shapes.
mlx::core::array packed_linear(const mlx::core::array& x, const Weight& w, const std::optional<mlx::core::array>& bias);

/// Rows of a packed table as float32. ids: [...] int32, inside the table. Returns [..., columns]. Lazy.
mlx::core::array packed_rows(const mlx::core::array& ids, const Weight& table);

}  // namespace memoir::kernels
