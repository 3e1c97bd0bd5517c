#pragma once

// Work on rows, shared out between threads. No MLX.

#include <algorithm>
#include <cstddef>

#include "memoir/kernels/cpu/pool.h"

namespace memoir::kernels::cpu {

/// Calls function(row), a std::ptrdiff_t, for n_rows rows of n floats each, on more threads than one where that pays.
template <typename Function>
void for_rows(int n_rows, int n, const Function& function) {
  constexpr int kFloatsPerPart = 16384;
  const int rows_per_part = std::max(1, kFloatsPerPart / std::max(1, n));
  run_parts((n_rows + rows_per_part - 1) / rows_per_part, [&](int part) {
    const int end = std::min(n_rows, (part + 1) * rows_per_part);
    for (int row = part * rows_per_part; row < end; ++row) function(static_cast<std::ptrdiff_t>(row));
  });
}

}  // namespace memoir::kernels::cpu
