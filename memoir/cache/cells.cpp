#include "memoir/cache/cells.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace memoir::cache {
namespace {

constexpr int kNoEnd = std::numeric_limits<int>::max();

// With Placing::kBesideOwn a new run begins at a multiple of this, and has as much room; less where there is less, but
// not so little that runs have to be looked for at every other row.
constexpr int kRoom = 64;
constexpr int kLeastRoom = 16;

// A defragmentation looks at every run of every sequence. For a batch it goes on until there is room for a row for so
// many of them, which spreads that over the rows to come.
constexpr int kRunsPerRow = 16;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cells.") + function + "] " + what);
}

int round_up(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

void check_sizes(const char* function, const CellBatch& batch) {
  if (batch.sequences.size() == batch.positions.size()) return;
  refuse(function, "the batch has " + std::to_string(batch.positions.size()) + " positions for " +
                       std::to_string(batch.sequences.size()) + " sequences, expected as many");
}

void check_at_least(const char* name, int value, int low) {
  if (value < low || value > Layout::kMaxRows) {
    refuse("Cells",
           std::string(name) + " is " + std::to_string(value) + ", expected " + std::to_string(low) + " to 2^30");
  }
}

void check_options(const CellsOptions& options) {
  check_at_least("max_sequences", options.max_sequences, 1);
  check_at_least("capacity", options.capacity, 1);
  check_at_least("max_batch", options.max_batch, 1);
  check_at_least("padding", options.padding, 1);
  check_at_least("mask_padding", options.mask_padding, 1);
  check_at_least("max_moves", options.max_moves, 0);
  check_at_least("keep", options.keep, 0);
  if (options.window) check_at_least("window", *options.window, 1);
  if (options.chunk) check_at_least("chunk", *options.chunk, 1);
  if (options.n_cells) check_at_least("n_cells", *options.n_cells, 1);
  if (options.window && options.chunk) refuse("Cells", "window and chunk are both set, expected one at most");
  if (options.window && options.memory) check_at_least("memory", *options.memory, *options.window - 1);
  if (!options.window && (options.memory || options.keep > 0)) {
    refuse("Cells", "memory or keep without a window, expected neither");
  }
}

// Positions before a batch's first that stay; nullopt: all.
std::optional<int> memory_of(const CellsOptions& options) {
  if (!options.window) return std::nullopt;
  int memory = options.memory.value_or(*options.window - 1);
  if (options.max_sequences > 1) memory = std::max(memory, *options.window);
  if (memory >= options.capacity) return std::nullopt;
  return memory;
}

int number_of_cells(const CellsOptions& options) {
  const std::optional<int> memory = memory_of(options);
  const std::int64_t wanted =
      options.n_cells ? std::int64_t{*options.n_cells}
      : memory        ? std::int64_t{options.max_sequences} * (std::int64_t{options.keep} + *memory) + options.max_batch
                      : std::int64_t{options.max_sequences} * options.capacity;
  const std::int64_t padded = (wanted + options.padding - 1) / options.padding * options.padding;
  if (padded > Layout::kMaxRows) {
    refuse("Cells", std::to_string(options.max_sequences) + " sequences of " + std::to_string(options.capacity) +
                        " positions need " + std::to_string(padded) + " cells, expected at most 2^30");
  }
  return static_cast<int>(padded);
}

int end_of(const StoredRun& run) {
  return run.first_position + run.n_rows;
}

// The part of the run in [begin, end); n_rows is 0 or less if there is none.
StoredRun part_of(const StoredRun& run, int begin, int end) {
  const int first = std::clamp(begin, run.first_position, end_of(run));
  return {first, run.begin_row + (first - run.first_position), std::min(end_of(run), end) - first};
}

void append(std::vector<StoredRun>& runs, const StoredRun& run) {
  if (!runs.empty()) {
    StoredRun& last = runs.back();
    if (end_of(last) == run.first_position && last.begin_row + last.n_rows == run.begin_row) {
      last.n_rows += run.n_rows;
      return;
    }
  }
  runs.push_back(run);
}

// The first run that has a position at or above `position`.
template <class Runs>
auto run_at(Runs& runs, int position) {
  return std::partition_point(runs.begin(), runs.end(), [&](const StoredRun& run) { return end_of(run) <= position; });
}

}  // namespace

