#include "memoir/cache/kv.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <limits>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "memoir/cache/kv_snapshot.h"
#include "tests/cache_rows.h"
#include "tests/held_allocations.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using namespace test;

TEST(KVCache, IsEmptyAtFirst) {
  KVCache cache;
  EXPECT_TRUE(cache.is_empty());
  EXPECT_EQ(cache.kind(), "KVCache");
  EXPECT_EQ(cache.offset(), 0);
  EXPECT_EQ(cache.size_bytes(), 0U);
  EXPECT_TRUE(cache.state().empty());
  EXPECT_FALSE(cache.view().has_value());
  EXPECT_EQ(cache.snapshot(0), nullptr);
}

// mlx-lm test_models.py, test_kv_cache: one token, then 256.
TEST(KVCache, ReturnsAllRowsAfterEachUpdate) {
  KVCache cache;
  EXPECT_EQ(contents(feed(cache, 1)), range(0, 1));
  EXPECT_EQ(contents(feed(cache, 256)), range(0, 257));
  EXPECT_EQ(cache.offset(), 257);
  EXPECT_EQ(cache.capacity(), 1 + 256);  // mlx-lm: cut to the 1 row, then one step
}

TEST(KVCache, ViewReadsWithoutWriting) {
  KVCache cache;
  feed(cache, 5);
  EXPECT_EQ(contents(cache.view()), range(0, 5));
  EXPECT_EQ(contents(cache.view()), range(0, 5));
  EXPECT_EQ(cache.offset(), 5);
}

TEST(KVCache, KeepsDifferentWidthsForKeysAndValues) {
  KVCache cache;
  cache.update(rows_at(0, 3, 1, 8), rows_at(0, 3, -1, 6));
  EXPECT_EQ(contents(cache.update(rows_at(3, 4, 1, 8), rows_at(3, 4, -1, 6))), range(0, 4));
  EXPECT_EQ(cache.size_bytes(), sizeof(float) * 256 * kHeads * (8 + 6));
}

// The reference's table 4.1: a snapshot of [5, 10) needs the rows below 5.
TEST(KVCache, RestoreNeedsTheRowsBelowTheSnapshot) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(5);
  cache.free();
  EXPECT_FALSE(cache.restore(snapshot.get(), 10));
  EXPECT_TRUE(cache.is_empty());
}

TEST(KVCache, DataSurvivesSnapshotAndRestoreIntoAFreshCache) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(0);
  KVCache fresh;
  ASSERT_TRUE(fresh.restore(snapshot.get(), 10));
  EXPECT_EQ(fresh.offset(), 10);
  EXPECT_EQ(contents(fresh.view()), range(0, 10));
}

TEST(KVCache, SplitHalvesRestoreOneAfterTheOther) {
  KVCache cache;
  feed(cache, 10);
  const SnapshotPair halves = cache.split(cache.snapshot(0), 5);
  ASSERT_TRUE(halves.parent && halves.child);
  EXPECT_EQ(halves.parent->from(), 0);
  EXPECT_EQ(halves.parent->to(), 5);
  EXPECT_EQ(halves.child->from(), 5);
  EXPECT_EQ(halves.child->to(), 10);
  KVCache fresh;
  ASSERT_TRUE(fresh.restore(halves.parent.get(), 5));
  EXPECT_EQ(contents(fresh.view()), range(0, 5));
  ASSERT_TRUE(fresh.restore(halves.child.get(), 10));
  EXPECT_EQ(contents(fresh.view()), range(0, 10));
}

TEST(KVCache, MergeUndoesSplit) {
  KVCache cache;
  feed(cache, 10);
  SnapshotPair halves = cache.split(cache.snapshot(0), 6);
  const auto whole = cache.merge(std::move(halves.parent), std::move(halves.child));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->from(), 0);
  EXPECT_EQ(whole->to(), 10);
  EXPECT_EQ(whole->size_bytes(), 0U);  // lazy
  whole->materialize();
  EXPECT_EQ(whole->size_bytes(), sizeof(float) * 10 * kHeads * 2 * kWidth);
  KVCache fresh;
  ASSERT_TRUE(fresh.restore(whole.get(), 10));
  EXPECT_EQ(contents(fresh.view()), range(0, 10));
}

