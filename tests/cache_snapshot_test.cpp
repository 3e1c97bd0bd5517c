// Lazy snapshots: what they cost, when they become real, and that they always hold what they were taken of. The cases
// are those of ollama's lazy_test (keys at position p filled with p, values with -p).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "memoir/cache/kv_snapshot.h"
#include "tests/cache_rows.h"
#include "tests/held_allocations.h"

namespace memoir::cache {
namespace {

using namespace test;

constexpr std::size_t kRowBytes = 2 * kHeads * kWidth * sizeof(float);

// The rows that a snapshot brings into a cache which has `n_below` rows, all 7, below it.
std::vector<int> restored(const Snapshot& snapshot, int n_below = 0) {
  KVCache fresh;
  if (n_below > 0)
    fresh.update(mx::full({1, kHeads, n_below, kWidth}, 7.0F), mx::full({1, kHeads, n_below, kWidth}, -7.0F));
  EXPECT_TRUE(fresh.restore(&snapshot, snapshot.to()));
  std::vector<int> rows = contents(fresh.view());
  rows.erase(rows.begin(), rows.begin() + n_below);
  return rows;
}

TEST(LazySnapshot, HoldsNothingUntilARowIsOverwritten) {
  KVCache cache;
  int n_copied = 0;
  std::size_t n_bytes = 0;
  cache.on_snapshot_copied([&](const Snapshot& snapshot) {
    ++n_copied;
    n_bytes += snapshot.size_bytes();
  });
  feed(cache, 10);
  const auto snapshot = cache.snapshot(5);
  EXPECT_TRUE(snapshot->is_lazy());
  EXPECT_EQ(snapshot->size_bytes(), 0U);
  feed(cache, 400);  // behind it; also grows the buffer
  EXPECT_TRUE(snapshot->is_lazy());
  ASSERT_TRUE(cache.restore(nullptr, 5));
  EXPECT_TRUE(snapshot->is_lazy());
  feed(cache, 3, 100);
  EXPECT_FALSE(snapshot->is_lazy());
  EXPECT_EQ(n_copied, 1);
  EXPECT_EQ(snapshot->size_bytes(), 5 * kRowBytes);
  EXPECT_EQ(n_bytes, snapshot->size_bytes());
  EXPECT_EQ(restored(*snapshot, 5), range(5, 10));
  feed(cache, 3, 100);
  EXPECT_EQ(n_copied, 1);
}

TEST(LazySnapshot, IsCopiedWhenTheCacheIsFreedOrGone) {
  auto cache = std::make_unique<KVCache>();
  feed(*cache, 10);
  const auto first = cache->snapshot(5);
  cache->free();
  EXPECT_FALSE(first->is_lazy());
  EXPECT_EQ(restored(*first, 5), range(5, 10));
  feed(*cache, 10);
  const auto second = cache->snapshot(0);
  cache.reset();
  EXPECT_FALSE(second->is_lazy());
  EXPECT_EQ(restored(*second), range(0, 10));
}

// What a ring of window 20 or a chunk of 12 needs at any offset inside a write of 100 is in the buffer behind it.
TEST(SnapshotAt, IsThereForEveryOffsetInsideTheLastWrite) {
  for (const KVOptions& options : {KVOptions{.window = 20, .keep = 2}, KVOptions{.chunk = 12}, KVOptions{}}) {
    KVCache cache(options);
    feed(cache, 57);
    feed(cache, 100);
    for (const int at : {58, 60, 61, 100, 120, 156, 157}) {
      const auto snapshot = cache.snapshot_at(at);
      ASSERT_TRUE(snapshot) << at;
      EXPECT_TRUE(snapshot->is_lazy());
      EXPECT_EQ(snapshot->to(), at);
      KVCache other(options);
      KVCache computed(options);
      ASSERT_TRUE(other.restore(snapshot.get(), at));
      feed(computed, at);
      feed(other, 1);
      feed(computed, 1);
      EXPECT_EQ(contents(other.view()), contents(computed.view())) << at;
    }
    EXPECT_EQ(cache.snapshot_at(0), nullptr);
    EXPECT_EQ(cache.snapshot_at(158), nullptr);
    for (int i = 0; i < 40; ++i) feed(cache, 1);  // a ring or chunk is back to its steady size
    EXPECT_EQ(cache.snapshot_at(100) == nullptr, options.window || options.chunk);
  }
}

// The runner's capture tables for rings (its snapshot_capture_test): a ring of 32 that isn't full, one of 8 that just
// is, one of 4 that has turned. Four drafts, of which some are accepted: each offset is restored from its own snapshot.
TEST(SnapshotAt, EveryAcceptedNumberHasItsOwn) {
  for (const auto& [window, before] : {std::pair(32, 4), std::pair(8, 4), std::pair(4, 10)}) {
    for (int n_accepted = 0; n_accepted <= 4; ++n_accepted) {
      KVCache cache(KVOptions{.window = window});
      int n_copied = 0;
      cache.on_snapshot_copied([&](const Snapshot&) { ++n_copied; });
      feed(cache, before);
      feed(cache, 4);
      const int offset = before + n_accepted;
      const auto snapshot = cache.snapshot_at(offset);
      ASSERT_TRUE(snapshot);
      ASSERT_TRUE(cache.restore(snapshot.get(), offset));
      EXPECT_TRUE(snapshot->is_lazy());
      EXPECT_EQ(n_copied, 0);
      EXPECT_EQ(contents(cache.view()), range(std::max(0, offset - window), offset));
      EXPECT_EQ(contents(feed(cache, 1)), range(std::max(0, offset + 1 - window), offset + 1));
      KVCache fresh(KVOptions{.window = window});  // whatever the write did to it
      ASSERT_TRUE(fresh.restore(snapshot.get(), offset));
      EXPECT_EQ(contents(fresh.view()), range(std::max(0, offset - window), offset));
    }
  }
}

// RotatingSnapshotSingleTokenWrite.
TEST(SnapshotAt, OfAWriteOfOneToken) {
  for (const auto& [window, before] : {std::pair(32, 5), std::pair(4, 10)}) {
    KVCache cache(KVOptions{.window = window});
    feed(cache, before);
    feed(cache, 1);
    const auto snapshot = cache.snapshot_at(before + 1);
    ASSERT_TRUE(snapshot);
    feed(cache, 1, 100);
    ASSERT_TRUE(cache.restore(snapshot.get(), before + 1));
    EXPECT_EQ(contents(cache.view()), range(std::max(0, before + 1 - window), before + 1));
  }
}

// RotatingSnapshotSurvivesLaterChunk: window 6, two writes of 8 tokens, snapshots at 4 and 12.
TEST(SnapshotAt, OfARingOutlivesTheNextWrite) {
  KVCache cache(KVOptions{.window = 6});
  feed(cache, 8);
  const auto at_4 = cache.snapshot_at(4);
  feed(cache, 8);
  const auto at_12 = cache.snapshot_at(12);
  ASSERT_TRUE(at_4 && at_12);
  ASSERT_TRUE(cache.restore(at_4.get(), 4));
  EXPECT_EQ(contents(cache.view()), range(0, 4));
  KVCache fresh(KVOptions{.window = 6});
  ASSERT_TRUE(fresh.restore(at_12.get(), 12));
  EXPECT_EQ(contents(fresh.view()), range(6, 12));
}

// A ring's snapshot serves the 16 offsets before its end, one inside its window all, a chunk's those of its chunk.
TEST(SnapshotAt, TellsHowFarBackItServes) {
  KVCache ring(KVOptions{.window = 20});
  feed(ring, 15);
  EXPECT_EQ(ring.snapshot(0)->earliest(), 0);
  feed(ring, 85);
  EXPECT_EQ(ring.snapshot(0)->earliest(), 84);
  for (int target = 84; target <= 100; ++target)
    EXPECT_TRUE(KVCache(ring.options()).restore(&*ring.snapshot(0), target));
  EXPECT_FALSE(KVCache(ring.options()).restore(&*ring.snapshot(0), 83));
  KVCache flat;
  feed(flat, 30);
  EXPECT_EQ(flat.snapshot(10)->earliest(), 10);
}

TEST(FlatSnapshots, AreCutAndJoinedAndRestoredAsAChain) {
  KVCache cache;
  feed(cache, 700);
  const auto whole = cache.snapshot(0);
  const auto& lazy = dynamic_cast<const KVSnapshot&>(*whole);
  const auto first = lazy.part(0, 300);
  const auto second = KVSnapshot::of_both(*lazy.part(300, 310), *lazy.part(310, 500));
  const auto third = lazy.part(400, 700)->part(500, 700);
  EXPECT_TRUE(lazy.is_lazy());
  EXPECT_EQ(second->size_bytes(), 200 * kRowBytes);
  for (const int target : {1, 299, 300, 301, 500, 699, 700}) {
    KVCache other;
    ASSERT_TRUE(other.restore_chain({first.get(), second.get(), third.get()}, target, 800));
    EXPECT_EQ(contents(other.view()), range(0, target));
    EXPECT_EQ(other.capacity(), 1024);  // room for 800, in steps of 256
    feed(other, 5);
    EXPECT_EQ(contents(other.view()), range(0, target + 5));
    EXPECT_EQ(other.capacity(), 1024);
  }
  KVCache other;
  EXPECT_FALSE(other.restore_chain({first.get(), third.get()}, 600, 0));
  EXPECT_FALSE(other.restore_chain({first.get(), second.get()}, 501, 0));
  EXPECT_FALSE(other.restore_chain({second.get()}, 400, 0));
  EXPECT_TRUE(other.is_empty());
  feed(other, 1);
  EXPECT_FALSE(other.restore_chain({first.get()}, 300, 0));
  EXPECT_FALSE(KVCache(KVOptions{.window = 20}).restore_chain({}, 1, 0));
  EXPECT_THROW(first->part(0, 301), std::invalid_argument);
  EXPECT_THROW(KVSnapshot::of_both(*first, *third), std::invalid_argument);
}

TEST(LazySnapshot, OfAPathThatWasLeftIsCopiedAlone) {
  KVCache cache;
  feed(cache, 10);
  const auto trunk = cache.snapshot(0);
  SnapshotPair parts = cache.split(cache.snapshot(0), 4);
  ASSERT_TRUE(cache.restore(nullptr, 4));
  feed(cache, 5, 200);
  EXPECT_TRUE(parts.parent->is_lazy());  // [0, 4) still lies there
  EXPECT_FALSE(parts.child->is_lazy());
  EXPECT_FALSE(trunk->is_lazy());
  EXPECT_EQ(restored(*parts.child, 4), range(4, 10));
  EXPECT_EQ(restored(*parts.parent), range(0, 4));
  EXPECT_EQ(restored(*trunk), range(0, 10));
}

TEST(LazySnapshot, GrowthCarriesNoRowsBehindTheOffset) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(8);
  ASSERT_TRUE(cache.restore(nullptr, 2));
  feed(cache, 300, 500);
  EXPECT_FALSE(snapshot->is_lazy());
  EXPECT_EQ(restored(*snapshot, 8), range(8, 10));
}

TEST(LazySnapshot, OfTheSameCacheIsRestoredByMovingTheOffset) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(5);
  ASSERT_TRUE(cache.restore(nullptr, 5));
  ASSERT_TRUE(cache.restore(snapshot.get(), 10));
  EXPECT_TRUE(snapshot->is_lazy());
  EXPECT_EQ(contents(cache.view()), range(0, 10));
  // Below it the cache has other rows by now: these stay.
  ASSERT_TRUE(cache.restore(nullptr, 3));
  feed(cache, 2, 300);
  EXPECT_TRUE(snapshot->is_lazy());
  ASSERT_TRUE(cache.restore(snapshot.get(), 9));
  EXPECT_EQ(contents(cache.view()), (std::vector<int>{0, 1, 2, 300, 301, 5, 6, 7, 8}));
}

