#include "memoir/kernels/cpu/fused.h"

#include <algorithm>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/threads.h"

namespace memoir::kernels::cpu {
namespace {

const float* normed_rows(const NormArgs* norm, int n_rows, const float* x, float* normed) {
  if (!norm) return x;
  norm_rows(*norm, n_rows, x, normed);
  return normed;
}

// gates and ups of the same outputs by the same thread, which then gates them while they are in its cache.
void gate_products(std::array<MatmulArgs, 2> products, Gate gate) {
  fix_inputs(products);
  const auto& [gates, ups] = products;
  const Kernels& set = kernels();
  const MatmulPlan plan(gates.format.n_tiles(), gates.n_rows, n_threads());
  run_parts(plan.n_parts(), [&](int index) {
    const MatmulPart part = plan.part(index);
    set.matmul_part(gates, part);
    set.matmul_part(ups, part);
    const int begin = part.tile_begin * kLanes;
    const int end = std::min(part.tile_end * kLanes, gates.format.n_rows);
    for (int row = part.row_begin; row < part.row_end; ++row) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * gates.format.n_rows + begin;
      set.gate_row(gate, end - begin, gates.y + at, ups.y + at, gates.y + at);
    }
  });
}

}  // namespace

MatmulArgs product(const LinearArgs& linear, int n_rows, const float* x, float* y) {
  MatmulArgs args{linear.format, linear.weights, n_rows};
  args.x = x;
  args.bias = linear.bias;
  args.y = y;
  return args;
}

void project_heads(const ProjectionArgs& args) {
  const int n_rows = args.n_sequences * args.n_tokens;
  const float* x = normed_rows(args.norm, n_rows, args.x, args.normed);
  int n_joined = 0;
  for (const ProjectionArgs::Part& part : args.parts) n_joined += part.linear.format.n_rows;
  std::array<MatmulArgs, 3> products;
  int column = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    products[i] = product(args.parts[i].linear, n_rows, x, args.joined + column);
    products[i].y_stride = n_joined;
    column += args.parts[i].linear.format.n_rows;
  }
  matmul(products);
  for (std::size_t i = 0; i < products.size(); ++i) {
    const ProjectionArgs::Part& part = args.parts[i];
    HeadsArgs heads;
    heads.n_sequences = args.n_sequences;
    heads.n_tokens = args.n_tokens;
    heads.n_heads = part.n_heads;
    heads.rope = args.rope;
    heads.norm = part.norm;
    heads.turns = i < 2 ? args.turns : nullptr;
    heads.x = products[i].y;
    heads.row_stride = n_joined;
    heads.out = part.out;
    split_heads(heads);
  }
}

void gated_mlp(const GatedMlpArgs& args) {
  const float* x = normed_rows(args.norm, args.n_rows, args.x, args.normed);
  gate_products({product(args.gates, args.n_rows, x, args.inner), product(args.ups, args.n_rows, x, args.inner_ups)},
                args.gate);
  MatmulArgs down = product(args.down, args.n_rows, args.inner, args.y);
  down.residual = args.residual;
  matmul({&down, 1});
}

}  // namespace memoir::kernels::cpu
