#include "memoir/kernels/cpu/rows.h"

#include <algorithm>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

// Calls function(row) for n_rows rows of n floats, on more threads than one where that pays.
template <typename Function>
void for_rows(int n_rows, int n, const Function& function) {
  constexpr int kFloatsPerPart = 16384;
  const int rows_per_part = std::max(1, kFloatsPerPart / std::max(1, n));
  run_parts((n_rows + rows_per_part - 1) / rows_per_part, [&](int part) {
    const int end = std::min(n_rows, (part + 1) * rows_per_part);
    for (int row = part * rows_per_part; row < end; ++row) function(static_cast<std::ptrdiff_t>(row));
  });
}

}  // namespace

void norm_rows(const NormArgs& norm, int n_rows, const float* x, float* out) {
  const Kernels& set = kernels();
  for_rows(n_rows, norm.n, [&](std::ptrdiff_t row) { set.norm_row(norm, x + row * norm.n, out + row * norm.n); });
}

void split_heads(const HeadsArgs& args) {
  const Kernels& set = kernels();
  const std::ptrdiff_t dim = args.rope.head_dim;
  for_rows(args.n_sequences * args.n_tokens, args.row_stride, [&](std::ptrdiff_t row) {
    const std::ptrdiff_t sequence = row / args.n_tokens;
    const std::ptrdiff_t token = row % args.n_tokens;
    for (std::ptrdiff_t head = 0; head < args.n_heads; ++head) {
      const float* x = args.x + row * args.row_stride + head * dim;
      float* out = args.out + ((sequence * args.n_heads + head) * args.n_tokens + token) * dim;
      if (args.norm) {
        set.norm_row(*args.norm, x, out);
        x = out;
      }
      if (args.turns) {
        set.rotate_row(args.rope, args.turns + token * args.rope.n_dims, x, out);
      } else if (x != out) {
        std::copy_n(x, dim, out);
      }
    }
  });
}

}  // namespace memoir::kernels::cpu
