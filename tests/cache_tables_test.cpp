// Cases of mlx-lm's and ollama's tests of attention caches that need more than one verb, or attention beside them: the
// rest is in kv_test, cache_rotating_test, cache_snapshot_test, cache_quantized_test, mask_test and layout_test.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "memoir/cache/kv.h"
#include "memoir/kernels/attention.h"
#include "tests/cache_rows.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using test::contents;
using test::feed;
using test::range;

mx::array random_rows(int n_sequences, int n_heads, int n, int dim, unsigned seed) {
  return mx::random::normal({n_sequences, n_heads, n, dim}, mx::float32, mx::random::key(seed));
}

mx::array part(const mx::array& rows, int begin, int end) {
  return mx::slice(rows, mx::Shape{0, 0, begin, 0}, mx::Shape{rows.shape(0), rows.shape(1), end, rows.shape(3)});
}

mx::array merged_heads(const mx::array& y) {
  return mx::reshape(mx::transpose(y, {0, 2, 1, 3}), {y.shape(0), y.shape(2), -1});
}

bool is_close(const mx::array& a, const mx::array& b, double tolerance) {
  return mx::allclose(a, b, tolerance, tolerance).item<bool>();
}

bool same_bits(const mx::array& a, const mx::array& b) {
  return a.shape() == b.shape() && mx::array_equal(a, b).item<bool>();
}

// ---- mlx-lm

// A cache of this name is a flat one here: what was trimmed does not come back, as it does there (5 rows, trim 3, one
// more: 6).
TEST(ConcatenateKVCache, TrimmedRowsDoNotComeBack) {
  const auto kind = parse_kind("ConcatenateKVCache");
  ASSERT_TRUE(kind);
  KVCache full;
  feed(full, 5);
  const auto cache = make_kv_cache(*kind, full.state(), {});
  EXPECT_EQ(cache->trim(3), 3);
  EXPECT_EQ(contents(feed(*cache, 1)), range(0, 3));
  EXPECT_EQ(cache->offset(), 3);
}

// test_quantized_sdpa_gqa_batched_mask: 2 sequences, 8 query heads over 2, 16 rows of 32. There within 1e-2 of the
// dense ones; here of the same rows dequantized, and more closely.
TEST(QuantizedKVCache, GivesGroupedHeadsWithAMaskOfEachSequence) {
  const mx::array k = random_rows(2, 2, 16, 32, 1);
  const mx::array v = random_rows(2, 2, 16, 32, 2);
  const mx::array q = random_rows(2, 8, 16, 32, 3);
  const mx::array first = mx::array({0, 5}, {2, 1, 1, 1}, mx::int32);  // rows before it are padding
  const mx::array mask =
      mx::broadcast_to(mx::greater_equal(mx::reshape(mx::arange(16), {1, 1, 1, 16}), first), {2, 1, 16, 16});
  KVCache cache({.quantization = KVQuantization{8, 32}});
  const History history = cache.update(k, v);
  const mx::array y = kernels::attention(q, history, {.scale = 0.2F, .mask = mask});
  const mx::array seen = mx::logical_and(mask, mx::tril(mx::ones({16, 16}, mx::bool_)));
  const mx::array expected = merged_heads(
      mx::fast::scaled_dot_product_attention(q, history.key_rows(), history.value_rows(), 0.2F, "array", seen));
  // Queries before the first row of their sequence see nothing.
  const auto real = [](const mx::array& a) { return mx::slice(a, mx::Shape{0, 5, 0}, a.shape()); };
  EXPECT_TRUE(is_close(real(y), real(expected), 1e-4));
}

// mlx-lm raises for sinks over quantized rows. Here they are as over the same rows dequantized.
TEST(QuantizedKVCache, HasAttentionSinks) {
  for (const KVOptions& options : {KVOptions{}, KVOptions{.window = 6}, KVOptions{.window = 6, .keep = 2}}) {
    KVOptions quantized = options;
    quantized.quantization = KVQuantization{8, 32};
    KVCache cache(quantized);
    std::optional<History> history;
    for (int i = 0; i < 30; ++i) {
      history.reset();
      history = cache.update(random_rows(1, 2, 1, 32, 10 + i), random_rows(1, 2, 1, 32, 50 + i));
    }
    const mx::array q = random_rows(1, 4, 1, 32, 3);
    const mx::array sinks = mx::array({0.5F, -1.0F, 2.0F, 0.0F});
    const mx::array y = kernels::attention(
        q, *history, {.scale = 0.2F, .window = options.window, .keep = options.keep, .sinks = sinks});
    const mx::array expected = mx::fast::scaled_dot_product_attention(q, history->key_rows(), history->value_rows(),
                                                                      0.2F, "", std::nullopt, sinks);
    EXPECT_TRUE(is_close(y, merged_heads(expected), 1e-5));
  }
}