TEST(KVCache, SplitAtOrBeyondAnEndKeepsTheSnapshotWhole) {
  KVCache cache;
  feed(cache, 10);
  for (const int at : {-3, 0, 2}) {
    const SnapshotPair pair = cache.split(cache.snapshot(2), at);
    EXPECT_EQ(pair.parent, nullptr);
    ASSERT_TRUE(pair.child);
    EXPECT_EQ(pair.child->from(), 2);
  }
  for (const int at : {10, 11}) {
    const SnapshotPair pair = cache.split(cache.snapshot(2), at);
    EXPECT_EQ(pair.child, nullptr);
    ASSERT_TRUE(pair.parent);
    EXPECT_EQ(pair.parent->to(), 10);
  }
  const SnapshotPair none = cache.split(nullptr, 3);
  EXPECT_EQ(none.parent, nullptr);
  EXPECT_EQ(none.child, nullptr);
}

TEST(KVCache, MergeWithNothingIsNothing) {
  KVCache cache;
  feed(cache, 10);
  EXPECT_EQ(cache.merge(nullptr, cache.snapshot(0)), nullptr);
  EXPECT_EQ(cache.merge(cache.snapshot(0), nullptr), nullptr);
  EXPECT_EQ(cache.merge(nullptr, nullptr), nullptr);
}

TEST(KVCache, MergeRefusesSnapshotsThatDoNotMeet) {
  KVCache cache;
  feed(cache, 10);
  EXPECT_THROW(cache.merge(cache.snapshot(0), cache.snapshot(5)), std::invalid_argument);
  KVCache narrow;
  narrow.update(rows_at(0, 10, 1, 4), rows_at(0, 10, -1, 4));
  feed(cache, 5);
  SnapshotPair halves = cache.split(cache.snapshot(0), 10);
  EXPECT_THROW(cache.merge(narrow.snapshot(0), std::move(halves.child)), std::invalid_argument);
}

TEST(KVCache, RestoreClampsToATargetInsideTheSnapshot) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(4);
  ASSERT_TRUE(cache.restore(nullptr, 6));
  feed(cache, 3, 100);
  ASSERT_TRUE(cache.restore(snapshot.get(), 8));
  EXPECT_EQ(contents(cache.view()), range(0, 8));
  ASSERT_TRUE(cache.restore(snapshot.get(), 2));
  EXPECT_EQ(contents(cache.view()), range(0, 2));
}

TEST(KVCache, RestoreRefusesTargetsOutOfReach) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(4);
  EXPECT_FALSE(cache.restore(nullptr, -1));
  EXPECT_FALSE(cache.restore(nullptr, 11));
  EXPECT_FALSE(cache.restore(snapshot.get(), -1));
  EXPECT_FALSE(cache.restore(snapshot.get(), 11));
  ASSERT_TRUE(cache.restore(nullptr, 3));
  EXPECT_FALSE(cache.restore(snapshot.get(), 10));
  EXPECT_EQ(contents(cache.view()), range(0, 3));
}

TEST(KVCache, ASnapshotIsNotChangedByLaterWrites) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(5);
  ASSERT_TRUE(cache.restore(nullptr, 5));
  feed(cache, 3, 100);
  mx::eval(cache.state());
  EXPECT_EQ(contents(cache.view()), (std::vector<int>{0, 1, 2, 3, 4, 100, 101, 102}));
  ASSERT_TRUE(cache.restore(snapshot.get(), 10));
  EXPECT_EQ(contents(cache.view()), range(0, 10));
}

