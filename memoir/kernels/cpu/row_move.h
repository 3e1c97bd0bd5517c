#pragma once

// Runs of rows to other places of the same array, as bytes. No MLX.

#include <cstddef>
#include <span>

namespace memoir::kernels::cpu {

struct RowMove {
  int from_row;
  int to_row;
  int n_rows;
};

/// n_blocks blocks of block_bytes, each of rows of row_bytes side by side.
struct RowMoveArgs {
  std::byte* data;
  int n_blocks;
  std::ptrdiff_t block_bytes;
  std::ptrdiff_t row_bytes;
  std::span<const RowMove> moves;  // inside a block; no row is in two of them, as source or as destination
};

void move_rows(const RowMoveArgs& args);

}  // namespace memoir::kernels::cpu
