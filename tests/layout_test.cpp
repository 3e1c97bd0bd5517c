#include "memoir/cache/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "memoir/cache/kind.h"

namespace memoir::cache {
namespace {

void write(Layout& layout, int n_tokens) {
  layout.apply(layout.plan(n_tokens));
}

std::vector<int> listed(const Positions& positions) {
  std::vector<int> result;
  for (int p = 0; p < positions.n_kept; ++p) result.push_back(p);
  for (int p = positions.first; p < positions.end; ++p) result.push_back(p);
  return result;
}

std::vector<int> range(int begin, int end) {
  return listed({0, begin, end});
}

// ---- Flat

// Capacities as mlx-lm 0.32.2 has them for the same writes (its KVCache, step 256).
TEST(FlatLayout, GrowsByWholeStepsBehindTheRowsThatAreKept) {
  Layout layout = Layout::flat();
  write(layout, 300);
  EXPECT_EQ(layout.capacity(), 512);
  layout.clear();
  write(layout, 513);
  EXPECT_EQ(layout.capacity(), 768);
  write(layout, 300);
  EXPECT_EQ(layout.capacity(), 1025);  // 513 kept + 512
  EXPECT_EQ(layout.offset(), 813);
}

TEST(FlatLayout, WhatIsReservedIsMadeAtOnceAndFillsUpInPlace) {
  Layout layout = Layout::flat();
  layout.reserve(800);
  EXPECT_EQ(layout.capacity(), 0);
  write(layout, 300);
  EXPECT_EQ(layout.capacity(), 800);
  EXPECT_FALSE(layout.plan(500).relocates);
  write(layout, 500);
  EXPECT_TRUE(layout.plan(1).relocates);
  EXPECT_EQ(layout.plan(1).capacity, 800 + 256);
  layout.reserve(2000);
  EXPECT_EQ(layout.plan(1).capacity, 2000);
  layout.clear();
  write(layout, 300);
  EXPECT_EQ(layout.capacity(), 512);
}

TEST(RingLayout, ReservingChangesNothing) {
  Layout layout = Layout::ring(100);
  write(layout, 10);
  const Write before = layout.plan(300);
  layout.reserve(5000);
  EXPECT_EQ(layout.plan(300).capacity, before.capacity);
}

TEST(FlatLayout, AWriteThatFitsLeavesTheBuffer) {
  Layout layout = Layout::flat();
  write(layout, 10);
  const Write plan = layout.plan(246);
  EXPECT_FALSE(plan.relocates);
  ASSERT_EQ(plan.rows.size(), 1U);
  EXPECT_EQ(plan.rows[0].to_row, 10);
  EXPECT_EQ(plan.rows[0].n_rows, 246);
  EXPECT_TRUE(layout.plan(247).relocates);
  EXPECT_EQ(layout.plan(247).capacity, 10 + 256);
}

TEST(FlatLayout, PlanningChangesNothing) {
  Layout layout = Layout::flat();
  write(layout, 10);
  layout.plan(1000);
  EXPECT_EQ(layout.offset(), 10);
  EXPECT_EQ(layout.capacity(), 256);
}

TEST(FlatLayout, RewindStopsAtTheEnds) {
  Layout layout = Layout::flat();
  write(layout, 10);
  EXPECT_FALSE(layout.rewind(-1));
  EXPECT_FALSE(layout.rewind(11));
  EXPECT_EQ(layout.offset(), 10);
  EXPECT_TRUE(layout.rewind(10));
  EXPECT_TRUE(layout.rewind(0));
  EXPECT_EQ(layout.capacity(), 256);
}

TEST(AnyLayout, RefusesWritesOfNothingAndBeyondTheLimit) {
  for (Layout layout : {Layout::flat(), Layout::ring(8), Layout::ring(8, 2), Layout::chunk(8)}) {
    EXPECT_THROW(layout.plan(0), std::invalid_argument);
    EXPECT_THROW(layout.plan(-5), std::invalid_argument);
    EXPECT_THROW(layout.plan((1 << 30) + 1), std::invalid_argument);
    write(layout, 1);
    EXPECT_THROW(layout.plan(1 << 30), std::invalid_argument);
    EXPECT_EQ(layout.offset(), 1);
  }
}

// ---- Ring and chunk

TEST(RingLayout, RefusesWindowsOfNothingAndBeyondTheLimit) {
  EXPECT_THROW(Layout::ring(0), std::invalid_argument);
  EXPECT_THROW(Layout::ring(-1), std::invalid_argument);
  EXPECT_THROW(Layout::ring(4, -1), std::invalid_argument);
  EXPECT_THROW(Layout::ring(1 << 30), std::invalid_argument);
  EXPECT_THROW(Layout::ring(4, 1 << 30), std::invalid_argument);
  EXPECT_THROW(Layout::chunk(0), std::invalid_argument);
  EXPECT_THROW(Layout::chunk(1 << 30), std::invalid_argument);
}

TEST(RingLayout, StaysAtWindowKeepAndSlackAndMovesNothing) {
  Layout layout = Layout::ring(600, 4);
  write(layout, 1);
  EXPECT_EQ(layout.capacity(), 256);
  for (int i = 1; i < 2000; ++i) {
    const Write plan = layout.plan(1);
    ASSERT_EQ(plan.rows.size(), 1U);
    ASSERT_EQ(plan.relocates, i == 256 || i == 512) << i;  // grows by steps at first
    layout.apply(plan);
  }
  EXPECT_EQ(layout.capacity(), 600 + 4 + Layout::kSlack);
}

TEST(RingLayout, ALargeWriteGrowsTheBufferAndASmallOneShrinksItOnce) {
  Layout layout = Layout::ring(512);
  write(layout, 512);
  EXPECT_EQ(layout.capacity(), 512);
  write(layout, 512);  // the first query needs 511 rows before it
  EXPECT_EQ(layout.capacity(), 1024);
  EXPECT_FALSE(layout.plan(512).relocates);
  write(layout, 512);
  EXPECT_TRUE(layout.plan(1).relocates);
  write(layout, 1);
  EXPECT_EQ(layout.capacity(), 512 + Layout::kSlack);
  EXPECT_FALSE(layout.plan(1).relocates);
  EXPECT_FALSE(layout.plan(Layout::kSlack).relocates);
}

// A ring of 4 (capacity 20) at its third turn.
TEST(RingLayout, ReadsByPositionWhateverTheTurn) {
  Layout layout = Layout::ring(4);
  for (int i = 0; i < 42; ++i) write(layout, 1);
  EXPECT_EQ(layout.capacity(), 20);
  EXPECT_EQ(layout.seen_by_last(1), (Positions{0, 38, 42}));
  const std::vector<StoredRun> runs = layout.runs(layout.seen_by_last(1));
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].first_position, 38);
  EXPECT_EQ(runs[0].begin_row, 18);
  EXPECT_EQ(runs[0].n_rows, 2);
  EXPECT_EQ(runs[1].first_position, 40);
  EXPECT_EQ(runs[1].begin_row, 0);
  EXPECT_EQ(runs[1].n_rows, 2);
}

