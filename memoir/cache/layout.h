#pragma once

// Where rows of keys and values lie in a buffer, as integers only (no MLX): what a write overwrites, when the buffer
// changes its size, which rows can be read, how far a rewind may go. The arrays themselves belong to kv.h.
//
// One class for three layouts, told apart by the rule that says from which position on a query at position p looks:
//   flat   from 0: every row stays
//   ring   from p - window + 1, and the positions below `keep`; rows are written round and round
//   chunk  from p / chunk * chunk, the start of its chunk; rows are written round and round
//
// Position p lies in row p if it is below keep, else in row keep + (p - keep) mod (capacity - keep); flat: in row p.
//
// Invariants, which plan() keeps:
//   1. Stored are the positions below min(keep, offset) and those of [first, offset).
//   2. Every row that a query at the offset needs is stored.
//   3. A write overwrites no row that the first of its own queries needs, nor one that is needed to take back as many
//      as kSlack of the rows then written. Steady writes of up to kSlack rows move nothing: the capacity of a ring or
//      chunk is keep + window (or chunk) + kSlack.
// Threads: none of its own; the owner serializes.

#include <vector>

namespace memoir::cache {

/// n_rows rows, from row from_row on of one array to row to_row on of another.
struct RowRun {
  int from_row;
  int to_row;
  int n_rows;
};

/// Consecutive positions in consecutive rows of the buffer.
struct StoredRun {
  int first_position;
  int begin_row;
  int n_rows;
};

/// Positions: those below n_kept, and [first, end). n_kept <= first <= end; n_kept is 0 if first is.
struct Positions {
  int n_kept = 0;
  int first = 0;
  int end = 0;

  int n_rows() const { return n_kept + end - first; }
  bool is_empty() const { return n_rows() == 0; }
  bool has_all_of(const Positions& other) const;
  bool operator==(const Positions&) const = default;
};

/// What one write needs done. First, where the capacity changes, a new buffer takes over the carried rows; then the new
/// rows are written.
struct Write {
  bool relocates = false;
  int capacity = 0;             // of the buffer after the write
  Positions kept;               // positions that the new buffer takes over, if it relocates,
  std::vector<RowRun> carried;  // and their rows, from the old buffer to the new one
  std::vector<RowRun> rows;     // from the new rows to the buffer
  Positions stored;             // after the write
};

class Layout {
 public:
  /// A buffer grows by whole steps of this many rows, so that a flat one is copied once in kStep decode steps.
  static constexpr int kStep = 256;

  /// As many rows can be taken back from a ring or chunk, whatever its turn.
  static constexpr int kSlack = 16;

  /// The most rows, and the highest offset: far beyond any context, far below INT_MAX.
  static constexpr int kMaxRows = 1 << 30;

  enum class Rule { kFlat, kRing, kChunk };

  static Layout flat() { return Layout(Rule::kFlat, 0, 0); }

  /// A query sees itself and the window - 1 positions before it, and the positions below keep.
  /// Throws std::invalid_argument unless window >= 1, keep >= 0 and window + keep + kSlack <= 2^30.
  static Layout ring(int window, int keep = 0);

  /// A query sees the positions of its own chunk, up to itself.
  /// Throws std::invalid_argument unless chunk >= 1 and chunk + kSlack <= 2^30.
  static Layout chunk(int chunk);

  Rule rule() const { return rule_; }
  int window() const { return rule_ == Rule::kRing ? size_ : 0; }  // 0: not a ring
  int keep() const { return keep_; }
  int chunk() const { return rule_ == Rule::kChunk ? size_ : 0; }  // 0: not chunked

  int offset() const { return stored_.end; }
  int capacity() const { return capacity_; }
  const Positions& stored() const { return stored_; }

  /// The positions before `position` that a query there sees.
  Positions needed(int position) const;

  /// The positions that n_queries queries at the last positions, [offset - n_queries, offset), see between them: what a
  /// history of theirs holds. Clipped to what is stored.
  Positions seen_by_last(int n_queries) const;

  /// Where these positions lie; by position, not overlapping. `positions` must be stored.
  std::vector<StoredRun> runs(const Positions& positions) const;

  /// Says that n_rows positions in all are to come: a flat buffer that is made from now on has room for as many.
  void reserve(int n_rows) { reserved_ = n_rows; }

  /// Plans a write of n_tokens rows; changes nothing.
  /// Flat growth: the buffer is cut to the offset, and ceil(n_tokens / kStep) * kStep rows follow, or what is reserved
  /// where that is more. A ring or chunk
  /// grows by steps up to its steady capacity, beyond it where n_tokens > kSlack needs that, and goes back to it with
  /// the first write of at most kSlack rows. Throws std::invalid_argument if n_tokens < 1 or the offset would pass
  /// 2^30.
  Write plan(int n_tokens) const;

  /// Plans that the buffer comes to hold exactly these positions, whose rows come one after the other (more may
  /// follow). Flat: `positions` begin at an offset that is stored, and the rows below stay; else all rows are replaced,
  /// by none where a query at the end needs none. Throws std::invalid_argument if they don't hold what a query at their
  /// end needs, or (flat) don't begin at or below the offset.
  Write plan_restore(const Positions& positions) const;

  /// True if the rows that lie in the buffer for `held`, stored or left over from before a rewind, will still lie there
  /// after the write.
  bool survives(const Positions& held, const Write& write) const;

  /// Takes over a plan made on the present state.
  void apply(const Write& write);

  /// True if all rows that a query at `target` needs are stored, so always for 0 <= target <= keep, and for the offset
  /// itself; false if target is negative or above the offset.
  bool can_rewind(int target) const { return reaches(stored_, target); }

  /// The same with `held` in the place of what is stored.
  bool reaches(const Positions& held, int target) const;

  /// Moves the offset to `target`. Returns false, changing nothing, where can_rewind does.
  bool rewind(int target);

  /// `held`, cut to what lies before `target`.
  static Positions cut(const Positions& held, int target);

  /// What a snapshot of [from, offset) holds. Flat: these positions. Else what a query at the offset needs, and what
  /// there is of the rows to take kSlack back, whatever `from` is.
  Positions held_by_snapshot(int from) const;

  /// What is stored of what a query at `at` needs, and of the rows to take kSlack back from there; flat: [0, at).
  /// 0 <= at <= offset.
  Positions held_at(int at) const;

  /// Takes rows that lie in the buffer, left over from before a rewind, for stored again. The owner vouches for them.
  void reclaim(const Positions& positions) { stored_ = positions; }

  /// Back to no rows and no capacity, and nothing reserved.
  void clear();

 private:
  Layout(Rule rule, int size, int keep) : rule_(rule), size_(size), keep_(keep) {}

  int steady_capacity() const { return keep_ + size_ + kSlack; }
  int first_needed(int position) const;
  int row_of(int position, int capacity) const;
  std::vector<StoredRun> runs(const Positions& positions, int capacity) const;
  Positions normal(int first, int end) const;
  int first_to_keep(int n_tokens) const;
  int capacity_for(int n_rows) const;
  Write plan_flat(int n_tokens) const;
  void plan_carry(const Positions& kept, Write& write) const;
  void plan_rows(const Positions& positions, Write& write) const;

  Rule rule_;
  int size_;  // window or chunk
  int keep_;
  int capacity_ = 0;
  int reserved_ = 0;
  Positions stored_;
};

}  // namespace memoir::cache
