// Cells as integers: the tables of the reference implementation, and random operations against plain lists.

#include "memoir/cache/cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "memoir/cache/free_cells.h"

namespace memoir::cache {
namespace {

using Values = std::vector<int>;
using Rows = std::vector<std::string>;

// A buffer of one number for each cell, kept as the owner of Cells keeps its rows.
class Buffer {
 public:
  explicit Buffer(const CellsOptions& options) : cells(options), values(static_cast<std::size_t>(cells.n_cells()), 0) {}

  // Places the batch; false if there is no room.
  bool feed(const Values& rows, const CellBatch& batch) {
    const std::optional<CellPlace> place = cells.place(batch);
    if (!place) return false;
    apply(place->moves);
    for (const RowRun& run : place->rows) {
      for (int i = 0; i < run.n_rows; ++i) value(run.to_row + i) = rows.at(static_cast<std::size_t>(run.from_row + i));
    }
    last = batch;
    return true;
  }

  void apply(const std::vector<RowRun>& moves) {
    const Values before = values;
    for (const RowRun& move : moves) {
      for (int i = 0; i < move.n_rows; ++i) {
        value(move.to_row + i) = before[static_cast<std::size_t>(move.from_row + i)];
      }
    }
  }

  // The reference's shift function adds the shift to the keys.
  Removal remove(int sequence, int begin, std::optional<int> end = std::nullopt) {
    const RemovedCells removed = cells.remove(sequence, begin, end);
    for (const StoredRun& run : removed.shifted) {
      for (int i = 0; i < run.n_rows; ++i) value(run.begin_row + i) += removed.shift;
    }
    return removed.result;
  }

  int& value(int cell) { return values[static_cast<std::size_t>(cell)]; }

  // What the last batch reads, and its mask: '0' seen, 'x' hidden.
  Values read() const {
    const CellSpan span = cells.seen(last);
    return {values.begin() + span.begin, values.begin() + span.end};
  }

  Rows mask(const Values& except = {}) const {
    const CellSpan span = cells.seen(last);
    const std::vector<std::uint8_t> bits = cells.mask(last, span, except);
    Rows rows;
    const auto n_columns = static_cast<std::size_t>(span.end - span.begin);
    for (std::size_t at = 0; at < bits.size(); at += n_columns) {
      std::string row;
      for (std::size_t i = 0; i < n_columns; ++i) row += bits[at + i] != 0 ? '0' : 'x';
      rows.push_back(row);
    }
    return rows;
  }

  Cells cells;
  Values values;
  CellBatch last;
};

CellBatch rows_of(int sequence, int begin, int end) {
  CellBatch batch;
  for (int p = begin; p < end; ++p) {
    batch.sequences.push_back(sequence);
    batch.positions.push_back(p);
  }
  return batch;
}

Values numbers(int first, int last) {
  Values values;
  for (int i = first; i <= last; ++i) values.push_back(i);
  return values;
}

CellsOptions options_of(int max_sequences, std::optional<int> window = std::nullopt, int max_batch = 16) {
  return {.max_sequences = max_sequences, .capacity = 16, .max_batch = max_batch, .window = window};
}

// ---- The tables of ollama's kvcache/causal_test.go (at 9db4bdbad^): capacity 16, batches of up to 16. Its window
// counts the positions before a query's own, so window 1 there is 2 here.

TEST(CellTables, Store) {
  Buffer buffer(options_of(1));
  ASSERT_TRUE(buffer.feed(numbers(1, 4), rows_of(0, 0, 4)));
  EXPECT_EQ(buffer.read(), numbers(1, 4));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx", "00xx", "000x", "0000"}));
  ASSERT_TRUE(buffer.feed({5}, rows_of(0, 4, 5)));
  EXPECT_EQ(buffer.read(), numbers(1, 5));
  EXPECT_EQ(buffer.mask(), (Rows{"00000"}));
}

TEST(CellTables, SlidingWindow) {
  Buffer buffer(options_of(1, 2));
  ASSERT_TRUE(buffer.feed(numbers(1, 4), rows_of(0, 0, 4)));
  EXPECT_EQ(buffer.read(), numbers(1, 4));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx", "00xx", "x00x", "xx00"}));
  ASSERT_TRUE(buffer.feed({5, 6}, rows_of(0, 4, 6)));
  EXPECT_EQ(buffer.read(), (Values{5, 6, 3, 4}));
  EXPECT_EQ(buffer.mask(), (Rows{"0xx0", "00xx"}));
}

TEST(CellTables, SlidingWindowInSeparateBatches) {
  Buffer buffer(options_of(2, 2, 2));
  ASSERT_TRUE(buffer.feed({1, 2}, rows_of(0, 0, 2)));
  EXPECT_EQ(buffer.read(), (Values{1, 2}));
  EXPECT_EQ(buffer.mask(), (Rows{"0x", "00"}));
  ASSERT_TRUE(buffer.feed({3, 4}, rows_of(0, 2, 4)));
  EXPECT_EQ(buffer.read(), (Values{2, 3, 4}));
  EXPECT_EQ(buffer.mask(), (Rows{"00x", "x00"}));
  ASSERT_TRUE(buffer.feed({5, 6}, rows_of(1, 0, 2)));
  EXPECT_EQ(buffer.read(), (Values{5, 6}));
  EXPECT_EQ(buffer.mask(), (Rows{"0x", "00"}));
  ASSERT_TRUE(buffer.feed({7, 8}, rows_of(1, 2, 4)));
  EXPECT_EQ(buffer.read(), (Values{6, 3, 4, 7, 8}));
  EXPECT_EQ(buffer.mask(), (Rows{"0xx0x", "xxx00"}));
  ASSERT_TRUE(buffer.feed({9, 10}, rows_of(0, 4, 6)));
  EXPECT_EQ(buffer.read(), (Values{9, 10, 3, 4}));
  EXPECT_EQ(buffer.mask(), (Rows{"0xx0", "00xx"}));
}

// Rows in the first free cells, as the reference has them; the seed's, side by side, below.
TEST(CellTables, SlidingWindowWithMemory) {
  CellsOptions options = options_of(1, 2);
  options.memory = 3;
  options.placing = Placing::kFirstFree;
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(1, 4), rows_of(0, 0, 4)));
  EXPECT_EQ(buffer.read(), numbers(1, 4));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx", "00xx", "x00x", "xx00"}));
  ASSERT_TRUE(buffer.feed({5, 6}, rows_of(0, 4, 6)));
  EXPECT_EQ(buffer.read(), (Values{5, 2, 3, 4, 6}));
  EXPECT_EQ(buffer.mask(), (Rows{"0xx0x", "0xxx0"}));
}