TEST(LazySnapshot, OfAnotherCacheIsReadFromThere) {
  KVCache cache;
  feed(cache, 10);
  const auto snapshot = cache.snapshot(0);
  KVCache other;
  ASSERT_TRUE(other.restore(snapshot.get(), 10));
  EXPECT_TRUE(snapshot->is_lazy());
  feed(cache, 1);
  feed(other, 1, 50);
  EXPECT_EQ(contents(cache.view()), range(0, 11));
  EXPECT_EQ(contents(other.view()), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50}));
}

TEST(LazySnapshot, OfARingIsCopiedBeforeItsOldestRowGoes) {
  KVCache cache({.window = 4});
  for (int i = 0; i < 40; ++i) feed(cache, 1);
  int n_copied = 0;
  cache.on_snapshot_copied([&](const Snapshot&) { ++n_copied; });
  const auto snapshot = cache.snapshot(0);
  // It holds 19 rows of 20: one write goes into the free one.
  feed(cache, 1);
  EXPECT_TRUE(snapshot->is_lazy());
  ASSERT_TRUE(cache.restore(snapshot.get(), 38));
  EXPECT_EQ(n_copied, 0);
  EXPECT_EQ(contents(cache.view()), range(34, 38));
  feed(cache, 4);
  EXPECT_EQ(n_copied, 1);
  KVCache fresh({.window = 4});
  ASSERT_TRUE(fresh.restore(snapshot.get(), 40));
  EXPECT_EQ(contents(fresh.view()), range(36, 40));
}

