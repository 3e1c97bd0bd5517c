#include "memoir/kernels/cpu/matmul.h"

#include <algorithm>
#include <vector>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/physical_cores.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/row_parts.h"
#include "memoir/kernels/cpu/scratch.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

// More parts than threads, so that one that is interrupted holds up less.
constexpr int kPartsPerThread = 4;

// With so few rows weights come from memory, which is fastest where each thread reads one long stretch of them: all but
// a tenth, which is left for those that are done first. Where cores differ, shares of one size would wait for the
// slowest.
constexpr int kFewRows = 8;
constexpr int kLongShare = 9;
constexpr int kLongShares = 10;

// Below this many rows a block pays too much for bringing the weights into the cache.
constexpr int kMinRowBlock = 96;

int share(int n, int index, int n_shares) {
  return static_cast<int>(static_cast<std::int64_t>(n) * index / n_shares);
}

}  // namespace

MatmulPlan::MatmulPlan(int n_tiles, int n_rows, int n_threads) : n_tiles_(n_tiles), n_rows_(n_rows) {
  static const bool are_cores_alike = cores_are_alike();
  const int n_runs = (n_tiles + kTileRun - 1) / kTileRun;
  const int n_wanted = kPartsPerThread * n_threads;
  if (n_rows <= kFewRows && are_cores_alike && n_tiles >= n_wanted) {
    n_long_ = n_threads;
    n_tile_parts_ = 2 * n_threads;
    return;
  }
  n_tile_parts_ = n_rows <= 2 ? std::min(n_runs, n_wanted) : n_runs;
  n_row_parts_ = std::clamp((2 * n_wanted + n_runs - 1) / n_runs, 1, std::max(1, n_rows / kMinRowBlock));
}

int MatmulPlan::begin_of(int tile_part) const {
  if (n_long_ == 0) {
    const int n_runs = (n_tiles_ + kTileRun - 1) / kTileRun;
    return std::min(share(n_runs, tile_part, n_tile_parts_) * kTileRun, n_tiles_);
  }
  const int n_in_long = share(n_tiles_, kLongShare, kLongShares);
  if (tile_part <= n_long_) return share(n_in_long, tile_part, n_long_);
  return n_in_long + share(n_tiles_ - n_in_long, tile_part - n_long_, n_tile_parts_ - n_long_);
}

MatmulPart MatmulPlan::part(int index) const {
  const int t = index / n_row_parts_;
  const int r = index % n_row_parts_;
  return {begin_of(t), begin_of(t + 1), share(n_rows_, r, n_row_parts_), share(n_rows_, r + 1, n_row_parts_)};
}

void fix_inputs(std::span<MatmulArgs> products) {
  static_assert(sizeof(FixedBlock) % sizeof(float) == 0);
  const auto shares_x = [products](std::size_t i) {
    const MatmulArgs& args = products[i];
    return i > 0 && products[i - 1].format.is_quantized() && products[i - 1].x == args.x &&
           products[i - 1].n_rows == args.n_rows && products[i - 1].format.n_columns == args.format.n_columns;
  };
  const auto n_blocks_of = [](const MatmulArgs& args) {
    return static_cast<std::size_t>(args.n_rows) * static_cast<std::size_t>(args.format.n_columns / kBlock);
  };
  std::size_t n_blocks = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    if (products[i].format.is_quantized() && !shares_x(i)) n_blocks += n_blocks_of(products[i]);
  }
  thread_local Scratch memory;
  auto* blocks = reinterpret_cast<FixedBlock*>(memory.floats(n_blocks * sizeof(FixedBlock) / sizeof(float)));
  const Kernels& set = kernels();
  for (std::size_t i = 0; i < products.size(); ++i) {
    MatmulArgs& args = products[i];
    if (!args.format.is_quantized()) continue;
    if (shares_x(i)) {
      args.fixed = products[i - 1].fixed;
      continue;
    }
    const int n = args.format.n_columns;
    for_rows(args.n_rows, n,
             [&](std::ptrdiff_t row) { set.fix_row(n, args.x + row * n, blocks + row * (n / kBlock)); });
    args.fixed = blocks;
    blocks += n_blocks_of(args);
  }
}

void matmul(std::span<MatmulArgs> products) {
  fix_inputs(products);
  const Kernels& set = kernels();
  thread_local std::vector<MatmulPlan> plans;
  plans.clear();
  int n_parts = 0;
  for (const MatmulArgs& args : products) {
    plans.emplace_back(args.format.n_tiles(), args.n_rows, n_threads());
    n_parts += plans.back().n_parts();
  }
  run_parts(n_parts, [&, plan = plans.data()](int index) {
    const JobPart at = find_part(index, [plan](std::size_t p) { return plan[p].n_parts(); });
    set.matmul_part(products[at.job], plan[at.job].part(at.part));
  });
}

}  // namespace memoir::kernels::cpu
