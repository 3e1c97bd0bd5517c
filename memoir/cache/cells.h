#pragma once

// Which cell of one buffer holds which position of which sequences, as integers only (no MLX): where new positions go,
// which ones a window lets go, what sequences share, what has to move. The rows themselves belong to cell_cache.h.
//
// A cell holds one position, for one sequence or for several that share a beginning: a copy of a prefix makes its cells
// belong to one more sequence and moves nothing. A cell is free when it belongs to none.
//
// Invariants:
//   1. A sequence's positions are strictly ascending; a cell has the same position in all sequences that own it.
//   2. A cell is free if and only if no sequence owns it.
//   3. A call that throws, or returns a refusal, leaves everything as it was.
// Threads: none of its own; the owner serializes.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memoir/cache/free_cells.h"
#include "memoir/cache/layout.h"

namespace memoir::cache {

/// Where the rows of a batch go.
enum class Placing {
  kSideBySide,  // in one run: the first that is long enough, after a defragmentation if there is none
  kFirstFree,   // in the first free cells, wherever they are
  kBesideOwn,   // behind their own sequence's last one, with room to go on, so that a sequence has few, long runs
};

struct CellsOptions {
  int max_sequences = 1;  // their numbers are 0, 1, ... max_sequences - 1
  int capacity = 1;       // positions of each, for the number of cells
  int max_batch = 512;    // the most rows of a batch

  std::optional<int> window = std::nullopt;  // a query sees this many positions, its own included,
  int keep = 0;                              // and the positions below keep
  std::optional<int> chunk = std::nullopt;   // a query sees its own chunk; not together with a window

  /// With a window: so many positions before the first of a batch stay; at least and by default window - 1. With more
  /// than one sequence at least `window` stay, so that one position can be taken back. At or above the capacity: all.
  std::optional<int> memory = std::nullopt;

  int padding = 1;       // the number of cells, and what is read of them, is a multiple
  int mask_padding = 1;  // as is the number of rows of a mask

  /// How many cells there are, rounded up to the padding. By default as many as the sequences can need without sharing:
  /// max_sequences * capacity, or with a window max_sequences * (keep + memory) + max_batch.
  std::optional<int> n_cells = std::nullopt;

  Placing placing = Placing::kSideBySide;
  int max_moves = Layout::kMaxRows;  // runs that one batch may have moved; where they don't do, its rows are scattered
};

/// The rows of a forward pass, row i of sequence sequences[i] at positions[i].
struct CellBatch {
  std::vector<int> sequences;
  std::vector<int> positions;

  int n_rows() const { return static_cast<int>(positions.size()); }
};

/// Cells [begin, end).
struct CellSpan {
  int begin = 0;
  int end = 0;
  bool operator==(const CellSpan&) const = default;
};

/// Where a batch goes.
struct CellPlace {
  std::vector<RowRun> moves;  // rows of the buffer to move before: no cell is in two of them, so in any order
  std::vector<RowRun> rows;   // from the batch's rows to cells
};

/// How a removal ended.
enum class Removal {
  kDone,
  kShared,  // a position that would have to shift belongs to another sequence too: its keys can't be turned for one
  kWindow,  // a query at the new end would see positions that the window has let go
  kNoTurn,  // positions would have to shift, and keys can't be turned to others: the model has no function for it
};

/// What a removal changed.
struct RemovedCells {
  Removal result = Removal::kDone;
  std::vector<StoredRun> shifted;  // where the positions lie, new ones, that went down
  int shift = 0;                   // by so much, negative
};

class Cells {
 public:
  /// Throws std::invalid_argument for an option out of range, or one that contradicts another.
  explicit Cells(const CellsOptions& options);

  const CellsOptions& options() const { return options_; }
  int n_cells() const { return free_.n_cells(); }
  int n_free() const { return free_.n_free(); }

  /// One past the sequence's last position; 0 for an empty one. The functions with a sequence throw
  /// std::invalid_argument for one that was not promised.
  int end(int sequence) const;

  /// The sequence's positions and where they lie, by position.
  const std::vector<StoredRun>& runs(int sequence) const;

  /// Those of them in [begin, end) or below `keep`.
  std::vector<StoredRun> runs(int sequence, int begin, int end) const;

  /// The first position that a query at `position` sees, those below keep aside.
  int first_seen(int position) const;

