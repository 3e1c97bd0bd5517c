#pragma once

// A layer's attention, from its input to its output, with the write to the cache between, and the feed-forward behind
// it: on the CPU one operation. What MLX does for each operation, some ten microseconds, is as much as the work itself
// in a decode step of a small model.
//
// The bits are those of project_heads(), write_rows(), attention(), linear() and gated_mlp() one after the other.
// Threads: the thread that owns MLX's work.

#include <mlx/array.h>

#include <optional>
#include <vector>

#include "memoir/kernels/attention.h"
#include "memoir/kernels/kv_write.h"
#include "memoir/kernels/mlp.h"
#include "memoir/kernels/projection.h"

namespace memoir::kernels {

/// Where a sequence's next tokens go in its cache, and what they see there.
struct SequenceRows {
  int n_tokens;
  KvBuffers buffers;            // [B, Hkv, C, D]
  std::vector<RowRun> runs;     // the new rows
  std::vector<KvRange> ranges;  // with them, by position: the last n_tokens are theirs

  // As in a History.
  std::optional<int> window = std::nullopt;
  int keep = 0;
};

struct AttentionBlock {
  const std::optional<Norm>& norm;
  const HeadProjection& projection;
  const std::optional<Turns>& turns;
  const AttentionOptions& options;  // without a mask
  const Linear& output;

  // Behind it y = mlp(mlp_norm(y)) + y; both or none.
  const Norm* mlp_norm = nullptr;
  const GatedMlp* mlp = nullptr;
};

/// Whether attention_block() takes these: on the CPU, x float32, every weight packed.
bool is_block(const AttentionBlock& block, const mlx::core::array& x);

struct BlockOutput {
  mlx::core::array y;              // [B, T, hidden]
  std::vector<KvBuffers> buffers;  // of each sequence, with its new rows
};

/// x: [B, T, hidden], what is_block() takes; one set of buffers for B sequences of T tokens, or with B = 1 several, one
/// after the other in T. residual: added to the attention's output, as x is shaped, or null. Lazy. Buffers are written
/// in place where these are the last handles on them.
/// Throws std::invalid_argument if sizes, types, runs or options don't fit.
BlockOutput attention_block(const mlx::core::array& x, const AttentionBlock& block, std::vector<SequenceRows> sequences,
                            const std::optional<mlx::core::array>& residual);

}  // namespace memoir::kernels
