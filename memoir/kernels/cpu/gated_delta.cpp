#include "memoir/kernels/cpu/gated_delta.h"

#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/recurrent_parts.h"

namespace memoir::kernels::cpu {

std::size_t prepared_floats(const GatedDeltaArgs& args) {
  const auto n = [](int value) { return static_cast<std::size_t>(value); };
  return n(args.n_sequences) * n(args.n_tokens) *
         (n(args.n_key_heads) * (2 * n(args.key_dim) + 1) + 2 * n(args.n_value_heads));
}

void gated_delta(const GatedDeltaArgs& args) {
  const RecurrentKernels& set = recurrent_kernels();
  for_units(args.n_sequences * args.n_tokens, 4.0 * args.n_key_heads * args.key_dim + 40.0 * args.n_value_heads, 0,
            [&](int row, float*) { set.prepare_delta(args, row / args.n_tokens, row % args.n_tokens); });
  const std::size_t n_block = static_cast<std::size_t>(set.block_rows) * static_cast<std::size_t>(args.key_dim);
  for_blocks({args.n_sequences, args.n_value_heads, args.value_dim}, set.block_rows,
             (4.0 * args.n_tokens + 2) * static_cast<double>(n_block), n_block,
             [&](const StateBlock& block, float* scratch) { set.delta_block(args, block, scratch); });
}

}  // namespace memoir::kernels::cpu