TEST(CellTables, SlidingWindowWithMemorySideBySide) {
  CellsOptions options = options_of(1, 2);
  options.memory = 3;
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(1, 4), rows_of(0, 0, 4)));
  ASSERT_TRUE(buffer.feed({5, 6}, rows_of(0, 4, 6)));
  EXPECT_EQ(buffer.read(), (Values{4, 5, 6}));
  EXPECT_EQ(buffer.mask(), (Rows{"00x", "x00"}));
  EXPECT_EQ(buffer.cells.runs(0).front().first_position, 1);  // 4 - memory
}

TEST(CellTables, ChunkedAttention) {
  CellsOptions options = options_of(1);
  options.chunk = 2;
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(1, 4), rows_of(0, 0, 4)));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx", "00xx", "xx0x", "xx00"}));
  ASSERT_TRUE(buffer.feed(numbers(5, 7), rows_of(0, 4, 7)));
  EXPECT_EQ(buffer.read(), numbers(1, 7));
  EXPECT_EQ(buffer.mask(), (Rows{"xxxx0xx", "xxxx00x", "xxxxxx0"}));
  ASSERT_TRUE(buffer.feed({8, 9}, rows_of(0, 7, 9)));
  EXPECT_EQ(buffer.read(), numbers(1, 9));
  EXPECT_EQ(buffer.mask(), (Rows{"xxxxxx00x", "xxxxxxxx0"}));
}

TEST(CellTables, Sequences) {
  Buffer buffer(options_of(2));
  ASSERT_TRUE(buffer.feed(numbers(1, 4), {{0, 0, 1, 1}, {0, 1, 0, 1}}));
  EXPECT_EQ(buffer.read(), numbers(1, 4));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx", "00xx", "xx0x", "xx00"}));
  ASSERT_TRUE(buffer.feed({5, 6}, {{0, 1}, {2, 2}}));
  EXPECT_EQ(buffer.read(), numbers(1, 6));
  EXPECT_EQ(buffer.mask(), (Rows{"00xx0x", "xx00x0"}));
}

TEST(CellTables, Remove) {
  CellsOptions options = options_of(2);
  options.placing = Placing::kFirstFree;
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(1, 4), {{0, 0, 1, 1}, {0, 1, 0, 1}}));
  ASSERT_EQ(buffer.remove(0, 1), Removal::kDone);
  ASSERT_TRUE(buffer.feed({5, 6}, {{0, 1}, {1, 2}}));
  EXPECT_EQ(buffer.read(), (Values{1, 5, 3, 4, 6}));
  EXPECT_EQ(buffer.mask(), (Rows{"00xxx", "xx000"}));
  ASSERT_EQ(buffer.remove(0, 0, 1), Removal::kDone);
  ASSERT_TRUE(buffer.feed({7, 8}, rows_of(0, 1, 3)));
  EXPECT_EQ(buffer.read(), (Values{7, 4, 3, 4, 6, 8}));
  EXPECT_EQ(buffer.mask(), (Rows{"00xxxx", "00xxx0"}));
}

// The same batches side by side: by hand from the seed's rule, the first run of two free cells.
TEST(CellTables, RemoveSideBySide) {
  Buffer buffer(options_of(2));
  ASSERT_TRUE(buffer.feed(numbers(1, 4), {{0, 0, 1, 1}, {0, 1, 0, 1}}));
  ASSERT_EQ(buffer.remove(0, 1), Removal::kDone);
  ASSERT_TRUE(buffer.feed({5, 6}, {{0, 1}, {1, 2}}));
  EXPECT_EQ(buffer.read(), numbers(1, 6));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx0x", "xx00x0"}));
  ASSERT_EQ(buffer.remove(0, 0, 1), Removal::kDone);
  ASSERT_TRUE(buffer.feed({7, 8}, rows_of(0, 1, 3)));
  EXPECT_EQ(buffer.read(), (Values{7, 8, 3, 4, 4}));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx0", "00xx0"}));
}

