// Quantized kinds, the state that files hold, and caches of whole models. Numbers are those of mlx-lm's
// test_prompt_cache and test_models, named beside each.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>

#include "tests/cache_rows.h"

namespace memoir::cache {
namespace {

using namespace test;

mx::array random_rows(int n, int dim, unsigned seed, int heads = 8) {
  return mx::random::normal({1, heads, n, dim}, mx::float32, mx::random::key(seed));
}

bool same(const mx::array& a, const mx::array& b) {
  return mx::array_equal(a, b).item<bool>();
}

void expect_same_state(const LayerCache& a, const LayerCache& b) {
  const auto x = a.state();
  const auto y = b.state();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(same(x[i], y[i])) << i;
  EXPECT_EQ(a.meta_state(), b.meta_state());
  EXPECT_EQ(a.offset(), b.offset());
  EXPECT_EQ(a.kind(), b.kind());
}

// test_trim_cache: (1,8,10,64), trim 7 gives 7, then 4 gives 3.
TEST(QuantizedKVCache, TrimsLikeADenseOne) {
  KVCache cache({.quantization = KVQuantization{8, 64}});
  cache.update(random_rows(10, 64, 1), random_rows(10, 64, 2));
  EXPECT_TRUE(cache.is_trimmable());
  EXPECT_EQ(cache.trim(7), 7);
  EXPECT_EQ(cache.trim(4), 3);
}

// At the border of a chunk there may be an offset and no rows.
TEST(QuantizedChunkedKVCache, KeepsTheOffsetOfADenseOneWithoutRows) {
  KVCache dense({.chunk = 32});
  dense.set_state({}, {"32", "96"});
  EXPECT_EQ(dense.to_quantized({8, 32})->offset(), 96);
}

// mlx-lm's first update fails for 3, 5 and 6 bits at these widths; ours takes each of them from empty.
TEST(QuantizedKVCache, TakesEveryNumberOfBitsFromEmpty) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      for (const int dim : {128, 256}) {
        KVCache cache({.quantization = KVQuantization{bits, group_size}});
        const mx::array k = random_rows(3, dim, 1, 2);
        const History history = cache.update(k, k);
        EXPECT_EQ(history.keys.data.shape(3), dim * bits / 32);
        const auto parts = mx::quantize(k, group_size, bits);
        EXPECT_TRUE(same(history.key_rows(), mx::dequantize(parts[0], parts[1], parts[2], group_size, bits)));
      }
    }
  }
}

TEST(QuantizedKVCache, HoldsCodesAndScalesAndNoMore) {
  KVCache f32_scales({.quantization = KVQuantization{4, 32}});
  f32_scales.update(random_rows(1, 64, 1), random_rows(1, 64, 2));
  EXPECT_EQ(f32_scales.size_bytes(), 2U * 8 * 256 * (64 / 2 + 2 * 2 * 4));
  KVCache f16_scales({.dtype = mx::float16, .quantization = KVQuantization{4, 32}});
  const History history = f16_scales.update(random_rows(1, 64, 1), random_rows(1, 64, 2));
  EXPECT_EQ(history.keys.dtype(), mx::float16);
  EXPECT_EQ(f16_scales.size_bytes(), 2U * 8 * 256 * (64 / 2 + 2 * 2 * 2));
}

TEST(QuantizedKVCache, NamesTheGroupSizeThatAWidthMustFit) {
  KVCache cache({.quantization = KVQuantization{8, 64}});
  try {
    cache.update(random_rows(1, 80, 1), random_rows(1, 64, 1));
    FAIL() << "no throw";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "[cache.update] keys has shape (1,8,1,80) float32, expected rows of a multiple of 64, the group size");
  }
  EXPECT_TRUE(cache.is_empty());
  EXPECT_EQ(cache.size_bytes(), 0U);
  KVCache dense;
  dense.update(random_rows(2, 80, 1), random_rows(2, 64, 1));
  EXPECT_THROW(dense.to_quantized({8, 64}), std::invalid_argument);
  EXPECT_THROW(dense.to_quantized({7, 64}), std::invalid_argument);
}

TEST(QuantizedKVCache, TakesNoSnapshotInAnotherFormatNotEvenWhenEmpty) {
  KVCache cache({.quantization = KVQuantization{8, 64}});
  cache.update(random_rows(3, 64, 1), random_rows(3, 64, 2));
  const auto snapshot = cache.snapshot(0);
  KVCache same_format({.quantization = KVQuantization{8, 64}});
  EXPECT_TRUE(same_format.restore(snapshot.get(), 3));
  const std::vector<KVOptions> others = {{},
                                         {.quantization = KVQuantization{4, 64}},
                                         {.quantization = KVQuantization{8, 32}},
                                         {.dtype = mx::float16, .quantization = KVQuantization{8, 64}}};
  for (const KVOptions& options : others) {
    KVCache other(options);
    EXPECT_THROW(other.restore(snapshot.get(), 3), std::invalid_argument);
    EXPECT_TRUE(other.is_empty());
  }
}