Cells::Cells(const CellsOptions& options)
    : options_((check_options(options), options)),
      keeps_all_(!memory_of(options)),
      memory_(memory_of(options).value_or(0)),
      free_(number_of_cells(options)),
      n_owners_(static_cast<std::size_t>(free_.n_cells()), 0),
      sequences_(static_cast<std::size_t>(options.max_sequences)) {}

const Cells::Sequence& Cells::sequence(int number) const {
  if (number < 0 || number >= options_.max_sequences) {
    refuse("sequence", "sequence " + std::to_string(number) + " is unknown, expected 0 to " +
                           std::to_string(options_.max_sequences - 1));
  }
  return sequences_[static_cast<std::size_t>(number)];
}

int Cells::end(int sequence) const {
  const std::vector<StoredRun>& stored = runs(sequence);
  return stored.empty() ? 0 : end_of(stored.back());
}

const std::vector<StoredRun>& Cells::runs(int sequence) const {
  return this->sequence(sequence).runs;
}

std::vector<StoredRun> Cells::runs(int sequence, int begin, int end) const {
  std::vector<StoredRun> result;
  const auto add = [&](const StoredRun& part) {
    if (part.n_rows > 0) append(result, part);
  };
  const std::vector<StoredRun>& stored = runs(sequence);
  const int n_kept = std::min(options_.keep, begin);
  for (auto run = stored.begin(); run != stored.end() && run->first_position < n_kept; ++run) {
    add(part_of(*run, 0, n_kept));
  }
  for (auto run = run_at(stored, begin); run != stored.end() && run->first_position < end; ++run) {
    add(part_of(*run, begin, end));
  }
  return result;
}

int Cells::first_seen(int position) const {
  if (options_.window) return std::max(0, position - *options_.window + 1);
  if (options_.chunk) return position / *options_.chunk * *options_.chunk;
  return 0;
}

std::vector<int> Cells::owners(int cell) const {
  std::vector<int> result;
  for (int number = 0; number < options_.max_sequences; ++number) {
    for (const StoredRun& run : runs(number)) {
      if (cell >= run.begin_row && cell < run.begin_row + run.n_rows) result.push_back(number);
    }
  }
  return result;
}

// ---- A batch

void Cells::check(const CellBatch& batch) const {
  const int n_rows = batch.n_rows();
  if (n_rows < 1 || n_rows > options_.max_batch || batch.sequences.size() != batch.positions.size()) {
    refuse("place", "the batch has " + std::to_string(n_rows) + " positions for " +
                        std::to_string(batch.sequences.size()) + " sequences, expected 1 to " +
                        std::to_string(options_.max_batch) + " of each");
  }
  std::unordered_map<int, int> ends;
  for (std::size_t i = 0; i < batch.positions.size(); ++i) {
    const int number = batch.sequences[i];
    const int position = batch.positions[i];
    const auto known = ends.emplace(number, end(number)).first;
    if (position < known->second || position >= Layout::kMaxRows) {
      refuse("place", "sequence " + std::to_string(number) + " has a row at position " + std::to_string(position) +
                          ", expected one from " + std::to_string(known->second) + " on and below 2^30");
    }
    known->second = position + 1;
  }
}

// For each sequence the position below which the window lets go; empty where nothing is.
std::vector<int> Cells::let_go_below(const CellBatch& batch) const {
  if (keeps_all_) return {};
  std::vector<int> first(sequences_.size(), kNoEnd);
  for (std::size_t i = 0; i < batch.positions.size(); ++i) {
    int& lowest = first[static_cast<std::size_t>(batch.sequences[i])];
    lowest = std::min(lowest, batch.positions[i]);
  }
  for (std::size_t number = 0; number < first.size(); ++number) {
    if (first[number] == kNoEnd) first[number] = sequences_[number].is_tidy ? 0 : end(static_cast<int>(number));
    first[number] -= memory_;
  }
  return first;
}

