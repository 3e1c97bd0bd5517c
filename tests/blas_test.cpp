// Which BLAS answers MLX: OpenBLAS, not the reference one that the wheel brings. Built only where memoir links
// OpenBLAS. blas_bindings.cmake runs this program again and asks the loader where libmlx's call went.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

namespace mx = mlx::core;

// The file that holds what the loader finds under `symbol` in its global order, the order in which libmlx's own
// references are resolved.
std::string library_of(const char* symbol) {
  Dl_info info;
  void* address = dlsym(RTLD_DEFAULT, symbol);
  if (address == nullptr || dladdr(address, &info) == 0) return "nowhere";
  return info.dli_fname;
}

TEST(Blas, FirstInTheLoadersOrderIsOpenBlas) {
  for (const char* symbol : {"cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "sgetrf_"}) {
    EXPECT_NE(library_of(symbol).find("libopenblas"), std::string::npos)
        << symbol << " comes from " << library_of(symbol);
  }
}

// Small whole numbers, so that every product and sum is exact in float32 and the expected value is plain arithmetic.
std::vector<float> whole_numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<int>(seed >> 28) - 8);
  }
  return values;
}

TEST(Blas, MatmulIsExactOnWholeNumbers) {
  const int n_rows = 65, n_inner = 129, n_columns = 67;
  const std::vector<float> a = whole_numbers(static_cast<std::size_t>(n_rows) * n_inner, 1);
  const std::vector<float> b = whole_numbers(static_cast<std::size_t>(n_inner) * n_columns, 2);
  mx::array product =
      mx::matmul(mx::array(a.data(), {n_rows, n_inner}), mx::array(b.data(), {n_inner, n_columns}), mx::Device::cpu);
  product.eval();
  for (int row = 0; row < n_rows; ++row) {
    for (int column = 0; column < n_columns; ++column) {
      double expected = 0;
      for (int k = 0; k < n_inner; ++k) {
        expected += static_cast<double>(a[static_cast<std::size_t>(row * n_inner + k)]) *
                    static_cast<double>(b[static_cast<std::size_t>(k * n_columns + column)]);
      }
      ASSERT_EQ(product.data<float>()[row * n_columns + column], expected) << row << ", " << column;
    }
  }
}

}  // namespace
