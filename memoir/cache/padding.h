#pragma once

// Which columns of a batch's tokens are real, as integers only (no MLX), for caches whose sequences need not be of one
// length: left[b] columns of what is fed next come before a sequence's first token, and of the columns after that only
// those below lengths[b] are real. Both count down as columns are taken in. And how many real tokens each sequence has
// taken in so far.
//
// Columns are counted by the cache that owns this: its offset. Values, any thread.

#include <vector>

#include "memoir/kernels/cpu/token_rows.h"

namespace memoir::cache {

class Padding {
 public:
  using Span = kernels::cpu::TokenSpan;

  /// A length that no call reaches: all columns are real.
  static constexpr int kAllReal = 1 << 30;

  Padding() = default;

  /// Throws std::invalid_argument if one is negative.
  explicit Padding(std::vector<int> left);

  /// A single sequence after `offset` tokens, or a batch whose sequences all have as many.
  bool is_even() const { return left_.empty() && lengths_.empty() && offsets_.empty(); }

  const std::vector<int>& left() const { return left_; }        // empty: none
  const std::vector<int>& lengths() const { return lengths_; }  // empty: all that comes is real
  const std::vector<int>& offsets() const { return offsets_; }  // empty: as many as columns

  /// Sequences, 0 where nothing tells.
  int n_sequences() const;

  /// The real tokens of a sequence of a cache at `columns`.
  int offset_of(int sequence, int columns) const;

  /// Of the columns to come, those below lengths[b] are real. n_sequences: of the cache; 0: not known yet.
  /// Throws std::invalid_argument if a length is negative or their number is not n_sequences.
  void prepare(std::vector<int> lengths, int n_sequences);

  /// From here on every column is real.
  void finalize();

  /// Real columns of the next n_columns for each sequence; empty if all are.
  std::vector<Span> spans(int n_columns) const;

  /// n_columns have been taken in by a cache that was at `columns`.
  void advance(int n_columns, int columns);

  /// Keeps these sequences in this order. Returns the columns of what is left: the most real tokens of any.
  int filter(const std::vector<int>& sequences, int columns);

  /// Puts n_other sequences of a cache at other_columns behind the n of one at `columns`.
  void extend(const Padding& more, int n, int columns, int n_other, int other_columns);

  /// What is known beside a file's left padding and lengths. Throws std::invalid_argument if their number differs.
  void set(std::vector<int> left, std::vector<int> lengths, std::vector<int> offsets);

 private:
  std::vector<int> left_;
  std::vector<int> lengths_;
  std::vector<int> offsets_;
};

}  // namespace memoir::cache