// Cells that become free when each sequence lets go what is below its position.
int Cells::n_let_go(const std::vector<int>& lowest) const {
  int n = 0;
  std::unordered_map<int, int> n_leaving;  // owners of shared cells
  for (std::size_t number = 0; number < lowest.size(); ++number) {
    const std::vector<StoredRun>& stored = sequences_[number].runs;
    for (auto run = run_at(stored, options_.keep); run != stored.end() && run->first_position < lowest[number]; ++run) {
      const StoredRun part = part_of(*run, options_.keep, lowest[number]);
      for (int cell = part.begin_row; cell < part.begin_row + part.n_rows; ++cell) {
        const int n_owners = n_owners_[static_cast<std::size_t>(cell)];
        if (n_owners == 1 || ++n_leaving[cell] == n_owners) ++n;
      }
    }
  }
  return n;
}

bool Cells::has_room(const CellBatch& batch) const {
  check(batch);
  return free_.n_free() >= batch.n_rows() || free_.n_free() + n_let_go(let_go_below(batch)) >= batch.n_rows();
}

std::optional<CellPlace> Cells::place(const CellBatch& batch) {
  if (!has_room(batch)) return std::nullopt;
  const std::vector<int> lowest = let_go_below(batch);
  for (std::size_t number = 0; number < lowest.size(); ++number) {
    cut(sequences_[number], options_.keep, lowest[number]);
    sequences_[number].is_tidy = true;
  }
  return settle(batch);
}

// Cells that no other sequence owns.
int Cells::n_alone(const Sequence& sequence) const {
  int n = 0;
  for (const StoredRun& run : sequence.runs) {
    const auto first = n_owners_.begin() + run.begin_row;
    n += static_cast<int>(std::count(first, first + run.n_rows, 1));
  }
  return n;
}

bool Cells::has_room_to_replace(int number, int n_positions) const {
  return free_.n_free() + n_alone(sequence(number)) >= n_positions;
}

std::optional<CellPlace> Cells::replace(int number, const std::vector<int>& positions) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < (i == 0 ? 0 : positions[i - 1] + 1) || positions[i] >= Layout::kMaxRows) {
      refuse("replace", "a row is at position " + std::to_string(positions[i]) + ", expected them ascending from 0");
    }
  }
  if (!has_room_to_replace(number, static_cast<int>(positions.size()))) return std::nullopt;
  cut(sequences_[static_cast<std::size_t>(number)], 0, kNoEnd);
  if (positions.empty()) return CellPlace{};
  return settle({std::vector<int>(positions.size(), number), positions});
}

// Chooses cells for the rows of a batch, for which there is room.
CellPlace Cells::settle(const CellBatch& batch) {
  CellPlace place;
  const int n_rows = batch.n_rows();
  switch (options_.placing) {
    case Placing::kSideBySide:
      choose_side_by_side(n_rows, place);
      break;
    case Placing::kFirstFree:
      choose_first_free(0, n_rows, place.rows);
      break;
    case Placing::kBesideOwn:
      for (int begin = 0, end = 0; begin < n_rows; begin = end) {
        const int number = batch.sequences[static_cast<std::size_t>(begin)];
        while (end < n_rows && batch.sequences[static_cast<std::size_t>(end)] == number) ++end;
        choose_beside(sequence(number), begin, end - begin, place.rows);
      }
      break;
  }
  for (const RowRun& run : place.rows) {
    for (int i = 0; i < run.n_rows; ++i) {
      const auto row = static_cast<std::size_t>(run.from_row + i);
      Sequence& owner = sequences_[static_cast<std::size_t>(batch.sequences[row])];
      own(owner, batch.positions[row], run.to_row + i, 1);
      owner.is_tidy = false;
    }
  }
  return place;
}

void Cells::use(int from_row, int cell, int n_rows, std::vector<RowRun>& rows) {
  free_.take(cell, n_rows);
  rows.push_back({from_row, cell, n_rows});
}