// test_quantized_sdpa: 256 rows and one, 8 bits in groups of 32, within 1e-2.
TEST(QuantizedKVCache, GivesAttentionCloseToTheDenseOne) {
  KVCache dense;
  KVCache quantized({.quantization = KVQuantization{8, 32}});
  for (const int n_tokens : {256, 1}) {
    const mx::array k = random_rows(n_tokens, 64, 1, 2);
    const mx::array v = random_rows(n_tokens, 64, 2, 2);
    dense.update(k, v);
    quantized.update(k, v);
  }
  const mx::array q = random_rows(1, 64, 3, 4);
  const kernels::AttentionOptions options{.scale = 0.125F};
  EXPECT_TRUE(mx::allclose(kernels::attention(q, *dense.view(), options),
                           kernels::attention(q, *quantized.view(), options), 1e-2, 1e-2)
                  .item<bool>());
}

TEST(DenseKVCache, KeepsRowsInTheTypeOfItsOptions) {
  KVCache cache({.dtype = mx::float16});
  const mx::array k = random_rows(3, 8, 1, 2);
  const History history = cache.update(k, k);
  EXPECT_EQ(history.keys.data.dtype(), mx::float16);
  EXPECT_TRUE(same(history.key_rows(), mx::astype(k, mx::float16)));
  cache.update(mx::astype(k, mx::bfloat16), k);  // whatever the model computes in
  EXPECT_EQ(cache.offset(), 6);
  EXPECT_THROW(cache.update(mx::astype(k, mx::int32), k), std::invalid_argument);
}

// test_cache_copying: 10 rows and y, a copy, trim 1 of the original, write z.
TEST(KVCacheCopy, IsIndependent) {
  KVCache cache;
  feed(cache, 10);
  feed(cache, 1, 50);
  const auto copy = cache.copy();
  EXPECT_EQ(cache.trim(1), 1);
  feed(cache, 1, 60);
  EXPECT_EQ(contents(cache.view()).back(), 60);
  EXPECT_EQ(contents(dynamic_cast<KVCache&>(*copy).view()).back(), 50);
  EXPECT_EQ(copy->kind(), cache.kind());
}

// ---- State

TEST(KVCacheState, BringsEveryKindBack) {
  const KVQuantization q4{4, 32};
  const std::vector<KVOptions> kinds = {{},
                                        {.window = 8, .keep = 2},
                                        {.chunk = 6},
                                        {.quantization = q4},
                                        {.window = 8, .keep = 2, .quantization = q4},
                                        {.chunk = 6, .quantization = q4}};
  for (const KVOptions& options : kinds) {
    for (const int n_singles : {0, 1, 2, 9, 60}) {
      KVCache cache(options);
      SCOPED_TRACE(std::string(cache.kind()) + ", 10 + " + std::to_string(n_singles));
      cache.update(random_rows(10, 32, 1, 2), random_rows(10, 64, 2, 2));
      for (int i = 0; i < n_singles; ++i) cache.update(random_rows(1, 32, 3, 2), random_rows(1, 64, 4, 2));
      const auto kind = parse_kind(cache.kind());
      ASSERT_TRUE(kind);
      const auto loaded = make_kv_cache(*kind, cache.state(), cache.meta_state());
      expect_same_state(cache, *loaded);
      // test_save_load_rotating_cache: the next update is equal on both.
      const mx::array k = random_rows(1, 32, 5, 2);
      const mx::array v = random_rows(1, 64, 6, 2);
      const History a = cache.update(k, v);
      const History b = loaded->update(k, v);
      EXPECT_TRUE(same(a.key_rows(), b.key_rows()));
      EXPECT_TRUE(same(a.value_rows(), b.value_rows()));
      EXPECT_EQ(positions_of(a), positions_of(b));
    }
    const KVCache empty(options);
    const auto loaded = make_kv_cache(*parse_kind(empty.kind()), empty.state(), empty.meta_state());
    expect_same_state(empty, *loaded);
    EXPECT_TRUE(loaded->is_empty());
  }
}

// What a state has none of can't be taken back, which is said before.
TEST(KVCacheState, OfARingIsTrimmableAsFarAsItsRowsReach) {
  KVCache ring({.window = 7});
  feed(ring, 10);
  EXPECT_TRUE(ring.is_trimmable());
  const auto loaded = make_kv_cache(CacheKind::kRotating, ring.state(), ring.meta_state());
  EXPECT_EQ(loaded->offset(), 10);
  EXPECT_FALSE(loaded->is_trimmable());
  EXPECT_EQ(loaded->trim(4), 0);
  EXPECT_EQ(loaded->offset(), 10);
}

