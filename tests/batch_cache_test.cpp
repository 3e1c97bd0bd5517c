// Left-padded batches against mlx-lm's tests of its own (test_prompt_cache.py of 0.32.2, by the numbers of
// docs/caches.md's peers; in our own words), and the faults that its issues tell of, as the behaviour that is right.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "memoir/cache/arrays.h"
#include "memoir/cache/batch.h"
#include "memoir/cache/batch_kv.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/mask.h"
#include "memoir/cache/recurrent.h"
#include "tests/cache_rows.h"
#include "tests/token_states.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using memoir::test::expect_refused;
using memoir::test::is_equal;
using Numbers = std::vector<int>;

constexpr int kHeads = 2;
constexpr int kWidth = 8;

// Columns [begin, end) for n sequences; an element is its column, negative in values.
mx::array columns(int n_sequences, int begin, int end, float sign = 1, mx::Dtype dtype = mx::float32) {
  const mx::array row = mx::reshape(mx::arange(begin, end, mx::float32), {1, 1, end - begin, 1});
  return mx::astype(mx::broadcast_to(mx::multiply(row, mx::array(sign)), {n_sequences, kHeads, end - begin, kWidth}),
                    dtype);
}

BatchHistory feed(BatchKVCache& cache, int n_tokens, mx::Dtype dtype = mx::float32) {
  const int begin = cache.offset();
  return cache.update(columns(cache.batch_size(), begin, begin + n_tokens, 1, dtype),
                      columns(cache.batch_size(), begin, begin + n_tokens, -1, dtype));
}

// A single cache with rows first, first + 1, ...
std::unique_ptr<KVCache> single(const KVOptions& options, int n_tokens, int first = 0, mx::Dtype dtype = mx::float32) {
  auto cache = make_kv_cache(options);
  if (n_tokens > 0)
    cache->update(columns(1, first, first + n_tokens, 1, dtype), columns(1, first, first + n_tokens, -1, dtype));
  return cache;
}

using Layers = std::vector<const LayerCache*>;
using Models = std::vector<const ModelCache*>;

// "TFT" for query `query` of a sequence.
std::string row_of(const mx::array& mask, int sequence, int query) {
  const mx::array whole = mx::contiguous(mask);
  mx::eval(whole);
  const int n_rows = whole.shape(3);
  const bool* row = whole.data<bool>() + (sequence * whole.shape(2) + query) * n_rows;
  std::string text;
  for (int i = 0; i < n_rows; ++i) text += row[i] ? 'T' : 'F';
  return text;
}

// The first element of each row of a sequence.
Numbers elements(const mx::array& rows, int sequence) {
  const mx::array whole = mx::contiguous(mx::astype(rows, mx::float32));
  mx::eval(whole);
  Numbers result;
  for (int i = 0; i < whole.shape(2); ++i) {
    const int at = (sequence * whole.shape(1) * whole.shape(2) + i) * whole.shape(3);
    result.push_back(static_cast<int>(whole.data<float>()[at]));
  }
  return result;
}

Numbers elements(const KVCache& cache) {
  const std::optional<History> view = cache.view();
  return view ? elements(view->key_rows(), 0) : Numbers{};
}

// ---- Every row stays

// mlx-lm test 15.
TEST(BatchKVCache, FilterDropsColumnsThatAreAllPadding) {
  BatchKVCache cache({}, {2, 3, 4});
  EXPECT_EQ(cache.offsets(), (Numbers{-2, -3, -4}));
  EXPECT_EQ(feed(cache, 4).keys().shape(), (mx::Shape{3, kHeads, 4, kWidth}));
  cache.set_state(cache.state(), cache.meta_state());
  EXPECT_EQ(cache.offset(), 4);
  cache.filter({0, 1});
  EXPECT_EQ(cache.state()[0].shape(), (mx::Shape{2, kHeads, 2, kWidth}));
  EXPECT_EQ(cache.offsets(), (Numbers{2, 1}));
  const mx::array mask = cache.make_mask(1);
  EXPECT_EQ(row_of(mask, 0, 0), "TTT");
  EXPECT_EQ(row_of(mask, 1, 0), "FTT");
}

