// ArraysCache and MambaCache: mlx-lm's test_prompt_cache and issues (named at each case), and what they refuse.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/arrays.h"
#include "tests/token_states.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using test::expect_refused;
using test::is_equal;

TEST(ArraysCache, IsEmptyAtFirst) {
  ArraysCache cache(3);
  EXPECT_EQ(cache.kind(), "ArraysCache");
  EXPECT_EQ(cache.n_slots(), 3);
  EXPECT_FALSE(cache.slot(2).has_value());
  EXPECT_EQ(cache.batch_size(), 1);
  EXPECT_TRUE(cache.state().empty());
  EXPECT_EQ(cache.snapshot(0), nullptr);
  EXPECT_FALSE(cache.mask(4).has_value());
  EXPECT_TRUE(cache.spans(4).empty());
  MambaCache mamba;
  EXPECT_EQ(mamba.kind(), "MambaCache");
  EXPECT_EQ(mamba.n_slots(), 2);
}

// mlx-lm test 5 and 7: no mask without padding, and nothing to trim.
TEST(ArraysCache, HasNoMaskWithoutPaddingAndTrimsNothing) {
  ArraysCache cache(2);
  cache.set_slot(0, mx::zeros({1, 4, 4}));
  cache.set_slot(1, mx::zeros({1, 4, 4}));
  cache.advance(10);
  ArraysCache loaded(2);
  loaded.set_state(cache.state(), cache.meta_state());
  EXPECT_FALSE(loaded.mask(4).has_value());
  EXPECT_EQ(loaded.offset(), 10);
  EXPECT_TRUE(is_equal(loaded.slot(1), mx::zeros({1, 4, 4})));
  EXPECT_EQ(loaded.trim(7), 0);
  EXPECT_FALSE(loaded.is_trimmable());
}

std::vector<std::vector<bool>> rows(const std::optional<mx::array>& mask) {
  std::vector<std::vector<bool>> result;
  if (!mask) return result;
  const mx::array flat = mx::contiguous(*mask);
  mx::eval(flat);
  for (int i = 0; i < flat.shape(0); ++i) {
    const bool* row = flat.data<bool>() + i * flat.shape(1);
    result.emplace_back(row, row + flat.shape(1));
  }
  return result;
}

// pos >= left_padding and pos < length, both (mlx-lm #1736).
TEST(ArraysCache, MasksPaddingOnBothSides) {
  ArraysCache cache(1, {2, 0});
  cache.prepare({4, 3});
  EXPECT_EQ(rows(cache.mask(5)), (std::vector<std::vector<bool>>{{0, 0, 1, 1, 0}, {1, 1, 1, 0, 0}}));
  cache.advance(1);
  EXPECT_EQ(rows(cache.mask(3)), (std::vector<std::vector<bool>>{{0, 1, 1}, {1, 1, 0}}));
  const std::vector<kernels::TokenSpan> spans = cache.spans(3);
  EXPECT_EQ(spans[0].begin, 1);
  EXPECT_EQ(spans[0].end, 3);
  EXPECT_EQ(spans[1].begin, 0);
  EXPECT_EQ(spans[1].end, 2);
  cache.advance(8);
  EXPECT_EQ(rows(cache.mask(1)), (std::vector<std::vector<bool>>{{0}, {0}}));
  cache.finalize();
  EXPECT_FALSE(cache.mask(1).has_value());
}

// mlx-lm test 20.
TEST(ArraysCache, BatchesAnEmptyAndAFilledOne) {
  ArraysCache empty(1);
  ArraysCache filled(1);
  filled.set_slot(0, mx::ones({1, 4}));
  const auto batch = make_batch({&empty, &filled});
  EXPECT_TRUE(is_equal(batch->slot(0), mx::concatenate({mx::zeros({1, 4}), mx::ones({1, 4})}, 0)));
  const auto none = make_batch({&empty, &empty, &empty});
  EXPECT_EQ(none->batch_size(), 3);
  EXPECT_EQ(none->left_padding(), (std::vector<int>{0, 0, 0}));
}

