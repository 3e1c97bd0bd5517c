#pragma once

// Attention of new queries over the rows of a cache.

#include <mlx/array.h>

#include <optional>
#include <vector>

#include "memoir/kernels/history.h"

namespace memoir::kernels {

struct AttentionOptions {
  float scale;                                           // applied to query-key products, usually 1 / sqrt(D)
  std::optional<int> window = std::nullopt;              // a query sees itself and the window - 1 positions before it
  int keep = 0;                                          // and, with a window, the positions below keep
  std::optional<int> chunk = std::nullopt;               // only positions p with the same p / chunk are seen
  float soft_cap = 0;                                    // 0: none; else cap * tanh(score / cap), before masks
  bool is_causal = true;                                 // false: positions after the query's are seen too
  std::optional<mlx::core::array> sinks = std::nullopt;  // [H]: one more score for each head, without a value

  /// [B or 1, H or 1, T, S], bool (may it be seen) or float (added to the score), besides the rules above.
  std::optional<mlx::core::array> mask = std::nullopt;
};

/// The options for this history: the narrower of both windows. The history's keep holds where the options have no
/// window of their own.
AttentionOptions narrowed(const AttentionOptions& options, const History& history);

/// Softmax attention; query heads share key heads in equal runs (H a multiple of Hkv).
/// queries: [B, H, T, Dk], at the last T positions of the history. Returns [B, T, H * Dv] in the queries' type. Lazy.
/// On the CPU rows are read where they lie, sums are float32, and the bits of a query's result depend on its position
/// and what it sees alone (cpu/attention.h). A query that sees nothing gives zeros there, NaN on a GPU.
/// Throws std::invalid_argument if shapes, types or options don't fit.
mlx::core::array attention(const mlx::core::array& queries, const History& history, const AttentionOptions& options);

/// Several sequences of any lengths in one call: sequence s has the next n_queries rows of the queries, which are its
/// history's last positions.
struct SequenceHistory {
  int n_queries;
  History history;  // of one sequence (B = 1)
};

/// queries: [1, H, T, Dk], T the sum of the sequences' n_queries. Returns [1, T, H * Dv], each sequence's rows with the
/// bits that it gets alone. Lazy. A single history may be of B sequences, as above.
/// Throws std::invalid_argument as above, and if there are several and the options hold a mask.
mlx::core::array attention(const mlx::core::array& queries, const std::vector<SequenceHistory>& sequences,
                           const AttentionOptions& options);

}  // namespace memoir::kernels