TEST(RingLayout, TakesBackSixteenRowsAndNoMore) {
  for (const int turn : {100, 101, 115, 119, 120}) {
    Layout layout = Layout::ring(4, 2);
    for (int i = 0; i < turn; ++i) write(layout, 1);
    EXPECT_TRUE(layout.can_rewind(turn - 16));
    EXPECT_TRUE(layout.can_rewind(turn - 17));  // the row that the query at the offset does not need either
    EXPECT_FALSE(layout.can_rewind(turn - 18));
    EXPECT_TRUE(layout.can_rewind(2));  // what is kept is there
    EXPECT_FALSE(layout.can_rewind(3));
    ASSERT_TRUE(layout.rewind(turn - 16));
    EXPECT_EQ(listed(layout.needed(turn - 16)), (std::vector<int>{0, 1, turn - 19, turn - 18, turn - 17}));
  }
}

TEST(RingLayout, ARewindBehindTheKeptRowsForgetsTheRing) {
  Layout layout = Layout::ring(4, 3);
  for (int i = 0; i < 50; ++i) write(layout, 1);
  ASSERT_TRUE(layout.rewind(2));
  EXPECT_EQ(layout.stored(), (Positions{0, 0, 2}));
  write(layout, 1);
  EXPECT_EQ(listed(layout.seen_by_last(1)), range(0, 3));
}

TEST(ChunkLayout, ReadsNothingBeforeTheChunkOfItsQueries) {
  Layout layout = Layout::chunk(4);
  write(layout, 6);
  EXPECT_EQ(layout.seen_by_last(6), (Positions{0, 0, 6}));
  write(layout, 1);
  EXPECT_EQ(layout.seen_by_last(1), (Positions{0, 4, 7}));
  write(layout, 2);  // queries at 7 and 8
  EXPECT_EQ(layout.seen_by_last(2), (Positions{0, 4, 9}));
  EXPECT_EQ(layout.seen_by_last(1), (Positions{0, 8, 9}));
  EXPECT_EQ(layout.capacity(), 4 + Layout::kSlack);
}

// ---- Random operations, against which position each row of the buffer holds

constexpr int kNothing = -1;

struct Model {
  std::vector<int> rows;  // of the buffer: position, with the number of the write that made it
  std::vector<int> stamps;
  std::map<int, int> written;  // position -> number of its last write
  int n_writes = 0;

