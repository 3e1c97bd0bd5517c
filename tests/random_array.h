#pragma once

// Random arrays for the tests of MLX operations.

#include <mlx/array.h>

#include <random>
#include <utility>
#include <vector>

#include "tests/float_rows.h"

namespace memoir::test {

/// float32, of random_float().
inline mlx::core::array random_array(mlx::core::Shape shape, unsigned seed) {
  std::mt19937 random(seed);
  std::size_t n_elements = 1;
  for (const int n : shape) n_elements *= static_cast<std::size_t>(n);
  std::vector<float> values(n_elements);
  for (float& value : values) value = random_float(random);
  return mlx::core::array(values.data(), std::move(shape), mlx::core::float32);
}

}  // namespace memoir::test