  /// How many sequences own the cell, and which. Costs a search in each sequence. For tests and reports.
  int n_owners(int cell) const { return n_owners_[static_cast<std::size_t>(cell)]; }
  std::vector<int> owners(int cell) const;

  /// What finding, taking and giving cells has cost so far (FreeCells::n_steps).
  std::int64_t n_steps() const { return free_.n_steps(); }

  /// True if place() has room for the batch, with what the window lets go. Throws as place().
  bool has_room(const CellBatch& batch) const;

  /// Lets go what is behind the windows, and gives each row a cell. nullopt: the cells are all in use.
  /// Throws std::invalid_argument if the batch is empty or larger than max_batch, a sequence was not promised, or a
  /// position is not above the ones before it in its sequence.
  std::optional<CellPlace> place(const CellBatch& batch);

  /// Sequence `number` becomes these positions, ascending and any number of them, in cells of its own; what it had
  /// goes, other sequences let nothing go. nullopt: there is no room. Throws std::invalid_argument as place().
  std::optional<CellPlace> replace(int number, const std::vector<int>& positions);

  /// True if replace() has room for so many.
  bool has_room_to_replace(int number, int n_positions) const;

  /// The cells from the lowest to the highest that the queries of a batch, once placed, see; widened to the padding. (A
  /// chunk hides by the mask alone.) Throws std::invalid_argument for another number of sequences than of positions.
  CellSpan seen(const CellBatch& batch) const;

  /// Rows of n_rows rounded up to mask_padding, columns the cells of `span`: 1 where the row's query sees the cell's
  /// position. `except`: rows of the batch whose queries also see later positions of their own sequence. Throws as
  /// seen(), and for a span that lies outside of the cells.
  std::vector<std::uint8_t> mask(const CellBatch& batch, const CellSpan& span, std::span<const int> except = {}) const;

  /// Sequence `to` becomes the positions of `from` below `end`, in the same cells. What it had goes.
  /// Throws std::invalid_argument if they are the same.
  void copy_prefix(int from, int to, int end);

  /// True if a query at `position` could come next, once what is there has been removed: everything it sees is stored.
  /// Where no window lets anything go always; else false for a sequence without positions.
  bool can_resume(int sequence, int position) const;

  /// What remove() would return, but for the shifted runs.
  Removal check_removal(int sequence, int begin, std::optional<int> end = std::nullopt) const;

  /// Drops the positions [begin, end), to the last one without an end; later ones go down by end - begin.
  /// Throws std::invalid_argument if begin is negative or end is below it.
  RemovedCells remove(int sequence, int begin, std::optional<int> end = std::nullopt);

  /// Moves runs of the highest cells into the first free ones, at most max_moves of them, and no more once n_wanted
  /// free cells lie side by side (all of them by default). Returns the moves, as CellPlace has them.
  std::vector<RowRun> defragment(int max_moves = Layout::kMaxRows, std::optional<int> n_wanted = std::nullopt);

 private:
  struct Sequence {
    std::vector<StoredRun> runs;
    bool is_tidy = true;  // nothing is behind the window of the next position
  };

  void check(const CellBatch& batch) const;
  const Sequence& sequence(int number) const;
  std::vector<int> let_go_below(const CellBatch& batch) const;
  int n_let_go(const std::vector<int>& lowest) const;
  int n_alone(const Sequence& sequence) const;
  CellPlace settle(const CellBatch& batch);
  void cut(Sequence& sequence, int begin, int end);
  void own(Sequence& sequence, int first_position, int begin_cell, int n_cells);
  void choose_side_by_side(int n_rows, CellPlace& place);
  int n_runs() const;
  void choose_first_free(int from_row, int n_rows, std::vector<RowRun>& rows);
  void choose_beside(const Sequence& sequence, int from_row, int n_rows, std::vector<RowRun>& rows);
  void use(int from_row, int cell, int n_rows, std::vector<RowRun>& rows);
  int first_stored(const Sequence& sequence) const;
  bool stays_whole(int sequence, int begin, std::optional<int> end) const;
  void move_owners(int from, int to, int n);
  void follow(const std::vector<RowRun>& moves);

  CellsOptions options_;
  bool keeps_all_;  // no window lets anything go
  int memory_ = 0;  // positions before a batch's first that stay
  FreeCells free_;
  std::vector<int> n_owners_;  // of each cell
  std::vector<Sequence> sequences_;
};

}  // namespace memoir::cache