// A full buffer of one head is contiguous as it stands, the case in which MLX shares rather than copies.
TEST(KVCache, ASnapshotOfAWholeBufferIsNotChangedByLaterWrites) {
  KVCache cache;
  const mx::array ones = mx::ones({1, 1, 256, kWidth});
  mx::eval(cache.update(ones, ones).keys.data);
  const auto snapshot = cache.snapshot(0);
  ASSERT_TRUE(cache.restore(nullptr, 0));
  const mx::array twos = mx::full({1, 1, 256, kWidth}, 2.0F);
  mx::eval(cache.update(twos, twos).keys.data);
  KVCache fresh;
  ASSERT_TRUE(fresh.restore(snapshot.get(), 256));
  EXPECT_TRUE(mx::array_equal(fresh.view()->key_rows(), ones).item<bool>());
}

// mlx-lm test_prompt_cache.py, test_trim_cache: of 10 tokens trim 7, then 4.
TEST(KVCache, TrimStopsAtTheStart) {
  KVCache cache;
  feed(cache, 10);
  EXPECT_TRUE(cache.is_trimmable());
  EXPECT_EQ(cache.trim(7), 7);
  EXPECT_EQ(cache.trim(4), 3);
  EXPECT_TRUE(cache.is_empty());
  EXPECT_THROW(cache.trim(-1), std::invalid_argument);
}

TEST(KVCache, WritesAfterARewindReplaceWhatWasThere) {
  KVCache cache;
  feed(cache, 300);
  ASSERT_TRUE(cache.restore(nullptr, 256));
  feed(cache, 300, 1000);
  std::vector<int> expected = range(0, 256);
  for (const int value : range(1000, 1300)) expected.push_back(value);
  EXPECT_EQ(contents(cache.view()), expected);
}

TEST(KVCache, RefusesRowsThatDoNotFit) {
  KVCache cache;
  feed(cache, 5);
  const mx::array good = rows_at(5, 6, 1);
  const auto refuses = [&](const mx::array& keys, const mx::array& values) {
    EXPECT_THROW(cache.update(keys, values), std::invalid_argument);
    EXPECT_EQ(contents(cache.view()), range(0, 5));
  };
  refuses(rows_at(5, 6, 1, 4), good);
  refuses(good, rows_at(5, 6, 1, 4));
  refuses(good, rows_at(5, 7, 1));
  refuses(rows_at(5, 6, 1, kWidth, mx::float16), good);
  refuses(mx::zeros({2, kHeads, 1, kWidth}), mx::zeros({2, kHeads, 1, kWidth}));
  refuses(mx::zeros({1, 2, 1, kWidth}), mx::zeros({1, 2, 1, kWidth}));
  refuses(mx::zeros({kHeads, 1, kWidth}), mx::zeros({kHeads, 1, kWidth}));
  refuses(mx::zeros({0, kHeads, 1, kWidth}), mx::zeros({0, kHeads, 1, kWidth}));
  refuses(mx::zeros({1, kHeads, 0, kWidth}), mx::zeros({1, kHeads, 0, kWidth}));
}

TEST(KVCache, AnEmptyOneRefusesRowsOfNoSequencesOrHeads) {
  for (const auto& quantization : {std::optional<KVQuantization>(), std::optional(KVQuantization{8, 32})}) {
    KVCache cache({.quantization = quantization});
    for (const mx::Shape& shape : {mx::Shape{0, 2, 1, 32}, mx::Shape{1, 0, 1, 32}}) {
      EXPECT_THROW(cache.update(mx::zeros(shape), mx::zeros(shape)), std::invalid_argument);
    }
    EXPECT_TRUE(cache.is_empty());
  }
}

TEST(KVCache, PlansNoUpdateThatItWouldRefuse) {
  KVCache cache;
  EXPECT_TRUE(cache.plan_update(1, {1, 2, 8, 0, mx::float32}));
  EXPECT_FALSE(cache.plan_update(1, {1, 2, 8, 8, mx::int32}));
  EXPECT_FALSE(cache.plan_update(1, {0, 2, 8, 8, mx::float32}));
  EXPECT_FALSE(cache.plan_update(1, {1, 0, 8, 8, mx::float32}));
  EXPECT_FALSE(cache.plan_update(1, {1, 2, -8, 8, mx::float32}));
}