TEST(KVCacheState, FlatRowsAreKeptAsTheyCame) {
  const mx::array k = random_rows(5, 32, 1, 2);
  const mx::array v = random_rows(5, 32, 2, 2);
  mx::eval(k, v);
  const mx::array k_before = mx::add(k, mx::array(0.0F));
  mx::eval(k_before);
  const auto cache = make_kv_cache(CacheKind::kKV, {k, v}, {});
  EXPECT_EQ(cache->size_bytes(), k.nbytes() + v.nbytes());
  mx::array held = cache->state()[0];
  mx::eval(held);
  EXPECT_EQ(held.data<float>(), k.data<float>());
  // What is written over them later is not the giver's.
  EXPECT_EQ(cache->trim(3), 3);
  const mx::array one = random_rows(1, 32, 3, 2);
  const History history = cache->update(one, one);
  EXPECT_TRUE(same(history.key_rows(), mx::concatenate({mx::slice(k, {0, 0, 0, 0}, {1, k.shape(1), 2, 32}), one}, 2)));
  EXPECT_TRUE(same(k, k_before));
}

// The numbers of mlx-lm 0.31.3: Rotating keep, max_size, offset, _idx; Chunked chunk_size, start_position; Quantized
// offset, group_size, bits.
TEST(KVCacheState, HasTheNumbersOfMlxLm) {
  using Texts = std::vector<std::string>;
  KVCache flat;
  feed(flat, 5);
  EXPECT_EQ(flat.meta_state(), Texts{});
  EXPECT_EQ(flat.state()[0].shape(), (mx::Shape{1, kHeads, 5, kWidth}));
  KVCache rotating({.window = 6, .keep = 2});
  feed(rotating, 20);
  EXPECT_EQ(rotating.meta_state(), (Texts{"2", "8", "20", "8"}));
  EXPECT_EQ(rotating.state()[0].shape(), (mx::Shape{1, kHeads, 8, kWidth}));
  KVCache chunked({.chunk = 8});
  feed(chunked, 20);
  EXPECT_EQ(chunked.meta_state(), (Texts{"8", "16"}));
  KVCache quantized({.quantization = KVQuantization{4, 32}});
  quantized.update(random_rows(10, 32, 1), random_rows(10, 32, 2));
  EXPECT_EQ(quantized.meta_state(), (Texts{"10", "32", "4"}));
  EXPECT_EQ(quantized.state().size(), 6U);
}

// mlx-lm's ring after 20 rows at once and 3 single ones, max_size 8, keep 2: rows 0, 1 and then 14 to 19 were cut to,
// and 20, 21, 22 were written over from row 2 on; _idx is 5.
TEST(KVCacheState, ReadsAnMlxLmRingInItsTurn) {
  const std::vector<float> order = {0, 1, 20, 21, 22, 17, 18, 19};
  const mx::array filled = mx::reshape(mx::array(order.data(), {8}, mx::float32), {1, 1, 8, 1});
  const mx::array keys = mx::broadcast_to(filled, {1, kHeads, 8, kWidth});
  const auto cache = make_kv_cache(CacheKind::kRotating, {keys, mx::negative(keys)}, {"2", "8", "23", "5"});
  EXPECT_EQ(cache->offset(), 23);
  EXPECT_EQ(contents(cache->view()), (std::vector<int>{0, 1, 17, 18, 19, 20, 21, 22}));
  EXPECT_EQ(contents(feed(*cache, 1)), (std::vector<int>{0, 1, 18, 19, 20, 21, 22, 23}));
}

