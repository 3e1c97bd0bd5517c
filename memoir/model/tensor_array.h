#pragma once

// An MLX array filled from a file: where bytes on disk become arrays.

#include <mlx/array.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

namespace memoir::model {

/// What a safetensors file calls "F32", "F16" or "BF16"; nullopt for any other name.
std::optional<mlx::core::Dtype> floating_dtype(std::string_view name);

/// A new array of the shape and dtype whose bytes `fill` writes, once, before this returns. Copies nothing.
/// The shape's product times the item size must be what `fill` expects.
mlx::core::array filled_array(mlx::core::Shape shape, mlx::core::Dtype dtype,
                              const std::function<void(std::span<std::byte>)>& fill);

/// The elements behind an array made by filled_array, to write to before anything else uses it.
template <typename T>
std::span<T> elements(mlx::core::array& a) {
  return {a.data<T>(), a.size()};
}

}  // namespace memoir::model
