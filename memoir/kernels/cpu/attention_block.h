#pragma once

// A layer's attention from its input to its output, and the feed-forward behind it, as one piece of work: nothing but
// the calls of fused.h, kv_write.h, attention.h and matmul.h one after the other, so the bits are those of the single
// calls. No MLX.
//
// What lies between the calls is kept in memory of the calling thread (scratch.h): a decode step allocates nothing, and
// a prefill needs it once for all layers.

#include <vector>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/fused.h"
#include "memoir/kernels/cpu/kv_write.h"

namespace memoir::kernels::cpu {

/// The rows of one sequence (or of several of one length that share a buffer): queries, keys and values
/// [begin, begin + n_tokens) of T.
struct BlockSequence {
  int begin = 0;
  int n_tokens = 0;
  KvWriteArgs keys{};  // rows, strides between sequences; the rest is set here
  KvWriteArgs values{};
  std::vector<RowRun> runs;     // where the new rows go
  std::vector<KvRange> ranges;  // what is stored then
  AttentionArgs attention{};    // of sequence 0: what the queries see; the rest is set here
};

struct AttentionBlockArgs {
  ProjectionArgs projection;  // x and what it is projected with; scratch and outputs are set here
  std::vector<BlockSequence> sequences;
  LinearArgs output;
  const float* residual = nullptr;  // [B * T, output rows] or null, added to the attention's output
  bool has_mlp = false;             // behind it y = mlp(norm(y)) + y
  NormArgs mlp_norm{};
  GatedMlpArgs mlp{};  // weights and gate
  float* y = nullptr;  // [B * T, output rows]
};

/// args is changed: it is good for one call. Throws std::bad_alloc.
void attention_block(AttentionBlockArgs& args);

}  // namespace memoir::kernels::cpu
