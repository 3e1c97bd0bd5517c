#include "memoir/kernels/cpu/row_move.h"

#include <cstring>

#include "memoir/kernels/cpu/pool.h"

namespace memoir::kernels::cpu {

void move_rows(const RowMoveArgs& args) {
  std::ptrdiff_t n_rows = 0;
  for (const RowMove& move : args.moves) n_rows += move.n_rows;
  const auto move_block = [&](int block) {
    std::byte* rows = args.data + block * args.block_bytes;
    for (const RowMove& move : args.moves) {
      std::memcpy(rows + move.to_row * args.row_bytes, rows + move.from_row * args.row_bytes,
                  static_cast<std::size_t>(move.n_rows * args.row_bytes));
    }
  };
  // Less is moved sooner than another thread wakes.
  constexpr std::ptrdiff_t kManyBytes = 1 << 18;
  if (n_rows * args.row_bytes * args.n_blocks >= kManyBytes) return run_parts(args.n_blocks, move_block);
  for (int block = 0; block < args.n_blocks; ++block) move_block(block);
}

}  // namespace memoir::kernels::cpu