// mlx-lm test 23 (and #1141, #1169): sequences without a state count and keep their places.
TEST(ArraysCache, ExtendsWithAndFromEmptyOnes) {
  const auto content = [](float first) {
    auto cache = std::make_unique<ArraysCache>(2);
    cache->set_slot(0, mx::full({1, 4, 8}, first));
    cache->set_slot(1, mx::full({1, 4}, first));
    return cache;
  };
  const auto one = content(1);
  const auto two = content(2);
  const ArraysCache empty(2);
  const auto batch = make_batch({one.get(), two.get()});
  EXPECT_EQ(batch->slot(0)->shape(), (mx::Shape{2, 4, 8}));
  batch->extend(empty);
  ASSERT_EQ(batch->slot(0)->shape(), (mx::Shape{3, 4, 8}));
  EXPECT_TRUE(is_equal(mx::slice(*batch->slot(0), {2, 0, 0}, {3, 4, 8}), mx::zeros({1, 4, 8})));
  EXPECT_TRUE(is_equal(mx::slice(*batch->slot(1), {1, 0}, {2, 4}), mx::full({1, 4}, 2.0F)));

  const auto empty_2 = make_batch({&empty, &empty});
  empty_2->extend(*make_batch({one.get(), two.get()}));
  ASSERT_EQ(empty_2->slot(0)->shape(), (mx::Shape{4, 4, 8}));
  EXPECT_TRUE(is_equal(mx::slice(*empty_2->slot(1), {1, 0}, {3, 4}),
                       mx::concatenate({mx::zeros({1, 4}), mx::full({1, 4}, 1.0F)}, 0)));

  const auto content_2 = make_batch({one.get(), two.get()});
  content_2->extend(*make_batch({&empty, &empty}));
  EXPECT_EQ(content_2->batch_size(), 4);
  EXPECT_EQ(content_2->mask(10)->shape(), (mx::Shape{4, 10}));

  ArraysCache steps(2);
  for (int i = 0; i < 3; ++i) steps.extend(empty);
  EXPECT_EQ(steps.batch_size(), 4);
}

// mlx-lm test 24: 256 steps leave plain numbers behind.
TEST(ArraysCache, CountsPaddingAndLengthsDown) {
  ArraysCache cache(1, {300});
  cache.prepare({600});
  for (int i = 0; i < 256; ++i) cache.advance(1);
  EXPECT_EQ(cache.left_padding(), std::vector<int>{44});
  EXPECT_EQ(cache.lengths(), std::vector<int>{344});
  for (int i = 0; i < 256; ++i) cache.advance(1);
  EXPECT_EQ(cache.left_padding(), std::vector<int>{0});
  EXPECT_EQ(cache.offset(), 512);
}

TEST(ArraysCache, FiltersAndExtractsSequences) {
  ArraysCache cache(3, {1, 2, 3});
  cache.prepare({7, 8, 9});
  const mx::array a = mx::reshape(mx::arange(0, 12, mx::float32), {3, 4});
  cache.set_slot(0, a);
  cache.set_slot(2, mx::multiply(a, mx::array(2.0F)));
  cache.advance(1);
  const auto one = cache.extract(1);
  EXPECT_TRUE(is_equal(one->slot(0), mx::slice(a, {1, 0}, {2, 4})));
  EXPECT_FALSE(one->slot(1).has_value());
  EXPECT_TRUE(one->left_padding().empty());
  EXPECT_EQ(one->offset(), 0);  // its one column was padding
  cache.filter({2, 0});
  EXPECT_TRUE(
      is_equal(cache.slot(0), mx::concatenate({mx::slice(a, {2, 0}, {3, 4}), mx::slice(a, {0, 0}, {1, 4})}, 0)));
  EXPECT_FALSE(cache.slot(1).has_value());
  EXPECT_EQ(cache.left_padding(), (std::vector<int>{2, 0}));
  EXPECT_EQ(cache.lengths(), (std::vector<int>{8, 6}));
  EXPECT_EQ(MambaCache().extract(0)->kind(), "MambaCache");
}

TEST(ArraysCache, StateKeepsMissingSlotsAndPadding) {
  MambaCache cache({1, 2});
  cache.set_slot(1, mx::ones({2, 4}, mx::float16));
  cache.advance(3);
  const std::vector<mx::array> state = cache.state();
  ASSERT_EQ(state.size(), 4U);
  EXPECT_EQ(state[0].shape(), mx::Shape{0});
  MambaCache other;
  other.set_state(state, cache.meta_state());
  EXPECT_FALSE(other.slot(0).has_value());
  EXPECT_TRUE(is_equal(other.slot(1), mx::ones({2, 4}, mx::float16)));
  EXPECT_EQ(other.left_padding(), (std::vector<int>{0, 0}));
  EXPECT_EQ(other.offset(), 3);
}

TEST(ArraysCache, SnapshotsBringSlotsPaddingAndLengthsBack) {
  ArraysCache cache(2, {5, 0});
  cache.prepare({9, 7});
  cache.set_slot(0, mx::ones({2, 3}));
  cache.advance(2);
  const auto snapshot = cache.snapshot(0);
  cache.set_slot(0, mx::zeros({2, 3}));
  cache.set_slot(1, mx::zeros({2, 3}));
  cache.advance(4);
  EXPECT_FALSE(cache.restore(nullptr, 2));
  EXPECT_FALSE(cache.restore(snapshot.get(), 6));
  ASSERT_TRUE(cache.restore(snapshot.get(), 2));
  EXPECT_EQ(cache.offset(), 2);
  EXPECT_TRUE(is_equal(cache.slot(0), mx::ones({2, 3})));
  EXPECT_FALSE(cache.slot(1).has_value());
  EXPECT_EQ(cache.left_padding(), (std::vector<int>{3, 0}));
  EXPECT_EQ(cache.lengths(), (std::vector<int>{7, 5}));
}