void Cells::choose_side_by_side(int n_rows, CellPlace& place) {
  std::optional<int> cell = free_.find(n_rows);
  if (!cell) {
    place.moves = defragment(options_.max_moves, std::max(n_rows, std::min(n_free(), n_runs() / kRunsPerRow)));
    cell = free_.find(n_rows);
  }
  if (cell) {
    use(0, *cell, n_rows, place.rows);
  } else {
    choose_first_free(0, n_rows, place.rows);
  }
}

// Of all sequences.
int Cells::n_runs() const {
  std::size_t n = 0;
  for (const Sequence& sequence : sequences_) n += sequence.runs.size();
  return static_cast<int>(n);
}

void Cells::choose_first_free(int from_row, int n_rows, std::vector<RowRun>& rows) {
  int cell = 0;
  while (n_rows > 0) {
    cell = free_.next_free(cell);
    const int n = free_.next_taken(cell, std::min(n_cells(), cell + n_rows)) - cell;
    use(from_row, cell, n, rows);
    from_row += n;
    n_rows -= n;
    cell += n;
  }
}

// Behind the last row, as far as that is free; then in a place of its own, where others don't write soon; then
// anywhere.
void Cells::choose_beside(const Sequence& sequence, int from_row, int n_rows, std::vector<RowRun>& rows) {
  if (!sequence.runs.empty()) {
    const int cell = sequence.runs.back().begin_row + sequence.runs.back().n_rows;
    const int n = cell < n_cells() ? free_.next_taken(cell, std::min(n_cells(), cell + n_rows)) - cell : 0;
    if (n > 0) use(from_row, cell, n, rows);
    from_row += n;
    n_rows -= n;
  }
  if (n_rows == 0) return;
  for (int room = kRoom; room >= kLeastRoom; room /= 2) {
    const std::optional<int> cell = free_.find(std::max(n_rows, room) + room - 1);
    if (cell) return use(from_row, round_up(*cell, room), n_rows, rows);
  }
  choose_first_free(from_row, n_rows, rows);
}

void Cells::own(Sequence& sequence, int first_position, int begin_cell, int n_cells) {
  for (int i = 0; i < n_cells; ++i) ++n_owners_[static_cast<std::size_t>(begin_cell + i)];
  append(sequence.runs, {first_position, begin_cell, n_cells});
}

CellSpan Cells::seen(const CellBatch& batch) const {
  check_sizes("seen", batch);
  std::unordered_map<int, int> lowest;
  for (std::size_t i = 0; i < batch.positions.size(); ++i) {
    const auto known = lowest.emplace(batch.sequences[i], batch.positions[i]).first;
    known->second = std::min(known->second, batch.positions[i]);
  }
  CellSpan span{n_cells(), 0};
  for (const auto& [number, position] : lowest) {
    for (const StoredRun& run : runs(number, options_.window ? first_seen(position) : 0, kNoEnd)) {
      span.begin = std::min(span.begin, run.begin_row);
      span.end = std::max(span.end, run.begin_row + run.n_rows);
    }
  }
  if (span.begin >= span.end) return {};
  return {span.begin / options_.padding * options_.padding, round_up(span.end, options_.padding)};
}

std::vector<std::uint8_t> Cells::mask(const CellBatch& batch, const CellSpan& span, std::span<const int> except) const {
  check_sizes("mask", batch);
  if (span.begin < 0 || span.begin > span.end || span.end > n_cells()) {
    refuse("mask", "cells [" + std::to_string(span.begin) + ", " + std::to_string(span.end) + ") of " +
                       std::to_string(n_cells()));
  }
  const int n_columns = span.end - span.begin;
  const int n_rows = round_up(batch.n_rows(), options_.mask_padding);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(n_columns), 0);
  for (int row = 0; row < batch.n_rows(); ++row) {
    const int position = batch.positions[static_cast<std::size_t>(row)];
    const bool sees_later = std::find(except.begin(), except.end(), row) != except.end();
    const int end = sees_later ? kNoEnd : position + 1;
    const int number = batch.sequences[static_cast<std::size_t>(row)];
    for (const StoredRun& run : runs(number, first_seen(position), end)) {
      const int begin_cell = std::max(run.begin_row, span.begin);
      const int end_cell = std::min(run.begin_row + run.n_rows, span.end);
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * n_columns - span.begin;
      for (int cell = begin_cell; cell < end_cell; ++cell) mask[static_cast<std::size_t>(at + cell)] = 1;
    }
  }
  return mask;
}

