#include "memoir/kernels/cpu/selective_scan.h"

#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/recurrent_parts.h"

namespace memoir::kernels::cpu {

std::size_t prepared_floats(const SelectiveScanArgs& args) {
  if (args.is_diagonal) return 0;
  return 2 * static_cast<std::size_t>(args.n_sequences) * static_cast<std::size_t>(args.n_tokens) *
         static_cast<std::size_t>(args.n_heads);
}

void selective_scan(const SelectiveScanArgs& args) {
  const RecurrentKernels& set = recurrent_kernels();
  if (!args.is_diagonal) {
    for_units(args.n_sequences * args.n_tokens, 40.0 * args.n_heads, 0,
              [&](int row, float*) { set.prepare_scan(args, row / args.n_tokens, row % args.n_tokens); });
  }
  const std::size_t n_block = static_cast<std::size_t>(set.block_rows) * static_cast<std::size_t>(args.state_dim);
  const double token_cost = args.is_diagonal ? 24 : 3;
  for_blocks({args.n_sequences, args.n_heads, args.head_dim}, set.block_rows,
             (token_cost * args.n_tokens + 2) * static_cast<double>(n_block), 2 * n_block,
             [&](const StateBlock& block, float* scratch) { set.scan_block(args, block, scratch); });
}

}  // namespace memoir::kernels::cpu
