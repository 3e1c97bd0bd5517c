#pragma once

// Shapes and dtypes in messages.

#include <mlx/array.h>

#include <cstdint>
#include <span>
#include <string>

namespace memoir::kernels {

/// "(1,4,16,64)".
std::string shape_text(const mlx::core::array& a);
std::string shape_text(std::span<const std::int64_t> shape);

/// "float32".
std::string dtype_text(mlx::core::Dtype dtype);

}  // namespace memoir::kernels