  void apply(const Write& plan, const std::vector<int>& positions) {
    if (plan.relocates) {
      std::vector<int> old_rows = rows;
      std::vector<int> old_stamps = stamps;
      rows.assign(static_cast<std::size_t>(plan.capacity), kNothing);
      stamps.assign(rows.size(), 0);
      for (const RowRun& run : plan.carried) {
        for (int i = 0; i < run.n_rows; ++i) {
          rows.at(static_cast<std::size_t>(run.to_row + i)) = old_rows.at(static_cast<std::size_t>(run.from_row + i));
          stamps.at(static_cast<std::size_t>(run.to_row + i)) =
              old_stamps.at(static_cast<std::size_t>(run.from_row + i));
        }
      }
    }
    ++n_writes;
    std::set<int> sources;
    std::set<int> destinations;
    for (const RowRun& run : plan.rows) {
      ASSERT_GT(run.n_rows, 0);
      for (int i = 0; i < run.n_rows; ++i) {
        ASSERT_TRUE(sources.insert(run.from_row + i).second);
        ASSERT_TRUE(destinations.insert(run.to_row + i).second);
        const int position = positions.at(static_cast<std::size_t>(run.from_row + i));
        rows.at(static_cast<std::size_t>(run.to_row + i)) = position;
        stamps.at(static_cast<std::size_t>(run.to_row + i)) = n_writes;
        written[position] = n_writes;
      }
    }
    ASSERT_EQ(sources.size(), positions.size());
  }

  // The rows of these positions are where the layout says, and the last written.
  void check(const Layout& layout, const Positions& positions) const {
    ASSERT_EQ(static_cast<int>(rows.size()), layout.capacity());
    std::vector<int> found;
    std::set<int> used;
    for (const StoredRun& run : layout.runs(positions)) {
      ASSERT_GT(run.n_rows, 0);
      for (int i = 0; i < run.n_rows; ++i) {
        const auto row = static_cast<std::size_t>(run.begin_row + i);
        ASSERT_TRUE(used.insert(run.begin_row + i).second);
        ASSERT_EQ(rows.at(row), run.first_position + i);
        ASSERT_EQ(stamps.at(row), written.at(run.first_position + i));
        found.push_back(run.first_position + i);
      }
    }
    ASSERT_EQ(found, listed(positions));
  }
};

// What a query at p sees before itself, by the definition.
std::vector<int> seen(const Layout& layout, int p) {
  std::vector<int> result;
  for (int j = 0; j < p; ++j) {
    const bool in_window = layout.window() == 0 || p - j < layout.window() || j < layout.keep();
    const bool in_chunk = layout.chunk() == 0 || p / layout.chunk() == j / layout.chunk();
    if (in_window && in_chunk) result.push_back(j);
  }
  return result;
}

bool includes(const std::vector<int>& all, const std::vector<int>& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

Layout random_layout(std::mt19937& random) {
  const int size = 1 + static_cast<int>(random() % (random() % 4 == 0 ? 300 : 12));
  switch (random() % 4) {
    case 0:
      return Layout::flat();
    case 1:
      return Layout::chunk(size);
    case 2:
      return Layout::ring(size);
    default:
      return Layout::ring(size, static_cast<int>(random() % 9));
  }
}

TEST(AnyLayout, HoldsWhatItPromisesUnderRandomOperations) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Layout layout = random_layout(random);
    Model model;
    for (int step = 0; step < 60; ++step) {
      const int before = layout.offset();
      if (random() % 4 == 0) {
        const int target = random() % 2 == 0 ? std::max(0, before - below(20)) : below(before + 1);
        const bool expected = target == before || includes(listed(layout.stored()), seen(layout, target));
        ASSERT_EQ(layout.rewind(target), expected);
        ASSERT_EQ(layout.offset(), expected ? target : before);
      } else {
        const int n_tokens = 1 + below(random() % 8 == 0 ? 400 : random() % 3 == 0 ? 24 : 2);
        const Positions stored = layout.stored();
        const Write plan = layout.plan(n_tokens);
        std::vector<int> kept;  // positions that still lie in the buffer according to survives()
        for (const int position : listed(stored)) {
          if (layout.survives({0, position, position + 1}, plan)) kept.push_back(position);
        }
        model.apply(plan, range(before, before + n_tokens));
        layout.apply(plan);
        if (HasFatalFailure()) return;
        ASSERT_EQ(layout.offset(), before + n_tokens);
        // Rows that were stored and are needed by the first query, or after kSlack rows are taken back, have survived.
        const std::vector<int> were = listed(stored);
        for (int target = before; target >= 0 && target >= before + n_tokens - Layout::kSlack; --target) {
          for (const int position : seen(layout, target)) {
            if (!std::binary_search(were.begin(), were.end(), position)) continue;
            ASSERT_TRUE(std::binary_search(kept.begin(), kept.end(), position)) << position << " for " << target;
          }
        }
        // What survives() says is so: the row is where it is looked for.
        for (const int position : kept) {
          const std::vector<StoredRun> runs = layout.runs({0, position, position + 1});
          ASSERT_EQ(model.rows.at(static_cast<std::size_t>(runs.at(0).begin_row)), position);
        }
        // The history of the queries just written.
        const Positions history = layout.seen_by_last(n_tokens);
        for (int query = before; query < layout.offset(); ++query) {
          ASSERT_TRUE(includes(listed(history), seen(layout, query))) << query;
        }
        ASSERT_EQ(history.end, layout.offset());
        ASSERT_NO_FATAL_FAILURE(model.check(layout, history));
        if (layout.rule() != Layout::Rule::kFlat && n_tokens <= Layout::kSlack) {
          ASSERT_LE(layout.capacity(), std::max(layout.window(), layout.chunk()) + layout.keep() + Layout::kSlack);
        }
      }
      ASSERT_NO_FATAL_FAILURE(model.check(layout, layout.stored()));
      ASSERT_TRUE(includes(listed(layout.stored()), seen(layout, layout.offset())));
    }
  }
}