// spark2_5_chunked_vs_oneshot_prefill: window 16, 40 rows as 20 and 20 against all at once, and the next one. Bits.
TEST(RotatingKVCache, APrefillInPartsGivesTheBitsOfOneAtOnce) {
  const mx::array k = random_rows(1, 2, 41, 8, 1);
  const mx::array v = random_rows(1, 2, 41, 8, 2);
  const mx::array q = random_rows(1, 4, 41, 8, 3);
  const auto run = [&](const std::vector<int>& ends) {
    KVCache cache({.window = 16});
    std::vector<mx::array> outputs;
    int begin = 0;
    for (const int end : ends) {
      const History history = cache.update(part(k, begin, end), part(v, begin, end));
      outputs.push_back(kernels::attention(part(q, begin, end), history, {.scale = 0.3F, .window = 16}));
      begin = end;
    }
    return mx::concatenate(outputs, 1);
  };
  const mx::array whole = run({40, 41});
  EXPECT_TRUE(same_bits(run({20, 40, 41}), whole));
  EXPECT_TRUE(same_bits(run({1, 7, 39, 40, 41}), whole));
}

// make_prompt_cache(max_kv_size): a ring that keeps 4 for each layer. Here a layer's own window or chunk counts too.
TEST(MakeKVCache, ASizeBoundsLayersOfEveryKind) {
  const auto made = [](std::optional<int> window, std::optional<int> chunk, const CacheOptions& options) {
    return make_kv_cache(window, chunk, options)->options();
  };
  CacheOptions bounded;
  bounded.max_size = 20;
  EXPECT_EQ(made(std::nullopt, std::nullopt, bounded).window, 16);
  EXPECT_EQ(made(std::nullopt, std::nullopt, bounded).keep, 4);
  EXPECT_EQ(made(8, std::nullopt, bounded).window, 8);
  EXPECT_EQ(made(50, std::nullopt, bounded).window, 20);
  EXPECT_EQ(made(50, std::nullopt, bounded).keep, 0);
  EXPECT_EQ(made(std::nullopt, 8, bounded).chunk, 8);
  EXPECT_THROW(made(std::nullopt, 21, bounded), std::invalid_argument);
  bounded.max_size = 4;  // no room for a window behind what is kept
  EXPECT_EQ(made(std::nullopt, std::nullopt, bounded).window, 4);
  EXPECT_EQ(made(std::nullopt, std::nullopt, bounded).keep, 0);
  bounded.max_size = 0;
  EXPECT_THROW(made(std::nullopt, std::nullopt, bounded), std::invalid_argument);
  CacheOptions quantized;
  quantized.quantization = KVQuantization{4, 32};
  EXPECT_EQ(made(std::nullopt, std::nullopt, quantized).dtype, mx::float16);  // of scales
  quantized.quantize_from = 100;
  EXPECT_FALSE(made(std::nullopt, std::nullopt, quantized).quantization);  // dense before
}

