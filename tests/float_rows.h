#pragma once

// Rows of floats for the tests of the CPU kernels.

#include <cstring>
#include <random>
#include <vector>

namespace memoir::test {

/// In [-1, 1], in steps of 0.001; the same on every platform.
inline float random_float(std::mt19937& random) {
  return static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
}

/// Also tells 0 from -0, and takes a NaN as equal to itself.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace memoir::test