// ---- What it costs, by MLX's count of memory

std::size_t peak_growth(const std::function<void()>& work) {
  mx::synchronize();
  mx::reset_peak_memory();
  const std::size_t before = mx::get_active_memory();
  work();
  mx::synchronize();
  return std::max(mx::get_peak_memory(), before) - before;
}

std::vector<KVOptions> kinds() {
  const KVQuantization q8{8, 32};
  return {{}, {.window = 500, .keep = 4}, {.chunk = 600}, {.quantization = q8}, {.window = 500, .quantization = q8}};
}

History feed_wide(KVCache& cache, int n_tokens) {
  const mx::array rows = mx::ones({1, 2, n_tokens, 32});
  return cache.update(rows, rows);
}

TEST(SnapshotCost, TakingRewindingViewingAndSplittingALazyOneCopiesNothing) {
  for (const KVOptions& options : kinds()) {
    KVCache cache(options);
    feed_wide(cache, 700);
    for (int i = 0; i < 20; ++i) feed_wide(cache, 1);
    cache.materialize();
    EXPECT_EQ(peak_growth([&] {
                auto snapshot = cache.snapshot(100);
                SnapshotPair halves = cache.split(std::move(snapshot), 715);
                ASSERT_TRUE(halves.parent && halves.child);
                const auto view = cache.view();
                mx::eval(view->keys.data, view->values.data);
                ASSERT_TRUE(cache.restore(nullptr, 716));
                ASSERT_TRUE(cache.restore(halves.child.get(), 720));
                auto whole = cache.merge(std::move(halves.parent), std::move(halves.child));
                ASSERT_TRUE(whole->is_lazy());
                ASSERT_TRUE(cache.restore(whole.get(), 718));
                cache.materialize();
              }),
              0U)
        << cache.kind();
  }
}