// mlx-lm loses it in masks, merges and extracts.
TEST(RotatingKVCache, WhatIsKeptIsKeptThroughEveryConversion) {
  const KVOptions options{.window = 6, .keep = 2};
  KVCache cache(options);
  const auto rows = [](int begin, int end) {
    const mx::array column = mx::reshape(mx::arange(begin, end, mx::float32), {1, 1, end - begin, 1});
    return mx::broadcast_to(column, {1, 2, end - begin, 32});
  };
  cache.update(rows(0, 20), rows(0, 20));
  for (int i = 20; i < 30; ++i) cache.update(rows(i, i + 1), rows(i, i + 1));
  const auto goes_on = [&](KVCache& other) {
    EXPECT_EQ(other.options().keep, 2);
    const History history = other.update(rows(30, 31), rows(30, 31));
    EXPECT_EQ(test::positions_of(history), (std::vector<int>{0, 1, 25, 26, 27, 28, 29, 30}));
    const mx::array expected = mx::concatenate({rows(0, 2), rows(25, 31)}, 2);
    EXPECT_TRUE(is_close(history.key_rows(), expected, 1e-5)) << other.kind();
  };
  const auto copy = cache.copy();
  goes_on(dynamic_cast<KVCache&>(*copy));
  const auto quantized = cache.to_quantized({8, 32});
  goes_on(dynamic_cast<KVCache&>(*quantized));
  const auto loaded = make_kv_cache(CacheKind::kRotating, cache.state(), cache.meta_state());
  goes_on(*loaded);
  const auto restored = [&](std::unique_ptr<Snapshot> snapshot) {
    KVCache fresh(options);
    ASSERT_TRUE(fresh.restore(snapshot.get(), 30));
    goes_on(fresh);
  };
  restored(cache.snapshot(0));
  SnapshotPair halves = cache.split(cache.snapshot(0), 28);
  ASSERT_TRUE(halves.parent && halves.child);
  restored(cache.merge(std::move(halves.parent), std::move(halves.child)));
  restored(cache.split(cache.snapshot(0), 28).child);
}

// ---- ollama

// TestPrefillParity's third mask: causal but for queries 1 to 3 and keys 2 to 4, which see each other; the window wins.
TEST(RotatingKVCache, AMaskThatShowsLaterRowsIsStillWithinTheWindow) {
  const mx::array k = random_rows(1, 2, 6, 8, 1);
  const mx::array v = random_rows(1, 2, 6, 8, 2);
  const mx::array q = random_rows(1, 2, 6, 8, 3);
  std::vector<float> shown;
  std::vector<float> expected_bits;
  for (int query = 0; query < 6; ++query) {
    for (int key = 0; key < 6; ++key) {
      const bool is_relaxed = query >= 1 && query < 4 && key >= 2 && key < 5;
      const bool is_shown = key <= query || is_relaxed;
      shown.push_back(is_shown ? 1 : 0);
      expected_bits.push_back(is_shown && key > query - 4 ? 1 : 0);
    }
  }
  const auto mask = [](const std::vector<float>& bits) {
    return mx::astype(mx::reshape(mx::array(bits.data(), {36}, mx::float32), {1, 1, 6, 6}), mx::bool_);
  };
  KVCache cache({.window = 4});
  const History history = cache.update(k, v);
  const mx::array y =
      kernels::attention(q, history, {.scale = 0.5F, .window = 4, .is_causal = false, .mask = mask(shown)});
  const mx::array expected = mx::fast::scaled_dot_product_attention(q, k, v, 0.5F, "array", mask(expected_bits));
  EXPECT_TRUE(is_close(y, merged_heads(expected), 1e-4));
}

// TestAssistantSharedHistoryL1MasksMatchNoMask: one query over a view, of a flat cache and of a window of 4 after 7.
TEST(SharedHistory, OneQueryNeedsNoMask) {
  for (const KVOptions& options : {KVOptions{}, KVOptions{.window = 4}}) {
    KVCache cache(options);
    for (int i = 0; i < 7; ++i) cache.update(random_rows(1, 2, 1, 8, 10 + i), random_rows(1, 2, 1, 8, 20 + i));
    const History history = *cache.view();
    const mx::array q = random_rows(1, 2, 1, 8, 3);
    const auto run = [&](bool is_causal, const std::optional<mx::array>& mask) {
      return kernels::attention(q, history,
                                {.scale = 0.5F, .window = options.window, .is_causal = is_causal, .mask = mask});
    };
    const mx::array all = mx::ones({1, 1, 1, history.n_rows()}, mx::bool_);
    EXPECT_TRUE(same_bits(run(true, std::nullopt), run(false, std::nullopt)));
    EXPECT_TRUE(same_bits(run(true, std::nullopt), run(true, all)));
  }
}

