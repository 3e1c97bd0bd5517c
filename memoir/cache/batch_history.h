#pragma once

// What attention reads of a left-padded batch: the batch's rows as they lie, and the integers that tell which of them
// each sequence has. Two ways to attend:
//   rows()            each sequence's rows by its own positions, as kernels::attention takes several sequences: no
//   mask,
//                     and on the CPU the bits that each sequence gets alone
//   keys(), values()  one padded tensor with mask(), for one call over all
//
// The arrays are the cache's buffers: drop the history before the next update, else that has to copy them.

#include <mlx/array.h>

#include <optional>
#include <utility>
#include <vector>

#include "memoir/cache/padding.h"
#include "memoir/kernels/attention.h"
#include "memoir/kernels/position_mask.h"

namespace memoir::cache {

/// Where the sequences of a batch stand, in columns of the padded tensor; a row's position is column - left_padding.
struct BatchColumns {
  int first = 0;  // the columns of the history: [first, end)
  int end = 0;
  std::vector<int> left_padding;    // [B]
  std::vector<int> first_query;     // [B] position of query 0, negative in padding
  std::vector<Padding::Span> real;  // [B] which of the queries are real
  int n_queries = 0;
  kernels::PositionRule rule = {};  // of the cache: window and keep, or chunk

  /// Real tokens of a sequence, those of the queries included.
  int offset(std::size_t sequence) const { return first_query[sequence] + real[sequence].end; }

  /// Which rows of the padded history each query may see: bool [B, 1, T, S], S = keep + end - first; rows in the order
  /// of positions, behind those of the first keep positions. `rule` in the place of the cache's own. Lazy.
  mlx::core::array mask(const kernels::PositionRule& rule) const;
};

class BatchHistory {
 public:
  /// history: of all sequences, its positions being columns. kept_*: the rows of the first keep positions of each
  /// sequence, [B, H, keep, D]; none without keep.
  BatchHistory(BatchColumns columns, kernels::History history, std::optional<kernels::KvBuffer> kept_keys,
               std::optional<kernels::KvBuffer> kept_values);

  const BatchColumns& columns() const { return columns_; }

  /// Each sequence's own history, with as many queries as are real: 0 for one that has none. Lazy: views, but for a
  /// ring that keeps its first positions, which is copied.
  std::vector<kernels::SequenceHistory> rows() const;

  /// [B, H, S, D], dequantized. Lazy.
  mlx::core::array keys() const;
  mlx::core::array values() const;

  /// BatchColumns::mask by the cache's own rule.
  mlx::core::array mask() const { return columns_.mask(columns_.rule); }

 private:
  kernels::KvBuffer with_kept(const kernels::KvBuffer& buffer, const std::optional<kernels::KvBuffer>& kept) const;

  BatchColumns columns_;
  kernels::History history_;
  std::optional<kernels::KvBuffer> kept_keys_;
  std::optional<kernels::KvBuffer> kept_values_;
};

/// kernels::attention for a batch. queries: [B, H, T, Dk], T those of the update that returned the history. Returns
/// [B, T, H * Dv]; what belongs to padding is zeros on the CPU, and means nothing on a GPU. Lazy.
/// Throws std::invalid_argument as kernels::attention, and if the options hold a mask.
mlx::core::array attention(const mlx::core::array& queries, const BatchHistory& history,
                           const kernels::AttentionOptions& options);

}  // namespace memoir::cache