TEST(AnyLayout, RestoresWhatASnapshotHoldsUnderRandomOperations) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Layout layout = random_layout(random);
    Model model;
    std::vector<Positions> snapshots;
    for (int step = 0; step < 40; ++step) {
      const unsigned operation = random() % 4;
      if (operation < 2) {
        const int n_tokens = 1 + below(operation == 0 ? 60 : 3);
        const Write plan = layout.plan(n_tokens);
        model.apply(plan, range(layout.offset(), layout.offset() + n_tokens));
        layout.apply(plan);
      } else if (operation == 2 && layout.offset() > 0) {
        const Positions held = layout.held_by_snapshot(below(layout.offset()));
        ASSERT_TRUE(includes(listed(layout.stored()), listed(held)));
        ASSERT_TRUE(layout.rule() == Layout::Rule::kFlat || layout.reaches(held, held.end));
        snapshots.push_back(held);
      } else if (operation == 3 && !snapshots.empty()) {
        const Positions held = snapshots[random() % snapshots.size()];
        const bool is_flat = layout.rule() == Layout::Rule::kFlat;
        if (is_flat && held.first > layout.offset()) {
          ASSERT_THROW(layout.plan_restore(held), std::invalid_argument);
          continue;
        }
        const int target = held.end - below(std::min(20, held.end - held.first + 1));
        if (!is_flat && !layout.reaches(held, target)) {
          ASSERT_THROW(layout.plan_restore(Layout::cut(held, target)), std::invalid_argument);
          continue;
        }
        const Positions wanted = Layout::cut(held, target);
        if (is_flat && wanted.is_empty()) continue;
        const Write plan = layout.plan_restore(wanted);
        model.apply(plan, listed(wanted));
        layout.apply(plan);
        ASSERT_EQ(layout.offset(), target);
        ASSERT_EQ(layout.stored(), is_flat ? (Positions{0, 0, target}) : wanted);
      }
      if (HasFatalFailure()) return;
      ASSERT_NO_FATAL_FAILURE(model.check(layout, layout.stored()));
    }
  }
}

// ---- Names

TEST(CacheKind, IsReadFromItsNameAndTheAliasesOfOthers) {
  for (const CacheKind kind : {CacheKind::kKV, CacheKind::kRotating, CacheKind::kChunked, CacheKind::kQuantized,
                               CacheKind::kQuantizedRotating, CacheKind::kQuantizedChunked}) {
    EXPECT_EQ(parse_kind(kind_name(kind)), kind);
  }
  for (const char* alias : {"ConcatenateKVCache", "KVCacheSimple", "StandardKvCache"}) {
    EXPECT_EQ(parse_kind(alias), CacheKind::kKV);
  }
  EXPECT_EQ(parse_kind("RotatingKvCache"), CacheKind::kRotating);
  EXPECT_EQ(parse_kind("ChunkedKvCache"), CacheKind::kChunked);
  EXPECT_EQ(parse_kind("StandardQuantizedKvCache"), CacheKind::kQuantized);
  EXPECT_EQ(parse_kind("kvcache"), std::nullopt);
  EXPECT_EQ(parse_kind(""), std::nullopt);
  EXPECT_EQ(kind_name(CacheKind::kRotating), "RotatingKVCache");
}

}  // namespace
}  // namespace memoir::cache
