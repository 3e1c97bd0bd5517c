// Rings and chunks: what is read, taken back and restored. The numbers come from the tests of two other runners, named
// beside each; there the order of rows is that of the buffer, here that of positions.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <limits>

#include "tests/cache_rows.h"

namespace memoir::cache {
namespace {

using namespace test;

KVOptions ring(int window, int keep = 0) {
  return {.window = window, .keep = keep};
}

std::vector<int> last_fed(KVCache& cache, std::initializer_list<int> writes) {
  std::vector<int> result;
  for (const int n_tokens : writes) result = contents(feed(cache, n_tokens));
  return result;
}

// ollama's rotating_multiturn_test (there token ids begin with 1, here positions with 0).
TEST(RotatingKVCache, ReadsTheWindowOfTheFirstQueryInEveryTurn) {
  {
    KVCache cache(ring(4));
    EXPECT_EQ(last_fed(cache, {3, 1, 1, 1, 1, 1, 1}), range(5, 9));
    EXPECT_EQ(contents(feed(cache, 2)), range(6, 11));  // in the middle of a turn
    EXPECT_EQ(cache.offset(), 11);
  }
  {
    KVCache cache(ring(4));
    EXPECT_EQ(last_fed(cache, {6, 3}), range(3, 9));
    EXPECT_EQ(contents(feed(cache, 1)), range(6, 10));
  }
  {
    KVCache cache(ring(512));
    EXPECT_EQ(last_fed(cache, {3, 1, 3}), range(0, 7));  // padding never shows
  }
  {
    KVCache cache(ring(4));
    EXPECT_EQ(last_fed(cache, {2, 2}), range(0, 4));
  }
  {
    KVCache cache(ring(4));
    EXPECT_EQ(last_fed(cache, {8, 8}), range(5, 16));
    EXPECT_EQ(contents(feed(cache, 4)), range(13, 20));
    EXPECT_EQ(contents(feed(cache, 1)), range(17, 21));
  }
  {
    KVCache cache(ring(4));
    EXPECT_EQ(last_fed(cache, {2, 1, 1, 1, 1, 1, 3}), range(4, 10));
    EXPECT_EQ(last_fed(cache, {1, 1, 1, 1, 2}), range(11, 16));
  }
  {
    KVCache cache(ring(4));
    std::vector<int> offsets;
    for (const int n_tokens : {3, 1, 1, 1, 1, 1, 2, 7}) {
      feed(cache, n_tokens);
      offsets.push_back(cache.offset());
    }
    EXPECT_EQ(offsets, (std::vector<int>{3, 4, 5, 6, 7, 8, 10, 17}));
  }
}

TEST(RotatingKVCache, WritesAfterARewindReplaceWhatWasThere) {
  KVCache cache(ring(8));
  feed(cache, 8);
  ASSERT_TRUE(cache.restore(nullptr, 2));
  EXPECT_EQ(contents(feed(cache, 3, 100)), (std::vector<int>{0, 1, 100, 101, 102}));
  EXPECT_EQ(cache.offset(), 5);
}

// mlx-lm's test_rotating_kv_cache and test_rotating_kv_cache_chat_mode.
TEST(RotatingKVCache, ReturnsTheNewRowsLast) {
  KVCache cache(ring(8));
  EXPECT_EQ(last_fed(cache, {2, 5, 4}), range(0, 11));  // the first of the 4 queries sees 7 rows before it
  for (int i = 11; i < 21; ++i) EXPECT_EQ(contents(feed(cache, 1)), range(i - 7, i + 1));

  KVCache chat(ring(18));
  std::vector<std::size_t> n_rows;
  for (const int n_tokens : {8, 1, 2, 3}) n_rows.push_back(contents(feed(chat, n_tokens)).size());
  EXPECT_EQ(n_rows, (std::vector<std::size_t>{8, 9, 11, 14}));
  EXPECT_EQ(contents(feed(chat, 6)), range(0, 20));
  EXPECT_EQ(chat.offset(), 20);
  EXPECT_EQ(contents(feed(chat, 2)), range(3, 22));
  EXPECT_EQ(chat.offset(), 22);
}

// The same test with keep 2 and 8 rows in all: a window of 6 behind 2 kept rows.
TEST(RotatingKVCache, KeepsTheFirstRows) {
  KVCache cache(ring(6, 2));
  EXPECT_EQ(contents(feed(cache, 20)), range(0, 20));
  for (int i = 20; i < 60; ++i) {
    std::vector<int> expected = {0, 1};
    for (const int p : range(i - 5, i + 1)) expected.push_back(p);
    EXPECT_EQ(contents(feed(cache, 1)), expected);
  }
  EXPECT_EQ(cache.capacity(), 6 + 2 + 16);
}

// mlx-lm's test_rotating_cache_updates: 10, three single ones, 3: ten rows.
TEST(RotatingKVCache, ReturnsWindowLessOneAndTheNewRows) {
  KVCache cache(ring(8));
  EXPECT_EQ(last_fed(cache, {10, 1, 1, 1, 3}).size(), 10U);
}

// ollama's cache_test.
TEST(RotatingKVCache, RefusesARewindThatWouldLeaveAnIncompleteWindow) {
  KVCache cache(ring(4));
  feed(cache, 30);
  for (int i = 0; i < 30; ++i) feed(cache, 1);
  EXPECT_FALSE(cache.restore(nullptr, 3));
  EXPECT_FALSE(cache.restore(nullptr, 60 - 18));
  EXPECT_EQ(cache.offset(), 60);
  EXPECT_EQ(contents(cache.view()), range(56, 60));
  EXPECT_TRUE(cache.restore(nullptr, 60 - 16));
  EXPECT_EQ(contents(cache.view()), range(40, 44));
}

TEST(RotatingKVCache, ASnapshotBringsTheWindowBack) {
  for (const int n_after : {3, 5, 100}) {
    KVCache cache(ring(4));
    for (int i = 0; i < 50; ++i) feed(cache, 1);
    const auto snapshot = cache.snapshot(0);
    for (int i = 0; i < n_after; ++i) feed(cache, 1, 1000);
    ASSERT_TRUE(cache.restore(snapshot.get(), 50));
    EXPECT_EQ(cache.offset(), 50);
    EXPECT_EQ(contents(cache.view()), range(46, 50));
    EXPECT_EQ(contents(feed(cache, 1)), range(47, 51));
  }
}

// ollama's TestRotatingPerTokenSnapshotRestore: drafts of 4 behind `before` rows, of which 0 to 4 are accepted.
TEST(RotatingKVCache, TakesBackRejectedDraftsInEveryTurn) {
  for (const auto& [window, before] : std::vector<std::pair<int, int>>{{32, 4}, {8, 4}, {4, 10}, {4, 100}, {4, 103}}) {
    for (int n_accepted = 0; n_accepted <= 4; ++n_accepted) {
      for (const bool uses_snapshot : {false, true}) {
        KVCache cache(ring(window));
        for (int i = 0; i < before; ++i) feed(cache, 1);
        feed(cache, 4);
        const auto snapshot = uses_snapshot ? cache.snapshot(before) : nullptr;
        const int n_bytes = static_cast<int>(cache.size_bytes());
        ASSERT_TRUE(cache.restore(snapshot.get(), before + n_accepted));
        EXPECT_EQ(static_cast<int>(cache.size_bytes()), n_bytes);
        const int offset = before + n_accepted;
        EXPECT_EQ(contents(cache.view()), range(std::max(0, offset - window), offset));
        EXPECT_EQ(contents(feed(cache, 1)), range(std::max(0, offset + 1 - window), offset + 1));
        if (snapshot) {
          KVCache other(ring(window));
          ASSERT_TRUE(other.restore(snapshot.get(), before + 4));
          EXPECT_EQ(contents(feed(other, 1)), range(std::max(0, before + 5 - window), before + 5));
        }
      }
    }
  }
}

// A ring's snapshot is a state at its end: the child takes the parent's place.
TEST(RotatingKVCache, MergeKeepsTheChildsRows) {
  KVCache cache(ring(4));
  feed(cache, 40);
  auto parent = cache.snapshot(10);
  for (int i = 0; i < 30; ++i) feed(cache, 1);
  auto child = cache.snapshot(40);
  child->materialize();
  const std::size_t n_bytes = child->size_bytes();
  const auto whole = cache.merge(std::move(parent), std::move(child));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->from(), 10);
  EXPECT_EQ(whole->to(), 70);
  EXPECT_EQ(whole->size_bytes(), n_bytes);
  EXPECT_THROW(cache.merge(cache.snapshot(0), cache.snapshot(60)), std::invalid_argument);
}

TEST(RotatingKVCache, SplitGivesAParentWhereItsWindowIsThere) {
  KVCache cache(ring(4));
  for (int i = 0; i < 100; ++i) feed(cache, 1);
  SnapshotPair far = cache.split(cache.snapshot(0), 50);
  EXPECT_EQ(far.parent, nullptr);
  ASSERT_TRUE(far.child);
  EXPECT_EQ(far.child->from(), 0);
  for (const bool is_lazy : {true, false}) {
    auto snapshot = cache.snapshot(0);
    if (!is_lazy) snapshot->materialize();
    const SnapshotPair near = cache.split(std::move(snapshot), 90);
    ASSERT_TRUE(near.parent && near.child);
    KVCache fresh(ring(4));
    ASSERT_TRUE(fresh.restore(near.parent.get(), 90));
    EXPECT_EQ(contents(fresh.view()), range(86, 90));
    ASSERT_TRUE(fresh.restore(near.child.get(), 100));
    EXPECT_EQ(contents(fresh.view()), range(96, 100));
  }
}

TEST(RotatingKVCache, ASnapshotHoldsItsWindowAndTheSlackAndNoMore) {
  KVCache cache(ring(100, 3));
  for (int i = 0; i < 500; ++i) feed(cache, 1);
  auto snapshot = cache.snapshot(0);
  EXPECT_EQ(snapshot->size_bytes(), 0U);
  snapshot->materialize();
  EXPECT_EQ(snapshot->size_bytes(), (99U + 16U + 3U) * 2 * kHeads * kWidth * sizeof(float));
  KVCache fresh(ring(100, 3));
  EXPECT_FALSE(fresh.restore(snapshot.get(), 483));
  ASSERT_TRUE(fresh.restore(snapshot.get(), 484));
  EXPECT_EQ(contents(feed(fresh, 1)).size(), 103U);
}

// mlx-lm's test_trim_cache has Rotating(6) refuse once it has turned; the slack rows make 16 possible.
TEST(RotatingKVCache, TrimsUpToTheSlackHoweverOftenItHasTurned) {
  KVCache cache(ring(6));
  feed(cache, 5);
  EXPECT_TRUE(cache.is_trimmable());
  EXPECT_EQ(cache.trim(4), 4);
  for (int i = 0; i < 100; ++i) feed(cache, 1);
  EXPECT_TRUE(cache.is_trimmable());
  EXPECT_EQ(cache.trim(20), 0);
  EXPECT_EQ(cache.offset(), 101);
  EXPECT_EQ(cache.trim(16), 16);
  EXPECT_FALSE(cache.is_trimmable());
  EXPECT_EQ(cache.trim(4), 0);
  EXPECT_EQ(contents(cache.view()), range(79, 85));
}

TEST(RotatingKVCache, RefusesSnapshotsOfOtherWindowsAndKinds) {
  KVCache cache(ring(4));
  feed(cache, 3);
  for (const KVOptions& options : std::vector<KVOptions>{{}, ring(5), ring(4, 1), {.chunk = 4}}) {
    KVCache other(options);
    feed(other, 3);
    const auto snapshot = other.snapshot(0);
    EXPECT_THROW(cache.restore(snapshot.get(), 3), std::invalid_argument);
    EXPECT_THROW(cache.split(other.snapshot(0), 2), std::invalid_argument);
    EXPECT_THROW(cache.merge(cache.snapshot(0), other.snapshot(0)), std::invalid_argument);
  }
  EXPECT_EQ(contents(cache.view()), range(0, 3));
}

TEST(RotatingKVCache, NamesItsKindAndRefusesOptionsOutOfRange) {
  EXPECT_EQ(KVCache(ring(4)).kind(), "RotatingKVCache");
  EXPECT_EQ(KVCache({.chunk = 4}).kind(), "ChunkedKVCache");
  EXPECT_THROW(KVCache(ring(0)), std::invalid_argument);
  EXPECT_THROW(KVCache(ring(4, -1)), std::invalid_argument);
  EXPECT_THROW(KVCache({.chunk = 0}), std::invalid_argument);
  EXPECT_THROW(KVCache({.window = 4, .chunk = 4}), std::invalid_argument);
  EXPECT_THROW(KVCache({.keep = 2}), std::invalid_argument);
  EXPECT_THROW(KVCache({.dtype = mx::int32}), std::invalid_argument);
  EXPECT_THROW(KVCache({.quantization = KVQuantization{7, 64}}), std::invalid_argument);
  EXPECT_THROW(KVCache({.quantization = KVQuantization{4, 48}}), std::invalid_argument);
}

TEST(ChunkedKVCache, ReadsFromTheStartOfTheFirstQuerysChunk) {
  KVCache cache({.chunk = 4});
  EXPECT_EQ(last_fed(cache, {3}), range(0, 3));
  EXPECT_EQ(contents(feed(cache, 1)), range(0, 4));
  EXPECT_EQ(contents(feed(cache, 1)), range(4, 5));
  EXPECT_EQ(contents(feed(cache, 7)), range(4, 12));
  for (int i = 12; i < 60; ++i) EXPECT_EQ(contents(feed(cache, 1)), range(i / 4 * 4, i + 1));
  EXPECT_EQ(cache.capacity(), 4 + 16);
  EXPECT_TRUE(cache.restore(nullptr, 44));
  EXPECT_EQ(contents(feed(cache, 1)), range(44, 45));
}

TEST(ChunkedKVCache, RefusesARewindIntoAChunkThatIsGone) {
  KVCache cache({.chunk = 8});
  for (int i = 0; i < 100; ++i) feed(cache, 1);
  EXPECT_FALSE(cache.can_rewind(50));
  EXPECT_FALSE(cache.can_rewind(74));  // its chunk begins at 72
  EXPECT_TRUE(cache.can_rewind(84));
  EXPECT_TRUE(cache.can_rewind(0));
}

// ---- Attention over a turned ring, against MLX's own over the window by position (ollama's rotating_attention_test)

mx::array random_rows(int n_heads, int n, int dim, unsigned seed) {
  return mx::random::normal({1, n_heads, n, dim}, mx::float32, mx::random::key(seed));
}

mx::array last_rows(const mx::array& rows, int n) {
  const int end = rows.shape(2);
  return mx::slice(rows, mx::Shape{0, 0, end - n, 0}, rows.shape());
}

mx::array merged_heads(const mx::array& y) {
  return mx::reshape(mx::transpose(y, {0, 2, 1, 3}), {1, y.shape(2), -1});
}

TEST(RotatingKVCache, OneQueryAttendsToTheWindowUnderEveryMask) {
  const mx::array k = random_rows(2, 7, 8, 1);
  const mx::array v = random_rows(2, 7, 8, 2);
  const mx::array q = random_rows(2, 1, 8, 3);
  KVCache cache(ring(4));
  std::optional<History> history;
  for (int i = 0; i < 7; ++i) {
    history.reset();
    history = cache.update(mx::slice(k, mx::Shape{0, 0, i, 0}, mx::Shape{1, 2, i + 1, 8}),
                           mx::slice(v, mx::Shape{0, 0, i, 0}, mx::Shape{1, 2, i + 1, 8}));
  }
  const mx::array added = mx::reshape(mx::array({0.1F, -0.3F, 0.7F, -0.2F}), {1, 1, 1, 4});
  for (const bool has_mask : {false, true}) {
    const auto mask = has_mask ? std::optional<mx::array>(added) : std::nullopt;
    const mx::array y = kernels::attention(q, *history, {.scale = 0.5F, .window = 4, .mask = mask});
    const mx::array expected = mx::fast::scaled_dot_product_attention(q, last_rows(k, 4), last_rows(v, 4), 0.5F,
                                                                      has_mask ? "array" : "", mask);
    EXPECT_TRUE(mx::allclose(y, merged_heads(expected), 1e-5, 1e-5).item<bool>());
  }
  // A reader of the same rows through view().
  const mx::array y = kernels::attention(q, *cache.view(), {.scale = 0.5F, .window = 4});
  const mx::array expected =
      mx::fast::scaled_dot_product_attention(q, last_rows(k, 4), last_rows(v, 4), 0.5F, "", std::nullopt);
  EXPECT_TRUE(mx::allclose(y, merged_heads(expected), 1e-5, 1e-5).item<bool>());
}

TEST(RotatingKVCache, ManyQueriesAttendWithinTheWindow) {
  const mx::array k = random_rows(2, 6, 8, 1);
  const mx::array v = random_rows(2, 6, 8, 2);
  const mx::array q = random_rows(2, 6, 8, 3);
  KVCache cache(ring(4));
  const mx::array y = kernels::attention(q, cache.update(k, v), {.scale = 0.5F, .window = 4});
  const Mask mask = KVCache(ring(4)).make_mask(6, std::nullopt, true);
  const mx::array expected = mx::fast::scaled_dot_product_attention(q, k, v, 0.5F, "array", *mask.array);
  EXPECT_TRUE(mx::allclose(y, merged_heads(expected), 1e-4, 1e-4).item<bool>());
}

TEST(RotatingKVCache, KeepsKeysWhoseValuesAreTakenFromThem) {
  KVCache cache(ring(8));
  const mx::array k = random_rows(1, 3, 6, 1);
  const History history = cache.update(k, mx::zeros({1, 1, 3, 0}));
  EXPECT_EQ(history.values.data.shape(3), 0);
  EXPECT_TRUE(mx::array_equal(history.key_rows(), k).item<bool>());
  EXPECT_EQ(cache.size_bytes(), 24U * 6 * sizeof(float));
  // MLA: values are the first 4 elements of the keys.
  const History shared{history.keys, {mx::slice(history.keys.data, {0, 0, 0, 0}, {1, 1, 24, 4})}, history.ranges};
  const mx::array q = random_rows(1, 3, 6, 3);
  const mx::array expected = mx::fast::scaled_dot_product_attention(
      q, k, mx::slice(k, mx::Shape{0, 0, 0, 0}, mx::Shape{1, 1, 3, 4}), 0.5F, "causal", std::nullopt);
  EXPECT_TRUE(
      mx::allclose(kernels::attention(q, shared, {.scale = 0.5F, .window = 8}), merged_heads(expected), 1e-5, 1e-5)
          .item<bool>());
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
