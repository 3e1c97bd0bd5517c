#include "memoir/kernels/cpu/rows.h"

#include <algorithm>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/row_parts.h"

namespace memoir::kernels::cpu {

void norm_rows(const NormArgs& norm, int n_rows, const float* x, float* out) {
  const Kernels& set = kernels();
  for_rows(n_rows, norm.n, [&](std::ptrdiff_t row) { set.norm_row(norm, x + row * norm.n, out + row * norm.n); });
}

void gate_rows(const GateArgs& args) {
  const Kernels& set = kernels();
  for_rows(args.n_rows, args.n, [&](std::ptrdiff_t row) {
    const std::ptrdiff_t at = row * args.n;
    if (args.clamped) {
      set.clamped_gate_row(*args.clamped, args.n, args.gates + at, args.ups + at, args.out + at);
    } else {
      set.gate_row(args.gate, args.n, args.gates + at, args.ups + at, args.out + at);
    }
  });
}

void cap_rows(float cap, int n_rows, int n, const float* x, float* out) {
  const Kernels& set = kernels();
  for_rows(n_rows, n, [&](std::ptrdiff_t row) { set.cap_row(cap, n, x + row * n, out + row * n); });
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