TEST(KVCache, RestoreOfAChainRefusesNullsAndRoomBeyondAnyOffset) {
  KVCache source;
  feed(source, 5);
  const auto snapshot = source.snapshot(0);
  const auto* const rows = dynamic_cast<const KVSnapshot*>(snapshot.get());
  KVCache cache;
  EXPECT_THROW(cache.restore_chain({nullptr}, 4, 4), std::invalid_argument);
  EXPECT_THROW(cache.restore_chain({rows}, 5, std::numeric_limits<int>::max()), std::invalid_argument);
  EXPECT_TRUE(cache.is_empty());
  EXPECT_TRUE(cache.restore_chain({rows}, 5, -1));
  EXPECT_EQ(contents(cache.view()), range(0, 5));
}

TEST(KVCache, ANegativeKeepIsRefusedBesideAMaxSize) {
  for (const int keep : {-1, std::numeric_limits<int>::min()}) {
    EXPECT_THROW(make_kv_cache(std::nullopt, std::nullopt, {.max_size = std::numeric_limits<int>::max(), .keep = keep}),
                 std::invalid_argument);
    EXPECT_THROW(make_kv_cache(4, std::nullopt, {.max_size = 8, .keep = keep}), std::invalid_argument);
  }
}

TEST(KVCache, NamesWhatItExpected) {
  KVCache cache;
  feed(cache, 5);
  try {
    cache.update(rows_at(5, 6, 1, 4), rows_at(5, 6, 1, 4));
    FAIL() << "no throw";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "[cache.update] keys has shape (1,4,1,4) float32, expected (1,4,*,8) float32");
  }
}

class ForeignSnapshot : public Snapshot {
 public:
  int from() const override { return 0; }
  int to() const override { return 4; }
  std::size_t size_bytes() const override { return 0; }
};

TEST(KVCache, RefusesSnapshotsOfOtherKindsAndShapes) {
  KVCache cache;
  feed(cache, 5);
  const ForeignSnapshot foreign;
  EXPECT_THROW(cache.restore(&foreign, 4), std::invalid_argument);
  EXPECT_THROW(cache.split(std::make_unique<ForeignSnapshot>(), 2), std::invalid_argument);
  EXPECT_THROW(cache.merge(std::make_unique<ForeignSnapshot>(), cache.snapshot(4)), std::invalid_argument);
  KVCache narrow;
  narrow.update(rows_at(0, 10, 1, 4), rows_at(0, 10, -1, 4));
  const auto snapshot = narrow.snapshot(0);
  EXPECT_THROW(cache.restore(snapshot.get(), 10), std::invalid_argument);
  EXPECT_EQ(contents(cache.view()), range(0, 5));
}

TEST(KVCache, FreeForgetsTheShape) {
  KVCache cache;
  feed(cache, 5);
  cache.free();
  EXPECT_EQ(cache.size_bytes(), 0U);
  cache.update(rows_at(0, 2, 1, 4), rows_at(0, 2, -1, 4));
  EXPECT_EQ(contents(cache.view()), range(0, 2));
}

// One decode step in a large cache must not copy it: the peak during the step stays far below one buffer.
TEST(KVCache, ADecodeStepAllocatesNothingThatGrowsWithTheContext) {
  std::map<int, std::size_t> growth;
  for (const int n_rows : {1000, 16000}) {
    KVCache cache;
    feed(cache, n_rows);
    mx::eval(cache.state());
    for (int step = 0; step < 4; ++step) {
      const mx::array keys = rows_at(0, 1, 1);
      const mx::array values = rows_at(0, 1, -1);
      mx::eval(keys, values);
      growth[n_rows] = std::max(growth[n_rows], memoir::test::held_allocation_bytes([&] {
                                  const History history = cache.update(keys, values);
                                  return std::vector{history.keys.data, history.values.data};
                                }));
    }
  }
  EXPECT_EQ(growth[1000], growth[16000]);
  EXPECT_LT(growth[16000], std::size_t{16000} * kHeads * kWidth * sizeof(float));
}