TEST(CellTables, CopyOfAPrefixMovesNothing) {
  Buffer buffer(options_of(2));
  ASSERT_TRUE(buffer.feed(numbers(1, 4), rows_of(0, 0, 4)));
  buffer.cells.copy_prefix(0, 1, 2);
  EXPECT_EQ(buffer.cells.owners(1), (Values{0, 1}));
  EXPECT_EQ(buffer.cells.owners(2), (Values{0}));
  ASSERT_TRUE(buffer.feed({5, 6}, rows_of(1, 3, 5)));
  EXPECT_EQ(buffer.read(), numbers(1, 6));
  EXPECT_EQ(buffer.mask(), (Rows{"00xx0x", "00xx00"}));
}

TEST(CellTables, CanResume) {
  Buffer buffer(options_of(1, 5));
  ASSERT_TRUE(buffer.feed(numbers(1, 5), rows_of(0, 0, 5)));
  for (int p = 0; p <= 4; ++p) EXPECT_TRUE(buffer.cells.can_resume(0, p)) << p;
  ASSERT_TRUE(buffer.feed({6}, rows_of(0, 5, 6)));
  for (int p = 0; p <= 5; ++p) EXPECT_EQ(buffer.cells.can_resume(0, p), p == 5) << p;
  EXPECT_TRUE(buffer.cells.can_resume(0, 6));
  EXPECT_FALSE(buffer.cells.can_resume(0, 7));
}

TEST(CellTables, CanResumeWithMemory) {
  CellsOptions options = options_of(1, 5);
  options.memory = 5;
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(1, 7), rows_of(0, 0, 7)));
  ASSERT_TRUE(buffer.feed({8}, rows_of(0, 7, 8)));
  for (int p = 0; p <= 7; ++p) EXPECT_EQ(buffer.cells.can_resume(0, p), p >= 6) << p;
}

// ---- Sizes: the seed's Init.

TEST(Cells, AreAsManyAsTheSequencesCanNeed) {
  const auto n_cells = [](const CellsOptions& options) { return Cells(options).n_cells(); };
  EXPECT_EQ(n_cells({.max_sequences = 3, .capacity = 100}), 300);
  EXPECT_EQ(n_cells({.max_sequences = 3, .capacity = 100, .padding = 32}), 320);
  EXPECT_EQ(n_cells({.max_sequences = 1, .capacity = 100, .max_batch = 8, .window = 5}), 4 + 8);
  EXPECT_EQ(n_cells({.max_sequences = 3, .capacity = 100, .max_batch = 8, .window = 5}),
            3 * 5 + 8);  // window, not less
  EXPECT_EQ(n_cells({.max_sequences = 3, .capacity = 100, .max_batch = 8, .window = 5, .memory = 9}), 3 * 9 + 8);
  EXPECT_EQ(n_cells({.max_sequences = 3, .capacity = 100, .max_batch = 8, .window = 5, .memory = 100}), 300);
  EXPECT_EQ(n_cells({.max_sequences = 3, .capacity = 100, .max_batch = 8, .window = 5, .keep = 2}), 3 * (2 + 5) + 8);
  EXPECT_EQ(n_cells({.max_sequences = 3, .capacity = 100, .padding = 16, .n_cells = 33}), 48);
}

TEST(Cells, RefuseOptionsOutOfRange) {
  const std::vector<CellsOptions> wrong = {
      {.max_sequences = 0},
      {.capacity = 0},
      {.max_batch = 0},
      {.window = 0},
      {.chunk = 0},
      {.window = 4, .chunk = 4},
      {.capacity = 100, .window = 5, .memory = 3},
      {.memory = 3},
      {.keep = 1},
      {.padding = 0},
      {.mask_padding = 0},
      {.n_cells = 0},
      {.max_moves = -1},
      {.max_sequences = 1 << 20, .capacity = 1 << 20},
  };
  for (const CellsOptions& options : wrong) EXPECT_THROW(Cells{options}, std::invalid_argument);
}

// ---- Bad input changes nothing

std::string digest(const Cells& cells) {
  std::string text = std::to_string(cells.n_free());
  for (int s = 0; s < cells.options().max_sequences; ++s) {
    text += " |";
    for (const StoredRun& run : cells.runs(s)) {
      text += " " + std::to_string(run.first_position) + "@" + std::to_string(run.begin_row) + "x" +
              std::to_string(run.n_rows);
    }
  }
  return text;
}