// ---- Positions that go

// Takes positions [begin, end) from the sequence.
void Cells::cut(Sequence& sequence, int begin, int end) {
  if (begin >= end) return;
  std::vector<StoredRun>& stored = sequence.runs;
  const auto first = run_at(stored, begin);
  if (first == stored.end() || first->first_position >= end) return;
  std::vector<StoredRun> gone;
  std::vector<StoredRun> left;
  auto last = first;
  for (; last != stored.end() && last->first_position < end; ++last) {
    gone.push_back(part_of(*last, begin, end));
    for (const StoredRun& part : {part_of(*last, 0, begin), part_of(*last, end, kNoEnd)}) {
      if (part.n_rows > 0) left.push_back(part);
    }
  }
  stored.insert(stored.erase(first, last), left.begin(), left.end());
  for (const StoredRun& run : gone) {
    const int run_end = run.begin_row + run.n_rows;
    int free_begin = run.begin_row;  // of the cells that nobody owns any more
    for (int cell = run.begin_row; cell < run_end; ++cell) {
      if (--n_owners_[static_cast<std::size_t>(cell)] == 0) continue;
      if (cell > free_begin) free_.give(free_begin, cell - free_begin);
      free_begin = cell + 1;
    }
    if (run_end > free_begin) free_.give(free_begin, run_end - free_begin);
  }
}

void Cells::copy_prefix(int from, int to, int end) {
  sequence(from);
  sequence(to);
  if (from == to) refuse("copy_prefix", "sequence " + std::to_string(from) + " is to be copied to itself");
  Sequence& target = sequences_[static_cast<std::size_t>(to)];
  cut(target, 0, kNoEnd);
  for (const StoredRun& run : runs(from)) {
    const StoredRun part = part_of(run, 0, end);
    if (part.n_rows > 0) own(target, part.first_position, part.begin_row, part.n_rows);
  }
  target.is_tidy = false;
}

// The first position at or above `keep` from which on nothing has been let go.
int Cells::first_stored(const Sequence& sequence) const {
  const auto run = run_at(sequence.runs, options_.keep);
  return run == sequence.runs.end() ? options_.keep : std::max(run->first_position, options_.keep);
}

bool Cells::can_resume(int sequence, int position) const {
  const Sequence& one = this->sequence(sequence);
  if (keeps_all_) return true;
  if (one.runs.empty() || position < 0 || position > end(sequence)) return false;
  const bool is_kept = position <= options_.keep && options_.keep > 0;
  return is_kept || std::max(first_seen(position), options_.keep) >= first_stored(one);
}

Removal Cells::check_removal(int sequence, int begin, std::optional<int> end) const {
  const Sequence& one = this->sequence(sequence);
  if (begin < 0 || (end && *end < begin)) {
    refuse("remove", "positions from " + std::to_string(begin) + " to " + std::to_string(end.value_or(begin)) +
                         ", expected them to begin at 0 or later and to end after that");
  }
  if (begin >= this->end(sequence) || end == begin) return Removal::kDone;
  const int shift_from = end.value_or(kNoEnd);
  for (auto run = run_at(one.runs, shift_from); run != one.runs.end(); ++run) {
    const StoredRun part = part_of(*run, shift_from, kNoEnd);
    for (int cell = part.begin_row; cell < part.begin_row + part.n_rows; ++cell) {
      if (n_owners_[static_cast<std::size_t>(cell)] > 1) return Removal::kShared;
    }
  }
  return stays_whole(sequence, begin, end) ? Removal::kDone : Removal::kWindow;
}

