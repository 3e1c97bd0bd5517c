#pragma once

// Softmax attention of one sequence's new queries over the rows of its cache, read where they lie. No MLX.
//
// Positions are cut into blocks of kBlockPositions, at multiples of it. For a query and a block: the scores, their
// maximum m, the sum l of e^(score - m) and the so weighted sum o of the values, each in one fixed order; the blocks'
// (m, l, o) are merged from the lowest position on, and out = o / l. Nothing else enters, so the bits of a query's
// result are the same whether it came alone or with others, whatever the place of the rows in their buffer, and for
// every number of threads.
//
// A row that a query does not see has weight 0; a NaN or infinity among its values still reaches the queries of the
// same call that see other rows of its block. A query that sees nothing gets zeros.

#include <cstddef>
#include <cstdint>
#include <span>

#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels::cpu {

inline constexpr int kBlockPositions = 64;

/// Rows of consecutive positions that lie one after the other in the buffer.
struct KvRange {
  int first_position;
  int begin_row;
  int n_rows;
};

/// Keys or values of one sequence: dense, or codes with scales and biases. Strides in elements of each array.
struct KvRows {
  int dim;           // elements of a row
  Element element;   // of dense rows, or of scales and biases
  const void* data;  // dense elements, or uint32 words of codes as in MLX's form
  std::ptrdiff_t head_stride;
  std::ptrdiff_t row_stride;

  int bits = 0;  // 0: dense; else 2, 3, 4, 5, 6 or 8
  int group_size = 0;
  const void* scales = nullptr;  // [heads, rows, dim / group_size], as biases
  const void* biases = nullptr;
  std::ptrdiff_t scale_head_stride = 0;
  std::ptrdiff_t scale_row_stride = 0;
};

enum class MaskElement : std::uint8_t { kNone, kBool, kF32 };

struct AttentionArgs {
  int n_heads;
  int n_kv_heads;  // divides n_heads; query heads share key heads in equal runs
  int n_queries;
  int first_position;  // of query 0; the next ones follow
  const float* queries;
  std::ptrdiff_t query_head_stride;
  std::ptrdiff_t query_row_stride;
  KvRows keys;
  KvRows values;
  std::span<const KvRange> ranges;  // by position, not overlapping

  float scale;                   // of the products
  float soft_cap = 0;            // 0: none; else cap * tanh(score / cap), before masks
  int window = 0;                // 0: none; else a query sees itself and the window - 1 positions before it,
  int keep = 0;                  // and the positions below keep
  int chunk = 0;                 // 0: none; else only positions p with the same p / chunk
  bool is_causal = true;         // false: positions after the query's are seen too
  const float* sinks = nullptr;  // [n_heads] or null: a further score that has no value

  // [heads, queries, rows], rows in the order of the ranges; kBool: may it be seen; kF32: added to the score.
  MaskElement mask_element = MaskElement::kNone;
  const void* mask = nullptr;
  std::ptrdiff_t mask_head_stride = 0;
  std::ptrdiff_t mask_query_stride = 0;

  float* out;  // [queries, heads, values.dim] by strides
  std::ptrdiff_t out_head_stride;
  std::ptrdiff_t out_row_stride;

  float* blocks = nullptr;   // see AttentionPlan
  int first_block = 0;       // block of the lowest position any query sees
  int n_blocks = 0;          // from there on, but for
  int n_skipped_blocks = 0;  // these, which lie between the kept positions and the window,
  int n_kept_blocks = 0;     // behind as many

  /// The i-th block that is looked at, 0 <= i < n_blocks.
  int block_at(int i) const { return first_block + i + (i < n_kept_blocks ? 0 : n_skipped_blocks); }
};

/// What one part computes, for the query heads of one key head: all blocks for some queries (writing out), or some
/// blocks for all queries (writing their (m, l, o) to args.blocks, for merge_blocks).
struct AttentionPart {
  int kv_head;
  int query_begin;
  int query_end;
  int block_begin;
  int block_end;
  bool keeps_blocks;
  int next_kv_head = 0;  // what this thread is likely to do next, to be asked for ahead:
  int next_block = -1;   // a block of a key head; -1: not known
};

/// Floats of a row of (o, m, l): values.dim rounded up to lanes, and 16 for m and l.
constexpr std::size_t block_floats(int value_dim) {
  return static_cast<std::size_t>(padded_to_lanes(value_dim) + kLanes);
}

/// Floats of scratch that a part needs.
std::size_t attention_scratch_floats(const AttentionArgs& args);

/// out of every query of every sequence, on all threads. blocks and what follows it need not be set. Where queries are
/// few, memory for n_heads * n_queries * n_blocks partial results, 64 MiB at most, is kept per calling thread.
void attention(std::span<const AttentionArgs> sequences);

}  // namespace memoir::kernels::cpu