TEST(Cells, RefuseBatchesThatDoNotFit) {
  Buffer buffer(options_of(2, std::nullopt, 4));
  ASSERT_TRUE(buffer.feed(numbers(1, 3), rows_of(0, 0, 3)));
  const std::string before = digest(buffer.cells);
  const std::vector<CellBatch> wrong = {
      {{}, {}},                   // empty
      {{0}, {3, 4}},              // not as many sequences
      rows_of(0, 3, 8),           // more than max_batch
      {{2}, {0}},                 // not promised
      {{-1}, {0}},                //
      {{0}, {2}},                 // a position that is there
      {{1, 0, 1}, {1, 3, 1}},     // the same twice
      {{1, 1}, {5, 4}},           // backwards
      {{1}, {-1}},                //
      {{1}, {Layout::kMaxRows}},  //
  };
  for (const CellBatch& batch : wrong) {
    EXPECT_THROW(buffer.cells.place(batch), std::invalid_argument);
    EXPECT_THROW(buffer.cells.has_room(batch), std::invalid_argument);
  }
  EXPECT_THROW(buffer.cells.end(2), std::invalid_argument);
  EXPECT_THROW(buffer.cells.runs(-1), std::invalid_argument);
  EXPECT_THROW(buffer.cells.can_resume(2, 0), std::invalid_argument);
  EXPECT_THROW(buffer.cells.copy_prefix(0, 2, 1), std::invalid_argument);
  EXPECT_THROW(buffer.cells.copy_prefix(2, 0, 1), std::invalid_argument);
  EXPECT_THROW(buffer.cells.copy_prefix(0, 0, 1), std::invalid_argument);
  EXPECT_THROW(buffer.cells.remove(2, 0), std::invalid_argument);
  EXPECT_THROW(buffer.cells.remove(0, -1), std::invalid_argument);
  EXPECT_THROW(buffer.cells.remove(0, 2, 1), std::invalid_argument);
  EXPECT_THROW(buffer.cells.seen({{0}, {0, 1}}), std::invalid_argument);
  EXPECT_THROW(buffer.cells.mask({{0}, {0, 1}}, {0, 1}), std::invalid_argument);
  EXPECT_THROW(buffer.cells.mask({{0}, {0}}, {1, 0}), std::invalid_argument);
  EXPECT_THROW(buffer.cells.mask({{0}, {0}}, {0, buffer.cells.n_cells() + 1}), std::invalid_argument);
  EXPECT_EQ(digest(buffer.cells), before);
}

TEST(Cells, AFullCacheIsARefusalThatLetsNothingGo) {
  CellsOptions options = options_of(2, 3, 8);
  options.n_cells = 8;
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(1, 6), rows_of(0, 0, 6)));
  const std::string before = digest(buffer.cells);
  // Sequence 0 would let 3 of 6 go, which makes 5 free cells, and not 6.
  EXPECT_FALSE(buffer.cells.has_room(rows_of(1, 0, 6)));
  EXPECT_EQ(buffer.cells.place(rows_of(1, 0, 6)), std::nullopt);
  EXPECT_EQ(digest(buffer.cells), before);
  EXPECT_TRUE(buffer.feed(numbers(7, 11), rows_of(1, 0, 5)));
}

TEST(Cells, SharedCellsDoNotShift) {
  Buffer buffer(options_of(2));
  ASSERT_TRUE(buffer.feed(numbers(1, 6), rows_of(0, 0, 6)));
  buffer.cells.copy_prefix(0, 1, 5);
  const std::string before = digest(buffer.cells);
  EXPECT_EQ(buffer.cells.remove(0, 1, 3).result, Removal::kShared);
  EXPECT_EQ(buffer.cells.remove(1, 0, 1).result, Removal::kShared);
  EXPECT_EQ(digest(buffer.cells), before);
  EXPECT_EQ(buffer.cells.remove(0, 2, 5).result, Removal::kDone);  // position 5 is its own
  EXPECT_EQ(buffer.cells.end(0), 3);
  EXPECT_EQ(buffer.cells.end(1), 5);
}

TEST(Cells, ARemovalThatBringsLostPositionsIntoTheWindowIsRefused) {
  Buffer buffer(options_of(1, 4, 4));  // 3 positions stay before a batch
  for (int p = 0; p < 8; p += 4) ASSERT_TRUE(buffer.feed(numbers(p, p + 3), rows_of(0, p, p + 4)));
  // Stored: 1 to 7. A query at 8 sees 5 to 7.
  EXPECT_EQ(buffer.cells.check_removal(0, 6), Removal::kDone);       // at 6: 3 to 5
  EXPECT_EQ(buffer.cells.check_removal(0, 3), Removal::kWindow);     // at 3: 0 to 2
  EXPECT_EQ(buffer.cells.check_removal(0, 0), Removal::kDone);       // all
  EXPECT_EQ(buffer.cells.check_removal(0, 2, 6), Removal::kDone);    // at 4: 1, and 6 and 7 as 2 and 3
  EXPECT_EQ(buffer.cells.check_removal(0, 2, 7), Removal::kWindow);  // at 3: 0 to 2, and 0 is gone
  EXPECT_EQ(buffer.cells.check_removal(0, 4, 5), Removal::kDone);    // at 7: 4 to 6
  EXPECT_EQ(buffer.cells.check_removal(0, 0, 4), Removal::kDone);    // at 4: 4 to 7 as 0 to 3
}

TEST(Cells, RowsGoBesideTheirOwnSequence) {
  CellsOptions options{.max_sequences = 3, .capacity = 400, .max_batch = 64, .placing = Placing::kBesideOwn};
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(0, 9), rows_of(0, 0, 10)));
  buffer.cells.copy_prefix(0, 1, 10);
  buffer.cells.copy_prefix(0, 2, 10);
  for (int p = 10; p < 60; ++p) ASSERT_TRUE(buffer.feed({1, 2, 3}, {{0, 1, 2}, {p, p, p}}));
  for (int s = 0; s < 3; ++s) EXPECT_LE(buffer.cells.runs(s).size(), 3U) << digest(buffer.cells);
}