// True if a query at the sequence's end after the removal sees nothing that has been let go.
bool Cells::stays_whole(int sequence, int begin, std::optional<int> end) const {
  const int keep = options_.keep;
  const int first = first_stored(this->sequence(sequence));
  if (keeps_all_ || first <= keep) return true;
  const int old_end = this->end(sequence);
  if (!end || *end >= old_end) return begin == 0 || can_resume(sequence, begin);
  // Let go were [keep, first): of these, what lies behind the removed positions comes down with the rest.
  const int n_removed = *end - begin;
  if (*end < first && begin < keep) return false;
  const int lost_end = *end < first ? first - n_removed : std::min(first, begin);
  return std::max(keep, first_seen(old_end - n_removed)) >= lost_end;
}

RemovedCells Cells::remove(int sequence, int begin, std::optional<int> end) {
  const Removal result = check_removal(sequence, begin, end);
  if (result != Removal::kDone || begin >= this->end(sequence)) return {result, {}, 0};
  Sequence& one = sequences_[static_cast<std::size_t>(sequence)];
  cut(one, begin, end.value_or(kNoEnd));
  RemovedCells removed;
  if (!end || *end == begin) return removed;
  for (auto run = run_at(one.runs, *end); run != one.runs.end(); ++run) {
    run->first_position -= *end - begin;
    removed.shifted.push_back(*run);
  }
  if (!removed.shifted.empty()) removed.shift = begin - *end;
  return removed;
}

// ---- Defragmentation

std::vector<RowRun> Cells::defragment(int max_moves, std::optional<int> n_wanted) {
  std::vector<RowRun> moves;
  if (n_wanted && free_.find(*n_wanted)) return moves;
  // The hole [hole, hole_end) is being filled with the cells [top_begin, top); from `top` on all are free.
  int hole = 0;
  int hole_end = 0;
  int top = free_.end_of_taken(n_cells());
  int top_begin = top;
  while (static_cast<int>(moves.size()) < max_moves && !(n_wanted && n_cells() - top >= *n_wanted)) {
    if (hole == hole_end) {
      hole = free_.next_free(hole);
      hole_end = free_.next_taken(std::min(hole, top), top);
    }
    if (hole >= top) break;
    if (top_begin == top) top_begin = free_.end_of_free(top);
    const int n = std::min(hole_end - hole, top - top_begin);
    move_owners(top - n, hole, n);
    moves.push_back({top - n, hole, n});
    hole += n;
    top -= n;
    if (top == top_begin) top = top_begin = free_.end_of_taken(top);
  }
  follow(moves);
  return moves;
}

void Cells::move_owners(int from, int to, int n) {
  free_.take(to, n);
  free_.give(from, n);
  for (int i = 0; i < n; ++i) {
    n_owners_[static_cast<std::size_t>(to + i)] = std::exchange(n_owners_[static_cast<std::size_t>(from + i)], 0);
  }
}

// Brings the sequences' runs to where the moves took them.
void Cells::follow(const std::vector<RowRun>& moves) {
  if (moves.empty()) return;
  std::vector<RowRun> by_cell = moves;
  std::sort(by_cell.begin(), by_cell.end(), [](const RowRun& a, const RowRun& b) { return a.from_row < b.from_row; });
  for (Sequence& sequence : sequences_) {
    std::vector<StoredRun> moved;
    moved.reserve(sequence.runs.size());
    for (const StoredRun& run : sequence.runs) {
      if (run.begin_row + run.n_rows <= by_cell.front().from_row) {  // what moves are the highest cells
        append(moved, run);
        continue;
      }
      auto move = std::partition_point(by_cell.begin(), by_cell.end(),
                                       [&](const RowRun& one) { return one.from_row + one.n_rows <= run.begin_row; });
      for (int done = 0; done < run.n_rows;) {
        const int cell = run.begin_row + done;
        const bool is_moved = move != by_cell.end() && move->from_row <= cell;
        const int stop = is_moved ? move->from_row + move->n_rows : move != by_cell.end() ? move->from_row : kNoEnd;
        const int n = std::min(run.n_rows - done, stop - cell);
        append(moved, {run.first_position + done, is_moved ? move->to_row + (cell - move->from_row) : cell, n});
        if (is_moved) ++move;
        done += n;
      }
    }
    sequence.runs = std::move(moved);
  }
}

}  // namespace memoir::cache
