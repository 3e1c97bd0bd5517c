#include <mlx/mlx.h>

#include <cstddef>
#include <iostream>
#include <vector>

#include "memoir/base/byte_source.h"

// One matrix product by MLX, and one call into memoir, so that the program needs both.
int main() {
  namespace mx = mlx::core;
  const mx::array ones = mx::ones({64, 64}, mx::float32, mx::Device::cpu);
  const float sum = mx::sum(mx::matmul(ones, ones, mx::Device::cpu), mx::Device::cpu).item<float>();
  const auto source = memoir::memory_source("memory", std::vector<std::byte>(3));
  std::cout << sum << " " << source->size_bytes() << "\n";
  return sum == 64.0F * 64.0F * 64.0F && source->size_bytes() == 3 ? 0 : 1;
}