TEST(SnapshotCost, ADecodeStepAllocatesNothingThatGrowsWithTheContext) {
  for (const KVOptions& options : kinds()) {
    std::vector<std::size_t> growth;
    for (const int n_tokens : {1000, 16000}) {
      KVCache cache(options);
      feed_wide(cache, n_tokens);
      feed_wide(cache, 1);  // a ring goes back to its steady size
      cache.materialize();
      const auto snapshot = cache.snapshot(0);  // lazy, and in the way of a ring's next write alone
      if (options.window || options.chunk) snapshot->materialize();
      std::size_t most = 0;
      for (int step = 0; step < 4; ++step) {
        const mx::array keys = mx::ones({1, 2, 1, 32});
        mx::eval(keys);
        most = std::max(most, memoir::test::held_allocation_bytes([&] {
                          const History history = cache.update(keys, keys);
                          return std::vector{history.keys.data, history.values.data};
                        }));
      }
      growth.push_back(most);
    }
    EXPECT_EQ(growth[0], growth[1]) << KVCache(options).kind();
    EXPECT_LT(growth[1], 20000U) << KVCache(options).kind();
  }
}

TEST(SnapshotCost, BecomingRealTakesItsRowsAndLeavesTheBufferInPlace) {
  KVCache cache;
  feed_wide(cache, 16000);
  cache.materialize();
  const auto snapshot = cache.snapshot(15000);
  ASSERT_TRUE(cache.restore(nullptr, 15500));
  constexpr std::size_t kWideRow = 2 * 2 * 32 * sizeof(float);
  const std::size_t growth = peak_growth([&] {
    feed_wide(cache, 1);
    cache.materialize();
  });
  EXPECT_EQ(snapshot->size_bytes(), 1000 * kWideRow);
  EXPECT_LT(growth, 1100 * kWideRow);  // not the 16000 rows
}

TEST(SnapshotCost, RestoringIntoACacheThatHasTheRoomAllocatesNothing) {
  for (const KVOptions& options : kinds()) {
    KVCache cache(options);
    feed_wide(cache, 700);
    for (int i = 0; i < 20; ++i) feed_wide(cache, 1);
    const auto snapshot = cache.snapshot(600);
    snapshot->materialize();
    cache.materialize();
    const std::size_t growth = peak_growth([&] {
      ASSERT_TRUE(cache.restore(snapshot.get(), 720));
      cache.materialize();
    });
    EXPECT_EQ(growth, 0U) << cache.kind();
  }
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
