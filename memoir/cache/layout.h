#pragma once

// Where rows of keys and values lie in a buffer, as integers only (no MLX): what a write overwrites, how the buffer
// grows, how far a rewind may go. The arrays themselves belong to kv.h.
//
// Flat layout. Invariants:
//   1. Row i of the buffer holds position i.
//   2. 0 <= offset <= capacity; rows [0, offset) are readable, the rest is padding or left over from a rewind.
// Threads: none of its own; the owner serializes.

namespace memoir::cache {

/// What one write needs done. Rows are half-open ranges.
struct FlatWrite {
  int begin;       // the first row written: the offset before the write
  int end;         // one past the last: the offset after it
  int kept_rows;   // when the buffer grows: how many of its rows are carried over
  int added_rows;  // zero rows appended behind them; 0 = the buffer is large enough and stays
};

class FlatLayout {
 public:
  /// A buffer grows by whole steps of this many rows, so that it is copied once in kStep decode steps.
  static constexpr int kStep = 256;

  int offset() const { return offset_; }
  int capacity() const { return capacity_; }

  /// Plans a write of n_tokens rows; changes nothing. Growth: the buffer is cut to the offset unless that is a
  /// multiple of kStep, then ceil(n_tokens / kStep) * kStep rows are appended.
  /// Throws std::invalid_argument if n_tokens < 1 or the offset would pass 2^30.
  FlatWrite plan(int n_tokens) const;

  /// Takes over a plan made by plan() on the present state.
  void apply(const FlatWrite& write);

  /// Moves the offset to `target`. Returns false, changing nothing, if target is negative or above the offset.
  bool rewind(int target);

  /// Back to no rows and no capacity.
  void clear();

 private:
  int offset_ = 0;
  int capacity_ = 0;
};

}  // namespace memoir::cache
