#pragma once

// How the drivers of the recurrent kernels share their work out. Internal to kernels/cpu.

#include <algorithm>
#include <cstddef>

#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/recurrent_kernels.h"

namespace memoir::kernels::cpu {

/// Calls function(unit, scratch) for n_units units of about `cost` multiply-adds each, on more threads than one where
/// that pays. Each thread has n_scratch floats.
template <typename Function>
void for_units(int n_units, double cost, std::size_t n_scratch, const Function& function) {
  constexpr double kCostPerPart = 65536;
  const int units_per_part = static_cast<int>(std::clamp(kCostPerPart / std::max(cost, 1.0), 1.0, 1e6));
  run_parts((n_units + units_per_part - 1) / units_per_part, n_scratch, [&](int part, float* scratch) {
    const int end = std::min(n_units, (part + 1) * units_per_part);
    for (int unit = part * units_per_part; unit < end; ++unit) function(unit, scratch);
  });
}

/// A state: a matrix of n_rows rows for each head of each sequence.
struct StateShape {
  int n_sequences;
  int n_heads;
  int n_rows;
};

/// Calls function(block, scratch) for all blocks of a state.
template <typename Function>
void for_blocks(const StateShape& shape, int block_rows, double cost, std::size_t n_scratch, const Function& function) {
  const int n_blocks = (shape.n_rows + block_rows - 1) / block_rows;
  for_units(shape.n_sequences * shape.n_heads * n_blocks, cost, n_scratch, [&](int unit, float* scratch) {
    const int row = unit % n_blocks * block_rows;
    const int head = unit / n_blocks;
    const StateBlock block{head / shape.n_heads, head % shape.n_heads, row, std::min(block_rows, shape.n_rows - row)};
    function(block, scratch);
  });
}

}  // namespace memoir::kernels::cpu