// TestScheduledSnapshotParity: window 4, 5 rows, a draft of 4: the same attention whether snapshots were taken or not.
TEST(RotatingKVCache, SnapshotsInAWriteChangeNoAttention) {
  const mx::array k = random_rows(1, 2, 9, 8, 1);
  const mx::array v = random_rows(1, 2, 9, 8, 2);
  const mx::array q = random_rows(1, 2, 4, 8, 3);
  const auto run = [&](bool takes) {
    KVCache cache({.window = 4});
    cache.update(part(k, 0, 5), part(v, 0, 5));
    std::vector<std::unique_ptr<Snapshot>> snapshots;
    if (takes) snapshots.push_back(cache.snapshot(0));
    const History history = cache.update(part(k, 5, 9), part(v, 5, 9));
    for (int at = 6; takes && at <= 9; ++at) {
      snapshots.push_back(cache.snapshot_at(at));
      EXPECT_TRUE(snapshots.back());
    }
    return kernels::attention(q, history, {.scale = 0.5F, .window = 4});
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

// TestKVCachePerTokenSnapshotRestore: 6 rows, a draft of 4, of which 0 to 4 are accepted.
TEST(KVCache, TakesBackRejectedDrafts) {
  for (int n_accepted = 0; n_accepted <= 4; ++n_accepted) {
    KVCache cache;
    feed(cache, 6);
    feed(cache, 4);
    const auto rejected = cache.snapshot(6 + n_accepted);  // of no rows where all are accepted
    EXPECT_EQ(rejected == nullptr, n_accepted == 4);
    ASSERT_TRUE(cache.restore(nullptr, 6 + n_accepted));
    EXPECT_EQ(contents(cache.view()), range(0, 6 + n_accepted));
  }
}

// TestKVCaptureMergeSplit and TestPerTokenSnapshotPersistsAcrossWrites.
TEST(KVCache, SnapshotsOfSingleRowsJoinAndPart) {
  KVCache cache;
  feed(cache, 6);
  feed(cache, 3);
  SnapshotPair last = cache.split(cache.snapshot(6), 8);
  SnapshotPair pair = cache.split(std::move(last.parent), 7);
  const auto spans = [](const Snapshot& snapshot) { return std::pair(snapshot.from(), snapshot.to()); };
  EXPECT_EQ(spans(*pair.parent), std::pair(6, 7));
  EXPECT_EQ(spans(*pair.child), std::pair(7, 8));
  auto merged = cache.merge(std::move(pair.parent), std::move(pair.child));
  EXPECT_EQ(spans(*merged), std::pair(6, 8));
  const SnapshotPair again = cache.split(std::move(merged), 7);
  EXPECT_EQ(spans(*again.parent), std::pair(6, 7));
  EXPECT_EQ(spans(*again.child), std::pair(7, 8));
  feed(cache, 2);
  ASSERT_TRUE(cache.restore(again.parent.get(), 7));
  EXPECT_EQ(contents(cache.view()), range(0, 7));
}

// TestRotatingSnapshotSurvivesLaterChunk: window 6, two writes of 8, of which one is restored in its middle (4) in the
// cache itself, the other (12) in a fresh one.
TEST(RotatingKVCache, SnapshotsInsideWritesOutliveLaterOnes) {
  KVCache cache({.window = 6});
  feed(cache, 8);
  const auto four = cache.snapshot_at(4);
  feed(cache, 8);
  const auto twelve = cache.snapshot_at(12);
  ASSERT_TRUE(four && twelve);
  KVCache fresh({.window = 6});
  ASSERT_TRUE(fresh.restore(twelve.get(), 12));
  EXPECT_EQ(contents(fresh.view()), range(6, 12));
  ASSERT_TRUE(cache.restore(four.get(), 4));
  EXPECT_EQ(contents(cache.view()), range(0, 4));
  EXPECT_EQ(contents(feed(cache, 1, 100)).back(), 100);
}

// TestRotatingSnapshotSingleTokenWrite: a snapshot behind one row, and back to it.
TEST(RotatingKVCache, ASnapshotBehindASingleRowIsThatWindow) {
  for (const auto& [window, before] : std::vector<std::pair<int, int>>{{32, 5}, {4, 10}}) {
    KVCache cache({.window = window});
    for (int i = 0; i < before; ++i) feed(cache, 1);
    feed(cache, 1);
    const auto snapshot = cache.snapshot_at(before + 1);
    for (int i = 0; i < 30; ++i) feed(cache, 1, 1000);
    ASSERT_TRUE(cache.restore(snapshot.get(), before + 1));
    EXPECT_EQ(contents(cache.view()), range(std::max(0, before + 1 - window), before + 1));
  }
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
