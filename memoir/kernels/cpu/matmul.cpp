#include "memoir/kernels/cpu/matmul.h"

#include <algorithm>
#include <vector>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

// More parts than threads, so that one that is interrupted holds up less; and no more than that for few rows, so that
// each reads a long stretch of weights.
constexpr int kPartsPerThread = 4;

// Below this many rows a block pays too much for turning the weights to floats.
constexpr int kMinRowBlock = 96;

int share(int n, int index, int n_shares) {
  return static_cast<int>(static_cast<std::int64_t>(n) * index / n_shares);
}

}  // namespace

MatmulPlan::MatmulPlan(int n_tiles, int n_rows, int n_threads) : n_tiles_(n_tiles), n_rows_(n_rows) {
  const int n_runs = (n_tiles + kTileRun - 1) / kTileRun;
  const int n_wanted = kPartsPerThread * n_threads;
  n_tile_parts_ = n_rows <= 2 ? std::min(n_runs, n_wanted) : n_runs;
  n_row_parts_ = std::clamp((2 * n_wanted + n_runs - 1) / n_runs, 1, std::max(1, n_rows / kMinRowBlock));
}

MatmulPart MatmulPlan::part(int index) const {
  const int n_runs = (n_tiles_ + kTileRun - 1) / kTileRun;
  const int t = index / n_row_parts_;
  const int r = index % n_row_parts_;
  return {share(n_runs, t, n_tile_parts_) * kTileRun,
          std::min(share(n_runs, t + 1, n_tile_parts_) * kTileRun, n_tiles_), share(n_rows_, r, n_row_parts_),
          share(n_rows_, r + 1, n_row_parts_)};
}

std::size_t panel_floats(const PackedFormat& format) {
  return format.is_quantized() ? static_cast<std::size_t>(format.n_columns) * kLanes * kTileRun : 0;
}

void matmul(std::span<const MatmulArgs> products) {
  const Kernels& set = kernels();
  thread_local std::vector<MatmulPlan> plans;
  plans.clear();
  std::size_t n_panel = 0;
  int n_parts = 0;
  for (const MatmulArgs& args : products) {
    plans.emplace_back(args.format.n_tiles(), args.n_rows, n_threads());
    n_parts += plans.back().n_parts();
    n_panel = std::max(n_panel, panel_floats(args.format));
  }
  run_parts(n_parts, n_panel, [&, plan = plans.data()](int index, float* panel) {
    const JobPart at = find_part(index, [plan](std::size_t p) { return plan[p].n_parts(); });
    set.matmul_part(products[at.job], plan[at.job].part(at.part), panel);
  });
}

}  // namespace memoir::kernels::cpu
