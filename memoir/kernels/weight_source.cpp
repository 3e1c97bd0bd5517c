#include "memoir/kernels/weight_source.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <utility>

#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/memory_pages.h"
#include "memoir/kernels/weight_memory.h"

namespace memoir::kernels {
namespace {

// Rows of a piece: so many that it stays in a core's cache between its reading and its packing, and that no thread
// waits long for another one's last piece. Whole tiles, or all rows.
int rows_per_piece(const WeightSource& source) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 17;
  constexpr int kPieces = 4;
  const std::size_t tile_bytes = std::max<std::size_t>(1, source.row_scratch_bytes * cpu::kLanes);
  const auto fitting = static_cast<std::int64_t>(kPieceBytes / tile_bytes);
  const std::int64_t n_tiles = std::min<std::int64_t>(fitting, (source.format.n_tiles() + kPieces - 1) / kPieces);
  const std::int64_t step = std::lcm(std::int64_t{source.row_multiple}, std::int64_t{cpu::kLanes});
  const std::int64_t n_rows = std::max<std::int64_t>(1, n_tiles * cpu::kLanes / step) * step;
  return static_cast<int>(std::min<std::int64_t>(n_rows, source.format.n_rows));
}

// The system clears a page when it is first written to, which takes as long as packing it. Pieces that follow each
// other lie in one huge page, and threads at work on them would wait for each other: they take pages of their own
// first.
void touch_pages(std::byte* memory, std::size_t n_bytes) {
  const std::size_t n_pages = n_bytes / kHugePageBytes;
  if (n_pages < 2) return;
  cpu::run_parts(static_cast<int>(n_pages),
                 [&](int page) { memory[static_cast<std::size_t>(page) * kHugePageBytes] = std::byte{0}; });
}

}  // namespace

std::optional<Weight> prepared(const WeightSource& source) {
  const cpu::PackedFormat& format = source.format;
  mlx::core::array packed = weight_memory(format.size_bytes());
  auto* out = const_cast<std::byte*>(packed_bytes(packed));
  touch_pages(out, packed.nbytes());
  const int n_rows = rows_per_piece(source);
  const std::size_t n_scratch = (source.row_scratch_bytes * static_cast<std::size_t>(n_rows) + 3) / sizeof(float);
  const int n_pieces = (format.n_rows - 1) / n_rows + 1;
  std::atomic<bool> is_held = true;
  cpu::run_fallible_parts(n_pieces, n_scratch, [&](int part, float* scratch) {
    if (!is_held.load(std::memory_order_relaxed)) return;
    const int begin = part * n_rows;
    const int end = begin + std::min(n_rows, format.n_rows - begin);
    const std::optional<cpu::StoredRows> rows = source.read(begin, end, reinterpret_cast<std::byte*>(scratch));
    if (!rows) {
      is_held = false;
      return;
    }
    cpu::pack_rows(format, *rows, end - begin,
                   out + static_cast<std::size_t>(begin / cpu::kLanes) * format.tile_bytes());
  });
  if (!is_held) return std::nullopt;
  return Weight{std::move(packed), std::nullopt, format};
}

}  // namespace memoir::kernels