TEST(Cells, MaskRowsAndColumnsArePadded) {
  CellsOptions options = options_of(1);
  options.padding = 4;
  options.mask_padding = 4;
  Buffer buffer(options);
  ASSERT_TRUE(buffer.feed(numbers(1, 3), rows_of(0, 0, 3)));
  EXPECT_EQ(buffer.mask(), (Rows{"0xxx", "00xx", "000x", "xxxx"}));
  ASSERT_TRUE(buffer.feed({4, 5}, rows_of(0, 3, 5)));
  EXPECT_EQ(buffer.mask(), (Rows{"0000xxxx", "00000xxx", "xxxxxxxx", "xxxxxxxx"}));
}

// The seed's SetCausal: the rows of an image see each other.
TEST(Cells, ExceptedRowsSeeLaterPositions) {
  Buffer buffer(options_of(2));
  ASSERT_TRUE(buffer.feed(numbers(1, 5), {{0, 0, 0, 1, 0}, {0, 1, 2, 0, 3}}));
  EXPECT_EQ(buffer.mask({1, 2}), (Rows{"0xxxx", "000x0", "000x0", "xxx0x", "000x0"}));
}

// ---- Defragmentation

// Every second run of 4 of a full cache is dropped; what is left moves into the first holes, each cell once.
TEST(Cells, DefragmentationFillsTheFirstHolesFromTheEnd) {
  CellsOptions options{.max_sequences = 8, .capacity = 4, .max_batch = 16};
  Buffer buffer(options);
  for (int s = 0; s < 8; ++s) ASSERT_TRUE(buffer.feed(numbers(4 * s, 4 * s + 3), rows_of(s, 0, 4)));
  for (int s = 0; s < 8; s += 2) ASSERT_EQ(buffer.remove(s, 0), Removal::kDone);
  const std::vector<RowRun> moves = buffer.cells.defragment();
  buffer.apply(moves);
  ASSERT_EQ(moves.size(), 2U);
  EXPECT_EQ(moves[0].from_row, 28);
  EXPECT_EQ(moves[0].to_row, 0);
  EXPECT_EQ(moves[0].n_rows, 4);
  EXPECT_EQ(moves[1].from_row, 20);
  EXPECT_EQ(moves[1].to_row, 8);
  for (int s = 1; s < 8; s += 2) {
    ASSERT_EQ(buffer.cells.runs(s).size(), 1U);
    EXPECT_EQ(buffer.value(buffer.cells.runs(s)[0].begin_row), 4 * s);
  }
}

TEST(Cells, ABatchWithoutARunDefragmentsAsFarAsItNeeds) {
  CellsOptions options{.max_sequences = 9, .capacity = 4, .max_batch = 16, .n_cells = 32};
  Buffer buffer(options);
  for (int s = 0; s < 8; ++s) ASSERT_TRUE(buffer.feed(numbers(4 * s, 4 * s + 3), rows_of(s, 0, 4)));
  for (int s = 0; s < 8; s += 2) ASSERT_EQ(buffer.remove(s, 0), Removal::kDone);
  const std::optional<CellPlace> place = buffer.cells.place(rows_of(8, 0, 8));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->moves.size(), 1U);
  EXPECT_EQ(place->rows.size(), 1U);
}

TEST(Cells, ABatchIsScatteredWhereMovesDoNotDo) {
  CellsOptions options{.max_sequences = 9, .capacity = 4, .max_batch = 16, .n_cells = 32, .max_moves = 0};
  Buffer buffer(options);
  for (int s = 0; s < 8; ++s) ASSERT_TRUE(buffer.feed(numbers(4 * s, 4 * s + 3), rows_of(s, 0, 4)));
  for (int s = 0; s < 8; s += 2) ASSERT_EQ(buffer.remove(s, 0), Removal::kDone);
  const std::optional<CellPlace> place = buffer.cells.place(rows_of(8, 0, 8));
  ASSERT_TRUE(place);
  EXPECT_TRUE(place->moves.empty());
  EXPECT_EQ(place->rows.size(), 2U);
}

// ---- Random operations against plain lists

// What each sequence has, as the rules say: position to value, and values are never used twice.
struct PlainCells {
  explicit PlainCells(const CellsOptions& o) : options(o), lists(static_cast<std::size_t>(o.max_sequences)) {
    if (!options.window) return;
    int n = options.memory.value_or(*options.window - 1);
    if (options.max_sequences > 1) n = std::max(n, *options.window);
    if (n < options.capacity) memory = n;
  }

  int end(int s) const { return at(s).empty() ? 0 : at(s).rbegin()->first + 1; }
  std::map<int, int>& at(int s) { return lists[static_cast<std::size_t>(s)]; }
  const std::map<int, int>& at(int s) const { return lists[static_cast<std::size_t>(s)]; }

  void let_go(const CellBatch& batch) {
    if (!memory) return;
    for (int s = 0; s < options.max_sequences; ++s) {
      int lowest = end(s);
      for (std::size_t i = 0; i < batch.positions.size(); ++i) {
        if (batch.sequences[i] == s) lowest = std::min(lowest, batch.positions[i]);
      }
      std::erase_if(at(s), [&](const auto& one) { return one.first >= options.keep && one.first < lowest - *memory; });
    }
  }

  int n_used() const {
    std::set<int> used;
    for (const auto& list : lists) {
      for (const auto& [position, value] : list) used.insert(value);
    }
    return static_cast<int>(used.size());
  }

  bool is_shared(int value) const {
    int n = 0;
    for (const auto& list : lists) {
      n += static_cast<int>(
          std::count_if(list.begin(), list.end(), [&](const auto& one) { return one.second == value; }));
    }
    return n > 1;
  }