TEST(KVCacheState, RefusesWhatDoesNotAgree) {
  KVCache cache({.window = 6, .keep = 2});
  feed(cache, 20);
  const auto state = cache.state();
  const auto refuses = [&](const std::vector<mx::array>& arrays, const std::vector<std::string>& meta) {
    EXPECT_THROW(cache.set_state(arrays, meta), std::invalid_argument);
    EXPECT_EQ(cache.offset(), 20);
    EXPECT_EQ(contents(cache.view()), (std::vector<int>{0, 1, 14, 15, 16, 17, 18, 19}));
  };
  refuses(state, {});
  refuses(state, {"2", "8", "20"});
  refuses(state, {"2", "8", "20", "8", "1"});
  refuses(state, {"2", "8", "x", "8"});
  refuses(state, {"2", "8", "20.0", "8"});
  refuses(state, {"2", "8", "", "8"});
  refuses(state, {"2", "8", "99999999999", "8"});
  refuses(state, {"2", "8", "-20", "8"});
  refuses(state, {"2", "9", "20", "8"});  // another window
  refuses(state, {"3", "9", "20", "8"});  // another keep
  refuses(state, {"2", "2", "20", "8"});  // no window
  refuses(state, {"2", "8", "7", "8"});   // more rows than the offset
  refuses(state, {"2", "8", "20", "9"});  // _idx outside
  refuses(state, {"2", "8", "20", "1"});  // _idx among the kept rows
  refuses({}, {"2", "8", "20", "0"});     // no rows
  refuses({state[0]}, {"2", "8", "20", "8"});
  refuses({state[0], state[1], state[1]}, {"2", "8", "20", "8"});
  refuses({state[0], rows_at(0, 5, 1)}, {"2", "8", "20", "8"});
  refuses({mx::astype(state[0], mx::int32), state[1]}, {"2", "8", "20", "8"});
  refuses({rows_at(0, 5, 1), rows_at(0, 5, -1)}, {"2", "8", "20", "5"});  // an incomplete window
  refuses({rows_at(0, 1, 1), rows_at(0, 1, -1)}, {"2", "8", "20", "1"});
  EXPECT_THROW(make_kv_cache(CacheKind::kChunked, state, {"32", "13"}), std::invalid_argument);  // within a chunk
  EXPECT_THROW(make_kv_cache(CacheKind::kChunked, state, {"None", "0"}), std::invalid_argument);
  EXPECT_THROW(make_kv_cache(CacheKind::kChunked, state, {"0", "0"}), std::invalid_argument);
  EXPECT_THROW(make_kv_cache(CacheKind::kQuantized, state, {"8", "32", "4"}), std::invalid_argument);
  KVCache quantized({.quantization = KVQuantization{4, 32}});
  quantized.update(random_rows(10, 32, 1), random_rows(10, 32, 2));
  auto triples = quantized.state();
  EXPECT_THROW(make_kv_cache(CacheKind::kQuantized, triples, {"9", "32", "4"}), std::invalid_argument);
  EXPECT_THROW(make_kv_cache(CacheKind::kQuantized, triples, {"10", "32", "8"}), std::invalid_argument);
  EXPECT_THROW(make_kv_cache(CacheKind::kQuantized, triples, {"10", "48", "4"}), std::invalid_argument);
  std::swap(triples[0], triples[1]);
  EXPECT_THROW(make_kv_cache(CacheKind::kQuantized, triples, {"10", "32", "4"}), std::invalid_argument);
}

// ---- A model's caches

// mlx-lm's maybe_quantize_kv_cache: from a length on, every cache that can.
TEST(ModelCache, QuantizesItsLayersFromALengthOn) {
  std::vector<std::unique_ptr<LayerCache>> layers;
  layers.push_back(make_kv_cache({}));
  layers.push_back(nullptr);
  layers.push_back(make_kv_cache({.window = 8, .keep = 2}));
  layers.push_back(make_kv_cache({.chunk = 8}));
  layers.push_back(make_kv_cache({.quantization = KVQuantization{8, 64}}));
  ModelCache cache(std::move(layers));
  for (const std::size_t i : {0, 2, 3, 4}) cache.attention(i).update(random_rows(20, 64, 1), random_rows(20, 64, 2));
  cache.materialize();
  const auto snapshot = cache.layer(0).snapshot(0);
  EXPECT_EQ(cache.to_quantized({4, 32}, 21), 0);
  EXPECT_EQ(cache.layer(0).kind(), "KVCache");
  EXPECT_THROW(cache.to_quantized({4, 48}), std::invalid_argument);
  EXPECT_EQ(cache.to_quantized({4, 32}, 20), 3);
  EXPECT_EQ(cache.layer(0).kind(), "QuantizedKVCache");
  EXPECT_EQ(cache.layer(2).kind(), "QuantizedRotatingKVCache");
  EXPECT_EQ(cache.layer(3).kind(), "QuantizedChunkedKVCache");
  EXPECT_EQ(dynamic_cast<const KVCache&>(cache.layer(2)).options().keep, 2);
  EXPECT_EQ(cache.offset(), 20);
  EXPECT_FALSE(snapshot->is_lazy());  // its cache is gone
  EXPECT_THROW(cache.layer(0).restore(snapshot.get(), 20), std::invalid_argument);
  EXPECT_EQ(cache.to_quantized({4, 32}), 0);
  for (const std::size_t i : {0, 2, 3, 4}) cache.attention(i).update(random_rows(1, 64, 3), random_rows(1, 64, 4));
  EXPECT_EQ(cache.offset(), 21);
  EXPECT_TRUE(cache.rewind(15));
  EXPECT_FALSE(cache.rewind(16));
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