// Against a list of values: random updates, rewinds, snapshots, splits, merges and restores.
TEST(KVCache, AgreesWithAListUnderRandomOperations) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    KVCache cache;
    std::vector<int> list;
    struct Saved {
      std::unique_ptr<Snapshot> snapshot;
      std::vector<int> list;  // all rows at that time
    };
    std::vector<Saved> saved;
    int next_value = 0;
    for (int step = 0; step < 40; ++step) {
      const int operation = below(5);
      if (operation <= 1) {
        const int n_tokens = 1 + below(operation == 0 ? 3 : 300);
        feed(cache, n_tokens, next_value);
        for (int i = 0; i < n_tokens; ++i) list.push_back(next_value++);
      } else if (operation == 2) {
        const int target = below(cache.offset() + 1);
        ASSERT_TRUE(cache.restore(nullptr, target));
        list.resize(static_cast<std::size_t>(target));
      } else if (operation == 3 && cache.offset() > 0) {
        auto snapshot = cache.snapshot(below(cache.offset()));
        SnapshotPair halves = cache.split(std::move(snapshot), below(cache.offset() + 1));
        if (halves.parent && halves.child) {
          snapshot = cache.merge(std::move(halves.parent), std::move(halves.child));
        } else {
          snapshot = halves.parent ? std::move(halves.parent) : std::move(halves.child);
        }
        ASSERT_TRUE(snapshot);
        saved.push_back({std::move(snapshot), list});
      } else if (operation == 4 && !saved.empty()) {
        const Saved& one = saved[random() % saved.size()];
        const int target = one.snapshot->from() + below(one.snapshot->to() - one.snapshot->from() + 1);
        const bool reaches = cache.offset() >= one.snapshot->from();
        ASSERT_EQ(cache.restore(one.snapshot.get(), target), reaches);
        if (reaches) {
          list.resize(static_cast<std::size_t>(one.snapshot->from()));
          list.insert(list.end(), one.list.begin() + one.snapshot->from(), one.list.begin() + target);
        }
      }
      ASSERT_EQ(cache.offset(), static_cast<int>(list.size()));
    }
    ASSERT_EQ(contents(cache.view()), list);
  }
}

TEST(ModelCache, RewindsAllLayersOrNone) {
  std::vector<std::unique_ptr<LayerCache>> layers;
  for (int i = 0; i < 3; ++i) layers.push_back(std::make_unique<KVCache>());
  layers.push_back(nullptr);
  ModelCache cache(std::move(layers));
  const mx::array rows = mx::zeros({1, 1, 6, 4});
  for (std::size_t i = 0; i < 3; ++i) cache.attention(i).update(rows, rows);
  EXPECT_EQ(cache.offset(), 6);
  EXPECT_EQ(cache.size_bytes(), 3 * 2 * 256 * 4 * sizeof(float));
  EXPECT_EQ(cache.state().size(), 6U);
  EXPECT_FALSE(cache.rewind(7));
  EXPECT_TRUE(cache.rewind(4));
  EXPECT_EQ(cache.layer(2).offset(), 4);
  // A forward pass that failed half way.
  cache.attention(0).update(rows, rows);
  EXPECT_EQ(cache.offset(), 4);
  EXPECT_TRUE(cache.rewind(4));
  EXPECT_EQ(cache.layer(0).offset(), 4);
  cache.free();
  EXPECT_EQ(cache.size_bytes(), 0U);
}

TEST(ModelCache, NamesALayerThatHasNoCache) {
  std::vector<std::unique_ptr<LayerCache>> layers;
  layers.push_back(std::make_unique<KVCache>());
  layers.push_back(nullptr);
  const ModelCache cache(std::move(layers));
  EXPECT_THROW(cache.layer(1), std::invalid_argument);
  EXPECT_THROW(cache.attention(2), std::invalid_argument);
  EXPECT_THROW(ModelCache(std::vector<std::unique_ptr<LayerCache>>(2)), std::invalid_argument);
}

}  // namespace
}  // namespace memoir::cache