  bool sees(int query, int position) const {
    if (options.window && position >= options.keep && position <= query - *options.window) return false;
    return !options.chunk || position >= query - query % *options.chunk;
  }

  // Everything that a query at `position` sees is in the list.
  bool is_whole(const std::map<int, int>& list, int position) const {
    for (int p = 0; p < position; ++p) {
      if (sees(position, p) && !list.contains(p)) return false;
    }
    return true;
  }

  static std::map<int, int> without(const std::map<int, int>& list, int begin, std::optional<int> end) {
    std::map<int, int> result;
    for (const auto& [position, value] : list) {
      if (position < begin) result[position] = value;
      if (end && position >= *end) result[position - (*end - begin)] = value;
    }
    return result;
  }

  Removal removal(int s, int begin, std::optional<int> end) const {
    if (begin >= this->end(s) || end == begin) return Removal::kDone;
    for (const auto& [position, value] : at(s)) {
      if (end && position >= *end && is_shared(value)) return Removal::kShared;
    }
    if (!memory || (begin == 0 && (!end || *end >= this->end(s)))) return Removal::kDone;
    const bool shifts = end && *end < this->end(s);
    const std::map<int, int> left = without(at(s), begin, end);
    return is_whole(left, shifts ? this->end(s) - (*end - begin) : begin) ? Removal::kDone : Removal::kWindow;
  }

  CellsOptions options;
  std::optional<int> memory;
  std::vector<std::map<int, int>> lists;
};

class RandomCells {
 public:
  RandomCells(const CellsOptions& options, unsigned seed) : random_(seed), buffer_(options), plain_(options) {}

  void step() {
    switch (below(10)) {
      case 0:
        return copy();
      case 1:
        return remove(true);
      case 2:
        return remove(false);
      case 3:
        return defragment();
      default:
        return feed();
    }
  }