// mlx-lm test 16.
TEST(BatchKVCache, ExtendJustifiesToTheRight) {
  BatchKVCache cache({}, {2, 1, 2});
  const Numbers before = cache.offsets();
  feed(cache, 8);
  EXPECT_EQ(before, (Numbers{-2, -1, -2}));
  BatchKVCache other({}, {3, 0});
  feed(other, 4);
  cache.extend(other);
  EXPECT_EQ(cache.offsets(), (Numbers{6, 7, 6, 1, 4}));
  EXPECT_EQ(cache.left_padding(), (Numbers{2, 1, 2, 7, 4}));
  EXPECT_EQ(elements(cache.state()[0], 4), (Numbers{0, 0, 0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(elements(*cache.extract(3)), (Numbers{3}));
}

// mlx-lm: filter of an empty padded cache leaves -1 columns, and the next update fails (#1776).
TEST(BatchKVCache, FilterOfAnEmptyPaddedBatchKeepsItUsable) {
  BatchKVCache cache({}, {2, 1, 3});
  cache.filter({1, 2});
  EXPECT_EQ(cache.offset(), 0);
  EXPECT_EQ(cache.left_padding(), (Numbers{1, 3}));
  const BatchHistory history = feed(cache, 4);
  EXPECT_EQ(row_of(history.mask(), 0, 3), "FTTT");
  EXPECT_EQ(row_of(history.mask(), 1, 3), "FFFT");
}

// mlx-lm's trim leaves a short sequence in padding for good: its next tokens are hidden.
TEST(BatchKVCache, TrimBeyondAShortSequenceLeavesItEmpty) {
  const auto long_one = single({}, 5);
  const auto short_one = single({}, 2);
  const auto cache = BatchKVCache::merged({long_one.get(), short_one.get()});
  EXPECT_EQ(cache->trim(4), 4);
  EXPECT_EQ(cache->offsets(), (Numbers{1, 0}));
  EXPECT_EQ(row_of(feed(*cache, 2).mask(), 1, 1), "FTT");
  expect_refused([&] { cache->trim(-1); }, "[cache.trim]");
}

TEST(BatchKVCache, TrimTakesBackPaddingThatIsStillBeingFed) {
  BatchKVCache cache({}, {3, 0});
  feed(cache, 2);
  EXPECT_EQ(cache.trim(1), 1);
  EXPECT_EQ(cache.offsets(), (Numbers{-2, 1}));
  EXPECT_EQ(row_of(feed(cache, 3).mask(), 0, 2), "FFFT");
}

// Reference 1.9: lengths 2 and 4 of four columns.
TEST(BatchKVCache, RightPaddingIsMovedToTheLeft) {
  BatchKVCache cache({}, {0, 0});
  cache.prepare({2, 4});
  const BatchHistory history = feed(cache, 4);
  EXPECT_EQ(row_of(history.mask(), 0, 1), "FFTT");  // its second and last real query
  EXPECT_EQ(row_of(history.mask(), 1, 1), "TTFF");
  cache.finalize();
  EXPECT_EQ(cache.offsets(), (Numbers{2, 4}));
  EXPECT_EQ(cache.left_padding(), (Numbers{2, 0}));
  const Numbers rows = elements(cache.state()[0], 0);
  EXPECT_EQ(Numbers(rows.begin() + 2, rows.end()), (Numbers{0, 1}));
  EXPECT_EQ(elements(*cache.extract(0)), (Numbers{0, 1}));
}

TEST(BatchKVCache, RightPaddingMayEndInAnyChunk) {
  BatchKVCache cache({}, {0, 0, 0});
  cache.prepare({1, 7, 4});
  for (const int n : {2, 3, 2}) feed(cache, n);
  cache.finalize();
  EXPECT_EQ(cache.offsets(), (Numbers{1, 7, 4}));
  EXPECT_EQ(elements(*cache.extract(0)), (Numbers{0}));
  EXPECT_EQ(elements(*cache.extract(1)), (Numbers{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(elements(*cache.extract(2)), (Numbers{0, 1, 2, 3}));
}

// mlx-lm's #1169: the other side of an extend may be empty, from either side.
TEST(BatchKVCache, ExtendsWithAndFromEmptyBatches) {
  for (const KVOptions& options : {KVOptions{}, KVOptions{.window = 512}}) {  // mlx-lm test 21
    const auto five = single(options, 5);
    const auto three = single(options, 3);
    const auto cache = BatchKVCache::merged({five.get(), three.get()});
    cache->extend(BatchKVCache(options, {0, 0, 0}));
    EXPECT_EQ(cache->offsets(), (Numbers{5, 3, 0, 0, 0}));
    cache->prepare({10, 8, 12, 7, 11});
    feed(*cache, 12);
    cache->finalize();
    EXPECT_EQ(cache->offsets(), (Numbers{15, 11, 12, 7, 11}));

    BatchKVCache empty(options, {0, 0, 0});
    const auto four = single(options, 4);
    const auto six = single(options, 6);
    empty.extend(*BatchKVCache::merged({four.get(), six.get()}));
    EXPECT_EQ(empty.batch_size(), 5);
    EXPECT_EQ(empty.offsets(), (Numbers{0, 0, 0, 4, 6}));
  }
}

// mlx-lm test 22.
TEST(BatchKVCache, ExtendKeepsTheType) {
  for (const KVOptions& options : {KVOptions{}, KVOptions{.window = 16}}) {
    const auto filled = single(options, 3, 0, mx::bfloat16);
    auto cache = BatchKVCache::merged({filled.get()});
    cache->extend(BatchKVCache(options, {0}));
    EXPECT_EQ(cache->state()[0].dtype(), mx::bfloat16);
    BatchKVCache empty(options, {0});
    empty.extend(*cache);
    EXPECT_EQ(empty.state()[0].dtype(), mx::bfloat16);
    EXPECT_EQ(feed(empty, 1, mx::bfloat16).keys().dtype(), mx::bfloat16);
    const auto other = single(options, 3);
    expect_refused([&] { cache->extend(*BatchKVCache::merged({other.get()})); }, "bfloat16");
    EXPECT_EQ(cache->batch_size(), 2);
  }
}

// mlx-lm test 20, and that what comes out is what went in.
TEST(BatchKVCache, MergesEmptyCachesToo) {
  for (const KVOptions& options : {KVOptions{}, KVOptions{.window = 4}, KVOptions{.window = 3, .keep = 1},
                                   KVOptions{.chunk = 4}, KVOptions{.quantization = KVQuantization{8, 32}}}) {
    const int width = options.quantization ? 32 : kWidth;
    const auto empty = single(options, 0);
    const auto filled = make_kv_cache(options);
    const mx::array rows = mx::random::normal({1, kHeads, 4, width}, mx::random::key(1));
    filled->update(rows, rows);
    const auto batch = BatchKVCache::merged({empty.get(), filled.get()});
    EXPECT_EQ(batch->batch_size(), 2);
    EXPECT_EQ(batch->offsets(), (Numbers{0, 4}));
    EXPECT_TRUE(batch->extract(0)->is_empty());
    const auto again = batch->extract(1);
    EXPECT_EQ(again->offset(), 4);
    EXPECT_EQ(again->meta_state(), filled->meta_state());
    const std::vector<mx::array> expected = filled->state();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(is_equal(again->state()[i], expected[i]));
    const auto nothing = BatchKVCache::merged({empty.get(), empty.get()});
    EXPECT_EQ(nothing->batch_size(), 2);
    EXPECT_TRUE(nothing->is_empty());
  }
}

// ---- Rings: mlx-lm test 17. Its masks of one query are in the order of its ring's rows, ours by position.

TEST(BatchRotatingKVCache, HidesPaddingAndWhatIsBehindTheWindow) {
  BatchKVCache cache({.window = 4}, {2, 0});
  const mx::array first = cache.make_mask(4);
  EXPECT_EQ(row_of(first, 0, 0), "FFFF");
  EXPECT_EQ(row_of(first, 1, 0), "TFFF");
  feed(cache, 4);
  const mx::array second = cache.make_mask(4);
  EXPECT_EQ(row_of(second, 0, 0), "FTTTFFF");
  const BatchHistory history = feed(cache, 4);
  EXPECT_EQ(history.keys().shape(2), second.shape(3));

  BatchKVCache steps({.window = 4}, {2, 0});
  feed(steps, 4);
  const mx::array mask = steps.make_mask(1);
  EXPECT_EQ(row_of(mask, 0, 0), "FTTT");
  EXPECT_EQ(row_of(gather_ring_columns(mask, 1, 4), 0, 0), "TFTT");  // as mlx-lm has it
  EXPECT_EQ(row_of(mask, 1, 0), "TTTT");
}

TEST(BatchRotatingKVCache, FiltersAndExtendsUnequalOnes) {
  BatchKVCache cache({.window = 4}, {2, 0, 3});
  feed(cache, 3);
  cache.filter({1});
  EXPECT_EQ(cache.state()[0].shape(), (mx::Shape{1, kHeads, 3, kWidth}));

  BatchKVCache turned({.window = 4}, {1, 0});
  feed(turned, 5);
  feed(turned, 1);
  BatchKVCache other({.window = 4}, {0});
  feed(other, 5);
  turned.extend(other);
  EXPECT_EQ(turned.offsets(), (Numbers{5, 6, 5}));
  EXPECT_EQ(elements(*turned.extract(0)), (Numbers{2, 3, 4, 5}));
  EXPECT_EQ(elements(*turned.extract(2)), (Numbers{1, 2, 3, 4}));
}

// The window of 8 at column 9 begins in column 2, and the sequence's first token is in column 4: mlx-lm hides that one
// too ("FFFTTTTTF"), its left padding being one behind after a step in a ring that turns.
TEST(BatchRotatingKVCache, SeesItsFirstTokenAfterTheRingHasTurned) {
  BatchKVCache cache({.window = 8}, {4});
  feed(cache, 8);
  const mx::array one = cache.make_mask(1);
  EXPECT_EQ(row_of(one, 0, 0), "FFFTTTTT");
  EXPECT_EQ(row_of(gather_ring_columns(one, 1, 8), 0, 0), "TFFFTTTT");  // as mlx-lm has it
  feed(cache, 1);
  const mx::array two = cache.make_mask(2);
  EXPECT_EQ(row_of(two, 0, 0), "FFTTTTTTF");
  EXPECT_EQ(row_of(two, 0, 1), "FFTTTTTTT");
}

// mlx-lm loses keep when it merges, and its mask for several queries hides the kept rows.
// Behind a window of 1 nothing is left to go on from when rows are taken back: a trim is refused, or goes to the start.
TEST(BatchRotatingKVCache, AWindowOfOneCanNotBeTrimmedToNoRows) {
  for (const int keep : {0, 3}) {
    const KVOptions options{.window = 1, .keep = keep};
    const auto first = single(options, 20);
    const auto second = single(options, 20);
    auto batch = BatchKVCache::merged({first.get(), second.get()});
    EXPECT_FALSE(batch->is_trimmable());
    for (const int n : {1, 2, 10}) EXPECT_EQ(batch->trim(n), 0);
    EXPECT_FALSE(batch->restore(nullptr, 19));
    EXPECT_EQ(batch->offset(), 20);
    EXPECT_EQ(batch->extract(1)->offset(), 20);
    BatchKVCache again(options, {0});
    again.set_state(batch->state(), batch->meta_state());
    EXPECT_EQ(again.offset(), 20);
    batch->filter({0, 1});
    feed(*batch, 1);
    EXPECT_EQ(batch->offset(), 21);
    EXPECT_EQ(batch->trim(1), 1);  // the row before is there now
    EXPECT_EQ(batch->extract(0)->offset(), 20);
    EXPECT_EQ(batch->trim(20), 20);
    EXPECT_TRUE(batch->is_empty());
  }
}

TEST(BatchRotatingKVCache, KeepsItsFirstPositions) {
  const KVOptions options{.window = 4, .keep = 2};
  const auto a = single(options, 9);
  const auto b = single(options, 3, 100);
  const auto cache = BatchKVCache::merged({a.get(), b.get()});
  EXPECT_EQ(cache->extract(0)->options().keep, 2);
  EXPECT_EQ(elements(*cache->extract(0)), (Numbers{0, 1, 5, 6, 7, 8}));
  EXPECT_EQ(elements(*cache->extract(1)), (Numbers{100, 101, 102}));
  const BatchHistory history = feed(*cache, 2);  // filled with 9, 10
  EXPECT_EQ(row_of(history.mask(), 0, 0), "TTTTTTF");
  EXPECT_EQ(row_of(history.mask(), 0, 1), "TTFTTTT");
  EXPECT_EQ(row_of(history.mask(), 1, 1), "TTFFTTT");
  EXPECT_EQ(elements(history.keys(), 1), (Numbers{100, 101, 100, 101, 102, 9, 10}));
}

// ---- Recurrent states, arrays and lists

TEST(BatchRecurrentCache, KeepsEachSequencesOwnOffset) {
  RecurrentCache a(memoir::test::kShape);
  RecurrentCache b(memoir::test::kShape);
  RecurrentCache empty(memoir::test::kShape);
  memoir::test::feed(a, {1, 2, 3, 4, 5}, 5);
  memoir::test::feed(b, {7, 8, 9}, 3);
  const auto batch = merged(Layers{&a, &empty, &b});
  auto& states = dynamic_cast<RecurrentCache&>(*batch);
  EXPECT_EQ(states.batch_size(), 3);
  EXPECT_EQ(states.offset(), 5);
  memoir::test::expect_holds(dynamic_cast<RecurrentCache&>(*extract(states, 2)), {7, 8, 9});
  EXPECT_TRUE(extract(states, 1)->is_empty());

  prepare(states, {2, 1, 2});
  ASSERT_EQ(states.spans(2).size(), 3U);
  EXPECT_EQ(states.spans(2)[1].end, 1);
  const auto after = [](const memoir::test::Tokens& tokens) { return memoir::test::states_after(tokens); };
  const RecurrentState one = after({1, 2, 3, 4, 5, 6, 6});
  const RecurrentState two = after({6});
  const RecurrentState three = after({7, 8, 9, 6, 6});
  states.put({mx::concatenate({*one.tail, *two.tail, *three.tail}, 0),
              mx::concatenate({*one.state, *two.state, *three.state}, 0)},
             2);
  finalize(states);
  EXPECT_EQ(states.offset(), 7);
  filter(states, {2, 1});
  EXPECT_EQ(states.offset(), 5);
  memoir::test::expect_holds(dynamic_cast<RecurrentCache&>(*extract(states, 0)), {7, 8, 9, 6, 6});
  memoir::test::expect_holds(dynamic_cast<RecurrentCache&>(*extract(states, 1)), {6});
  expect_refused([&] { filter(states, {2}); }, "sequence 2 of 2");
  EXPECT_EQ(states.unfit_for_transaction(1), "RecurrentCache");
}

// mlx-lm test 12, with a list of both kinds.
TEST(BatchCacheList, GivesBackWhatWasMerged) {
  const auto list = [](int n_tokens, int first) {
    std::vector<std::unique_ptr<LayerCache>> children;
    children.push_back(single({}, n_tokens, first));
    children.push_back(nullptr);
    children.push_back(single({.window = 4}, n_tokens, first));
    auto slots = std::make_unique<ArraysCache>(1);
    slots->set_slot(0, mx::full({1, 4}, static_cast<float>(first)));
    slots->advance(n_tokens);
    children.push_back(std::move(slots));
    return std::make_unique<CacheList>(std::move(children));
  };
  const auto five = list(5, 10);
  const auto seven = list(7, 20);
  const auto batch = merged(Layers{five.get(), seven.get()});
  EXPECT_EQ(batch->kind(), "CacheList");
  EXPECT_EQ(batch_size(*batch), 2);
  EXPECT_EQ(batch->offset(), 7);
  for (const int i : {0, 1}) {
    const auto one = extract(*batch, i);
    const auto& whole = dynamic_cast<const CacheList&>(*one);
    EXPECT_EQ(one->offset(), i == 0 ? 5 : 7);
    EXPECT_EQ(whole.find(1), nullptr);
    EXPECT_EQ(elements(whole.child<KVCache>(0)), elements((i == 0 ? five : seven)->child<KVCache>(0)));
    EXPECT_EQ(elements(whole.child<KVCache>(2)), elements((i == 0 ? five : seven)->child<KVCache>(2)));
    EXPECT_TRUE(is_equal(whole.child<ArraysCache>(3).slot(0), mx::full({1, 4}, i == 0 ? 10.0F : 20.0F)));
    EXPECT_EQ(whole.child<ArraysCache>(3).offset(), i == 0 ? 5 : 7);
  }
  extend(*batch, *merged(Layers{five.get()}));
  EXPECT_EQ(batch_size(*batch), 3);
  filter(*batch, {2, 0});
  EXPECT_EQ(batch->offset(), 5);
  expect_refused([&] { extend(*batch, *five); }, "[cache.extend]");
}

TEST(BatchModelCache, IsTheBatchOfItsLayersAndFailsAsAWhole) {
  const auto model = [](int n_tokens, mx::Dtype dtype) {
    std::vector<std::unique_ptr<LayerCache>> layers;
    layers.push_back(single({}, n_tokens));
    layers.push_back(nullptr);
    layers.push_back(single({.chunk = 4}, n_tokens, 0, dtype));
    return ModelCache(std::move(layers));
  };
  const ModelCache a = model(3, mx::float32);
  const ModelCache b = model(6, mx::float32);
  ModelCache batch = merged(Models{&a, &b});
  EXPECT_EQ(batch.offset(), 6);
  EXPECT_EQ(batch.find(1), nullptr);
  EXPECT_EQ(extract(batch, 0).offset(), 3);
  const ModelCache odd = model(2, mx::float16);
  const ModelCache one = merged(Models{&odd});
  EXPECT_THROW(extend(batch, one), std::invalid_argument);  // the last layer's type differs
  EXPECT_EQ(batch_size(batch.layer(0)), 2);
  EXPECT_EQ(batch_size(batch.layer(2)), 2);
}

// ---- The rest of the interface

TEST(BatchKVCache, RefusesWhatDoesNotFitAndStaysAsItWas) {
  EXPECT_THROW(BatchKVCache({}, {}), std::invalid_argument);
  EXPECT_THROW(BatchKVCache({}, {0, -1}), std::invalid_argument);
  EXPECT_THROW(BatchKVCache({.window = 0}, {0}), std::invalid_argument);
  BatchKVCache cache({}, {1, 0});
  feed(cache, 3);
  expect_refused([&] { cache.update(columns(3, 0, 1), columns(3, 0, 1)); }, "[cache.update]");
  expect_refused([&] { cache.update(columns(2, 0, 1, 1, mx::float16), columns(2, 0, 1)); }, "[cache.update]");
  expect_refused([&] { cache.pad_left({1, 1}); }, "[cache.pad_left]");
  expect_refused([&] { cache.prepare({1}); }, "[cache.prepare]");
  expect_refused([&] { cache.prepare({1, -1}); }, "[cache.prepare]");
  expect_refused([&] { cache.filter({}); }, "[cache.filter]");
  expect_refused([&] { cache.filter({0, 2}); }, "sequence 2 of 2");
  expect_refused([&] { cache.extract(-1); }, "[cache.extract]");
  expect_refused([&] { cache.extend(BatchKVCache({.window = 4}, {0})); }, "[cache.extend]");
  expect_refused([&] { cache.begin(1); }, "BatchKVCache");
  const auto single_cache = single({}, 2);
  expect_refused([&] { filter(*single_cache, {0}); }, "is no batch");
  expect_refused([&] { merged(Layers{single_cache.get(), nullptr}); }, "[cache.merged]");
  EXPECT_EQ(cache.offset(), 3);
  EXPECT_EQ(cache.offsets(), (Numbers{2, 3}));
  cache.prepare({1, 1});
  expect_refused([&] { cache.update(columns(2, 0, 2, 1, mx::float16), columns(2, 0, 2)); }, "float16");
  EXPECT_EQ(cache.offset(), 3);
}

TEST(BatchKVCache, RefusesPaddingBeyondAnyOffset) {
  constexpr int kMost = 1 << 30;
  EXPECT_THROW(BatchKVCache({}, {kMost + 1}), std::invalid_argument);
  BatchKVCache cache({}, {kMost, 0});
  expect_refused([&] { cache.pad_left({1, 1}); }, "[cache.pad_left]");
  EXPECT_EQ(cache.left_padding(), (Numbers{kMost, 0}));
  BatchKVCache longer({}, {0});
  feed(longer, 3);
  expect_refused([&] { cache.extend(longer); }, "[cache.extend]");
  EXPECT_EQ(cache.batch_size(), 2);
}

// Also where nothing but the buffers' width remembers the rows of before.
TEST(BatchKVCache, RefusesOtherRowsAfterATrimWhateverThePadding) {
  BatchKVCache cache({.window = 4, .keep = 2}, {0, 0});
  feed(cache, 3);
  EXPECT_EQ(cache.trim(3), 3);
  const mx::array wide = mx::zeros({2, kHeads, 3, 2 * kWidth});
  expect_refused([&] { cache.update(wide, wide); }, "[cache.update]");
  cache.prepare({1, 3});
  expect_refused([&] { cache.update(wide, wide); }, "[cache.update]");
  EXPECT_EQ(cache.offset(), 0);
  EXPECT_EQ(cache.left_padding(), (Numbers{0, 0}));
  feed(cache, 3);
  EXPECT_EQ(cache.offsets(), (Numbers{1, 3}));
}

TEST(BatchKVCache, RefusesAStateOfNoSequencesOrOtherColumns) {
  BatchKVCache cache({}, {0});
  const mx::array none = mx::zeros({0}, mx::int32);
  expect_refused([&] { cache.set_state({none, none}, {"0"}); }, "no sequences");
  const mx::array rows = columns(1, 0, 5);
  expect_refused([&] { cache.set_state({rows, rows, mx::array({7}), mx::array({0})}, {"7"}); }, "5 rows for 7 columns");
  EXPECT_EQ(cache.batch_size(), 1);
  EXPECT_TRUE(cache.is_empty());
  expect_refused([] { merged(std::vector<const ModelCache*>{nullptr}); }, "[cache.merged]");
}

TEST(BatchKVCache, SnapshotsHoldTheWholeBatch) {
  BatchKVCache cache({.window = 4, .keep = 1}, {1, 0});
  EXPECT_EQ(cache.snapshot(0), nullptr);
  feed(cache, 6);
  std::unique_ptr<Snapshot> snapshot = cache.snapshot(2);
  EXPECT_EQ(snapshot->from(), 2);
  EXPECT_EQ(snapshot->to(), 6);
  const Numbers expected = elements(*cache.extract(0));
  feed(cache, 3);
  cache.filter({1});
  EXPECT_FALSE(cache.restore(snapshot.get(), 7));
  EXPECT_TRUE(cache.restore(snapshot.get(), 6));
  EXPECT_EQ(cache.batch_size(), 2);
  EXPECT_EQ(elements(*cache.extract(0)), expected);
  SnapshotPair pair = cache.split(std::move(snapshot), 4);
  EXPECT_EQ(pair.parent, nullptr);
  EXPECT_EQ(pair.child->from(), 4);
  EXPECT_THROW(BatchKVCache({}, {0}).restore(pair.child.get(), 6), std::invalid_argument);
}

}  // namespace
}  // namespace memoir::cache
