#include "memoir/kernels/cpu/matmul.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/kernels/cpu/kernel_sets.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

const Kernels& chosen_kernels() {
  const KernelList list = supported_kernels();
  const char* name = std::getenv("MEMOIR_CPU");
  if (!name || !*name) return *list.sets[0];
  std::string known;
  for (int i = 0; i < list.n_sets; ++i) {
    if (std::string_view(list.sets[i]->name) == name) return *list.sets[i];
    known += (i > 0 ? ", " : "") + std::string(list.sets[i]->name);
  }
  throw std::invalid_argument("[kernels] MEMOIR_CPU is '" + std::string(name) + "', this processor has: " + known);
}

}  // namespace

void matmul(const MatmulArgs& args) {
  const Kernels& set = kernels();
  const int n_tiles = args.format.n_tiles();
  // More parts than threads, so that one that is interrupted holds up less; whole runs of tiles, read in order.
  const int n_runs = (n_tiles + kTileRun - 1) / kTileRun;
  const int n_parts = std::min(n_runs, 4 * n_threads());
  const auto first_tile = [&](int part) {
    const auto run = static_cast<std::int64_t>(n_runs) * part / n_parts;
    return std::min(static_cast<int>(run) * kTileRun, n_tiles);
  };
  const std::size_t panel_floats = static_cast<std::size_t>(args.format.n_columns) * kLanes * kTileRun;
  run_parts(n_parts, [&](int part) {
    thread_local std::vector<float> panel;
    if (panel.size() < panel_floats) panel.resize(panel_floats);
    set.matmul_tiles(args, first_tile(part), first_tile(part + 1), panel.data());
  });
}

KernelList supported_kernels() {
  const KernelList built = built_kernels();
  KernelList list{};
  for (int i = 0; i < built.n_sets; ++i) {
    if (built.sets[i]->is_supported()) list.sets[list.n_sets++] = built.sets[i];
  }
  return list;
}

const Kernels& kernels() {
  static const Kernels& chosen = chosen_kernels();
  return chosen;
}

}  // namespace memoir::kernels::cpu