  void check() {
    const Cells& cells = buffer_.cells;
    std::map<int, std::set<int>> owners;     // by cell
    std::map<int, std::set<int>> positions;  // by cell
    for (int s = 0; s < n_sequences(); ++s) {
      std::map<int, int> list;
      int end = 0;
      for (const StoredRun& run : cells.runs(s)) {
        ASSERT_GE(run.first_position, end);
        ASSERT_GT(run.n_rows, 0);
        end = run.first_position + run.n_rows;
        for (int i = 0; i < run.n_rows; ++i) {
          const int cell = run.begin_row + i;
          ASSERT_LT(cell, cells.n_cells());
          list[run.first_position + i] = buffer_.value(cell);
          owners[cell].insert(s);
          positions[cell].insert(run.first_position + i);
        }
      }
      ASSERT_EQ(list, plain_.at(s)) << "sequence " << s;
      ASSERT_EQ(cells.end(s), plain_.end(s));
    }
    for (const auto& [cell, several] : positions) ASSERT_EQ(several.size(), 1U) << "cell " << cell;
    int n_free = 0;
    for (int cell = 0; cell < cells.n_cells(); ++cell) {
      ASSERT_EQ(cells.n_owners(cell), static_cast<int>(owners[cell].size())) << "cell " << cell;
      n_free += owners[cell].empty() ? 1 : 0;
    }
    ASSERT_EQ(cells.n_free(), n_free);
    ASSERT_EQ(cells.n_cells() - n_free, plain_.n_used());
    if (plain_.memory) check_resume();
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int n_sequences() const { return plain_.options.max_sequences; }

  void feed() {
    CellBatch batch;
    Values values;
    std::map<int, int> ends;
    const int n = 1 + below(plain_.options.max_batch);
    for (int i = 0; i < n; ++i) {
      const int s = i > 0 && below(3) > 0 ? batch.sequences.back() : below(n_sequences());
      batch.sequences.push_back(s);
      batch.positions.push_back(ends.emplace(s, plain_.end(s)).first->second++);
      values.push_back(next_value_++);
    }
    PlainCells after = plain_;
    after.let_go(batch);
    const bool has_room = after.n_used() + n <= buffer_.cells.n_cells();
    const std::string before = digest(buffer_.cells);
    ASSERT_EQ(buffer_.cells.has_room(batch), has_room);
    ASSERT_EQ(buffer_.feed(values, batch), has_room);
    if (!has_room) {
      ASSERT_EQ(digest(buffer_.cells), before);
      return;
    }
    plain_ = after;
    for (int i = 0; i < n; ++i) {
      const auto row = static_cast<std::size_t>(i);
      plain_.at(batch.sequences[row])[batch.positions[row]] = values[row];
    }
    check_mask(batch);
  }

  void check_mask(const CellBatch& batch) {
    const Values except = {below(batch.n_rows())};
    const CellSpan span = buffer_.cells.seen(batch);
    const auto n_columns = static_cast<std::size_t>(span.end - span.begin);
    const std::vector<std::uint8_t> mask = buffer_.cells.mask(batch, span, except);
    const auto padding = static_cast<std::size_t>(plain_.options.mask_padding);
    ASSERT_EQ(mask.size(), (batch.positions.size() + padding - 1) / padding * padding * n_columns);
    for (std::size_t row = 0; row < mask.size() / n_columns; ++row) {
      std::set<int> seen;
      for (std::size_t i = 0; i < n_columns; ++i) {
        if (mask[row * n_columns + i] != 0) seen.insert(buffer_.value(span.begin + static_cast<int>(i)));
      }
      std::set<int> expected;
      if (row < batch.positions.size()) {
        const int query = batch.positions[row];
        for (const auto& [position, value] : plain_.at(batch.sequences[row])) {
          const bool is_later = position > query && static_cast<int>(row) != except[0];
          if (!is_later && plain_.sees(query, position)) expected.insert(value);
        }
      }
      ASSERT_EQ(seen, expected) << "row " << row;
    }
  }

  void copy() {
    if (n_sequences() < 2) return;
    const int from = below(n_sequences());
    const int to = (from + 1 + below(n_sequences() - 1)) % n_sequences();
    // A sequence with a window may be copied as far as it can be resumed.
    int end = below(plain_.end(from) + 1);
    if (plain_.memory && !plain_.is_whole(plain_.at(from), end)) end = plain_.end(from);
    buffer_.cells.copy_prefix(from, to, end);
    plain_.at(to) = PlainCells::without(plain_.at(from), end, std::nullopt);
  }

  void remove(bool is_tail) {
    const int s = below(n_sequences());
    const int begin = below(plain_.end(s) + 2);
    const std::optional<int> end = is_tail ? std::nullopt : std::optional(begin + below(6));
    const Removal expected = plain_.removal(s, begin, end);
    const std::string before = digest(buffer_.cells);
    ASSERT_EQ(buffer_.cells.check_removal(s, begin, end), expected) << s << ": " << begin << " " << end.value_or(-1);
    const RemovedCells removed = buffer_.cells.remove(s, begin, end);
    ASSERT_EQ(removed.result, expected);
    if (expected != Removal::kDone) {
      ASSERT_EQ(digest(buffer_.cells), before);
      return;
    }
    // Values stay as they are here: they name rows.
    int n_shifted = 0;
    for (const StoredRun& run : removed.shifted) n_shifted += run.n_rows;
    int n_later = 0;
    for (const auto& [position, value] : plain_.at(s)) n_later += end && *end > begin && position >= *end ? 1 : 0;
    ASSERT_EQ(n_shifted, begin < plain_.end(s) ? n_later : 0);
    plain_.at(s) = PlainCells::without(plain_.at(s), begin, end);
  }

  void defragment() {
    const int max_moves = below(2) == 0 ? Layout::kMaxRows : below(4);
    const std::vector<RowRun> moves = buffer_.cells.defragment(max_moves);
    ASSERT_LE(static_cast<int>(moves.size()), max_moves);
    std::set<int> touched;
    for (const RowRun& move : moves) {
      for (int i = 0; i < move.n_rows; ++i) {
        ASSERT_TRUE(touched.insert(move.from_row + i).second);
        ASSERT_TRUE(touched.insert(move.to_row + i).second);
      }
    }
    buffer_.apply(moves);
    if (max_moves < Layout::kMaxRows) return;
    for (int cell = 0; cell < buffer_.cells.n_cells() - buffer_.cells.n_free(); ++cell) {
      ASSERT_GT(buffer_.cells.n_owners(cell), 0);
    }
  }

  void check_resume() {
    for (int s = 0; s < n_sequences(); ++s) {
      for (int p = 1; p <= plain_.end(s) + 1; ++p) {
        const bool is_inside = !plain_.at(s).empty() && p <= plain_.end(s);
        ASSERT_EQ(buffer_.cells.can_resume(s, p), is_inside && plain_.is_whole(plain_.at(s), p)) << s << " at " << p;
      }
    }
  }

  std::mt19937 random_;
  Buffer buffer_;
  PlainCells plain_;
  int next_value_ = 1;
};

struct RandomCase {
  const char* name;
  CellsOptions options;
};

class CellsAtRandom : public testing::TestWithParam<RandomCase> {};

INSTANTIATE_TEST_SUITE_P(
    Options, CellsAtRandom,
    testing::Values(
        RandomCase{"flat", {.max_sequences = 4, .capacity = 24, .max_batch = 8}},
        RandomCase{"crowded", {.max_sequences = 6, .capacity = 24, .max_batch = 12, .n_cells = 50}},
        RandomCase{"few_moves", {.max_sequences = 6, .capacity = 24, .max_batch = 12, .n_cells = 50, .max_moves = 1}},
        RandomCase{"first_free",
                   {.max_sequences = 5, .capacity = 30, .max_batch = 9, .n_cells = 70, .placing = Placing::kFirstFree}},
        RandomCase{
            "beside_own",
            {.max_sequences = 5, .capacity = 90, .max_batch = 9, .n_cells = 300, .placing = Placing::kBesideOwn}},
        RandomCase{"padded", {.max_sequences = 3, .capacity = 30, .max_batch = 8, .padding = 16, .mask_padding = 4}},
        RandomCase{"chunks", {.max_sequences = 3, .capacity = 40, .max_batch = 8, .chunk = 5}},
        RandomCase{"window", {.max_sequences = 4, .capacity = 1000, .max_batch = 7, .window = 6}},
        RandomCase{"window_alone", {.max_sequences = 1, .capacity = 1000, .max_batch = 7, .window = 2}},
        RandomCase{"window_and_memory",
                   {.max_sequences = 4, .capacity = 1000, .max_batch = 7, .window = 5, .memory = 12, .n_cells = 60}},
        RandomCase{"window_and_keep",
                   {.max_sequences = 4, .capacity = 1000, .max_batch = 7, .window = 6, .keep = 3, .n_cells = 50}},
        RandomCase{"window_that_keeps_all", {.max_sequences = 3, .capacity = 20, .max_batch = 7, .window = 20}}),
    [](const auto& one) { return one.param.name; });

TEST_P(CellsAtRandom, HoldWhatPlainListsHold) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCells random(GetParam().options, seed);
    for (int i = 0; i < 250; ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      random.step();
      if (testing::Test::HasFatalFailure()) return;
      random.check();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// ---- What a place costs, in words and nodes looked at: no clock

// A row, of steps of one row of each of 256 sequences in full cells, where one goes whenever there is no room.
double n_steps_of_a_row(int n_cells, Placing placing) {
  constexpr int kSequences = 256;
  Cells cells(
      {.max_sequences = kSequences, .capacity = n_cells, .max_batch = 4096, .n_cells = n_cells, .placing = placing});
  std::mt19937 random(1);
  const auto some_sequence = [&] { return static_cast<int>(random() % kSequences); };
  while (cells.n_free() >= kSequences) {
    const int s = some_sequence();
    const int n = std::min({1 + static_cast<int>(random() % 4096U), cells.n_free(), 2 * n_cells / kSequences});
    EXPECT_TRUE(cells.place(rows_of(s, cells.end(s), cells.end(s) + n)));
  }
  const std::int64_t n_before = cells.n_steps();
  constexpr int kBatches = 800;
  for (int i = 0; i < kBatches; ++i) {
    while (cells.n_free() < kSequences) cells.remove(some_sequence(), 0);
    CellBatch batch;
    for (int s = 0; s < kSequences; ++s) {
      batch.sequences.push_back(s);
      batch.positions.push_back(cells.end(s));
    }
    EXPECT_TRUE(cells.place(batch));
  }
  return static_cast<double>(cells.n_steps() - n_before) / (kBatches * kSequences);
}

// The bound is one for all sizes: a scan for a place would look at thousands of words in a million cells.
TEST(CellsCost, APlaceForARowCostsAFewStepsHoweverManyCellsThereAre) {
  for (const Placing placing : {Placing::kSideBySide, Placing::kFirstFree, Placing::kBesideOwn}) {
    for (const int n_cells : {4'000, 32'000, 250'000, 1'000'000}) {
      EXPECT_LT(n_steps_of_a_row(n_cells, placing), 24) << n_cells << " cells, placing " << static_cast<int>(placing);
    }
  }
}

// One sequence alone in a million cells, which a search for the end of the free run would pass every time.
TEST(CellsCost, ARowBesideItsOwnDoesNotPassWhatLiesFreeBehindIt) {
  for (const Placing placing : {Placing::kFirstFree, Placing::kBesideOwn}) {
    Cells cells({.capacity = 1'000'000, .max_batch = 1, .placing = placing});
    const std::int64_t n_before = cells.n_steps();
    for (int p = 0; p < 1000; ++p) ASSERT_TRUE(cells.place(rows_of(0, p, p + 1)));
    EXPECT_LT(cells.n_steps() - n_before, 1000 * 10 + 2 * 1'000'000 / 64);  // and the tree once
  }
}

// ---- Free cells against a list of flags

TEST(FreeCells, FindTheFirstRunThatIsLongEnough) {
  for (const int n_cells : {1, 63, 64, 65, 200, 1000}) {
    std::mt19937 random(static_cast<unsigned>(n_cells));
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    FreeCells cells(n_cells);
    std::vector<bool> is_free(static_cast<std::size_t>(n_cells), true);
    for (int step = 0; step < 400; ++step) {
      const int begin = below(n_cells);
      const bool flag = is_free[static_cast<std::size_t>(begin)];
      int n = 0;
      while (begin + n < n_cells && n < 1 + step % 90 && is_free[static_cast<std::size_t>(begin + n)] == flag) ++n;
      flag ? cells.take(begin, n) : cells.give(begin, n);
      std::fill_n(is_free.begin() + begin, n, !flag);
      ASSERT_EQ(cells.n_free(), std::count(is_free.begin(), is_free.end(), true));
      const int wanted = 1 + below(step % 2 == 0 ? 100 : n_cells);
      const auto run = std::search_n(is_free.begin(), is_free.end(), wanted, true);
      const std::optional<int> expected =
          run == is_free.end() ? std::nullopt : std::optional(static_cast<int>(run - is_free.begin()));
      ASSERT_EQ(cells.find(wanted), expected) << n_cells << " cells, " << wanted;
      const int from = below(n_cells + 1);
      const int limit = from + below(n_cells - from + 1);
      const auto at = [&](int cell) { return is_free.begin() + cell; };
      ASSERT_EQ(cells.next_free(from), std::find(at(from), is_free.end(), true) - is_free.begin());
      ASSERT_EQ(cells.next_taken(from, limit), std::find(at(from), at(limit), false) - is_free.begin());
      for (const bool value : {true, false}) {
        const auto last = std::find(is_free.rend() - from, is_free.rend(), value);
        ASSERT_EQ(value ? cells.end_of_free(from) : cells.end_of_taken(from), is_free.rend() - last);
      }
    }
  }
}

}  // namespace
}  // namespace memoir::cache