TEST(ArraysCache, RefusesWhatDoesNotFitAndStaysAsItWas) {
  expect_refused([] { ArraysCache cache(0); }, "n_slots is 0");
  expect_refused([] { ArraysCache cache(1, {-1}); }, "left padding is -1");
  ArraysCache cache(2);
  cache.set_slot(0, mx::ones({2, 3}));
  cache.advance(4);
  expect_refused([&] { cache.slot(2); }, "slot 2 of 2");
  expect_refused([&] { cache.set_slot(-1, mx::ones({2})); }, "slot -1");
  expect_refused([&] { cache.set_slot(0, mx::array(1.0F)); }, "expected (B,...)");
  expect_refused([&] { cache.advance(0); }, "n_tokens is 0");
  expect_refused([&] { cache.prepare({}); }, "0 lengths");
  expect_refused([&] { cache.prepare({1, 2, 3}); }, "3 lengths for 2 sequences");
  expect_refused([&] { cache.prepare({1, -2}); }, "a length is -2");
  expect_refused([&] { cache.filter({2}); }, "sequence 2 of 2");
  expect_refused([&] { cache.filter({}); }, "no sequence");
  expect_refused([&] { cache.extract(2); }, "sequence 2 of 2");
  expect_refused([&] { cache.extend(ArraysCache(1)); }, "1 slots");
  ArraysCache wide(2);
  wide.set_slot(0, mx::ones({1, 4}));
  expect_refused([&] { cache.extend(wide); }, "slot 0 has shape (2,3)");
  expect_refused([&] { make_batch({}); }, "at least one");
  expect_refused([&] { cache.set_state({mx::ones({1})}, {"4"}); }, "1 arrays, expected 4");
  expect_refused([&] { cache.set_state(cache.state(), {"-1"}); }, "the offset");
  std::vector<mx::array> state = cache.state();
  state[2] = mx::array({1, 2, 3}, {3}, mx::int32);
  expect_refused([&] { cache.set_state(state, {"4"}); }, "the slots' batch");
  state[2] = mx::ones({2});
  expect_refused([&] { cache.set_state(state, {"4"}); }, "left_padding has shape (2) float32");
  expect_refused([&] { MambaCache().restore(cache.snapshot(0).get(), 4); }, "of a ArraysCache");
  expect_refused([&] { ArraysCache(3).restore(cache.snapshot(0).get(), 4); }, "2 slots, expected 3");
  EXPECT_EQ(cache.offset(), 4);
  EXPECT_TRUE(is_equal(cache.slot(0), mx::ones({2, 3})));
}

// Slots, left padding and lengths are of one batch, so that a sequence named to filter() or extract() is in all of
// them.
TEST(ArraysCache, SlotsAndPaddingAreOfOneBatch) {
  ArraysCache cache(2);
  cache.set_slot(0, mx::ones({3, 2}));
  expect_refused([&] { cache.set_slot(1, mx::ones({2, 2})); }, "expected the 3 sequences");
  expect_refused([&] { cache.pad_left({1, 0}); }, "2 paddings for 3 sequences");
  cache.set_slot(0, mx::ones({2, 2}));  // the only one there
  ArraysCache padded(1, {1, 0});
  expect_refused([&] { padded.set_slot(0, mx::ones({3, 2})); }, "expected the 2 sequences");
  expect_refused([&] { padded.set_offsets({1, 0}); }, "more tokens than the 0 columns");
  EXPECT_FALSE(cache.slot(1).has_value());
  EXPECT_FALSE(padded.slot(0).has_value());
}

TEST(ArraysCache, ExtendedByItselfHasEachSequenceTwice) {
  ArraysCache cache(1, {1, 0});
  cache.set_slot(0, mx::array({1.0F, 2.0F}, {2, 1}));
  cache.prepare({5, 3});
  cache.extend(cache);
  EXPECT_TRUE(is_equal(cache.slot(0), mx::array({1.0F, 2.0F, 1.0F, 2.0F}, {4, 1})));
  EXPECT_EQ(cache.left_padding(), (std::vector<int>{1, 0, 1, 0}));
  EXPECT_EQ(cache.lengths(), (std::vector<int>{5, 3, 5, 3}));
}

TEST(ArraysCache, TakesASnapshotThatWasReadFromElsewhere) {
  ArraysCache cache(1, {2});
  const StateSnapshot snapshot("ArraysCache", 0, 3, {mx::ones({1, 2})});
  EXPECT_TRUE(cache.restore(&snapshot, 3));
  EXPECT_EQ(cache.offset(), 3);
  EXPECT_TRUE(cache.left_padding().empty());
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
