#include "memoir/cache/mask.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <limits>
#include <string>

#include "tests/cache_rows.h"

namespace memoir::cache {
namespace {

using namespace test;

// Rows of T and F, sequence after sequence; "" for no array.
std::vector<std::string> text(const mx::array& mask) {
  const mx::array m = mx::contiguous(mask);
  EXPECT_EQ(m.dtype(), mx::bool_);
  std::vector<std::string> rows;
  const auto n_columns = static_cast<std::size_t>(m.shape(-1));
  for (std::size_t row = 0; row < m.size() / n_columns; ++row) {
    std::string line;
    mx::array evaluated = m;
    evaluated.eval();
    for (std::size_t i = 0; i < n_columns; ++i) line += evaluated.data<bool>()[row * n_columns + i] ? 'T' : 'F';
    rows.push_back(line);
  }
  return rows;
}

using Rows = std::vector<std::string>;

std::vector<int> sums(const mx::array& mask) {
  std::vector<int> result;
  for (const std::string& row : text(mask)) result.push_back(static_cast<int>(std::count(row.begin(), row.end(), 'T')));
  return result;
}

// mlx-lm's test_mask_with_window.
TEST(CausalMask, ShowsAQueryItselfAndWhatLiesInItsWindow) {
  EXPECT_EQ(text(create_causal_mask(3, 1)), (Rows{"TTFF", "TTTF", "TTTT"}));
  EXPECT_EQ(sums(create_causal_mask(5, 0, {.window = 3})), (std::vector<int>{1, 2, 3, 3, 3}));
  EXPECT_EQ(sums(create_causal_mask(5, 1, {.window = 3})), (std::vector<int>{2, 3, 3, 3, 3}));
  EXPECT_EQ(sums(create_causal_mask(5, 2, {.window = 3})), (std::vector<int>{3, 3, 3, 3, 3}));
  EXPECT_EQ(create_causal_mask(5, 2, {.window = 3}).shape(), (mx::Shape{5, 7}));
  EXPECT_EQ(text(create_causal_mask(2, 4, {.window = 2, .keep = 1})), (Rows{"TFFTTF", "TFFFTT"}));
}

// mlx-lm's test_causal_mask_padding.
TEST(CausalMask, HidesPadding) {
  const mx::array padding({2, 1, 0}, {3}, mx::int32);
  const mx::array right = create_causal_mask(3, 0, {.right_padding = padding});
  EXPECT_EQ(right.shape(), (mx::Shape{3, 1, 3, 3}));
  EXPECT_EQ(text(right), (Rows{"TFF", "TFF", "TFF", "TFF", "TTF", "TTF", "TFF", "TTF", "TTT"}));
  const mx::array left = create_causal_mask(3, 0, {.left_padding = padding});
  EXPECT_EQ(text(left), (Rows{"FFF", "FFF", "FFT", "FFF", "FTF", "FTT", "TFF", "TTF", "TTT"}));
}

TEST(CausalMask, RefusesSizesOutOfRange) {
  EXPECT_THROW(create_causal_mask(0, 3), std::invalid_argument);
  EXPECT_THROW(create_causal_mask(1, -1), std::invalid_argument);
  EXPECT_THROW(create_causal_mask(2, std::numeric_limits<int>::max()), std::invalid_argument);
  EXPECT_THROW(create_causal_mask(2, 0, {.window = 0}), std::invalid_argument);
  EXPECT_THROW(create_causal_mask(2, 0, {.keep = -1}), std::invalid_argument);
  EXPECT_THROW(create_causal_mask(2, 0, {.left_padding = mx::zeros({1, 1})}), std::invalid_argument);
  EXPECT_THROW(create_attention_mask(0, 0, std::nullopt, false), std::invalid_argument);
}

// mlx-lm's test_make_mask_with_cache.
TEST(AttentionMask, WithoutACacheIsAnArrayOnlyWhereItMustBe) {
  EXPECT_TRUE(create_attention_mask(1, std::nullopt, false).is_none());
  EXPECT_TRUE(create_attention_mask(1, std::nullopt, true).is_none());
  EXPECT_TRUE(create_attention_mask(4, std::nullopt, false).is_causal());
  EXPECT_TRUE(create_attention_mask(4, 4, false).is_causal());
  EXPECT_EQ(text(*create_attention_mask(4, std::nullopt, true).array), text(create_causal_mask(4, 0)));
  EXPECT_EQ(text(*create_attention_mask(4, 3, false).array), text(create_causal_mask(4, 0, {.window = 3})));
}

TEST(AttentionMask, OfAFlatCacheFollowsItsOffset) {
  KVCache cache;
  EXPECT_TRUE(cache.make_mask(4, std::nullopt, false).is_causal());
  EXPECT_EQ(text(*cache.make_mask(4, std::nullopt, true).array), text(create_causal_mask(4, 0)));
  feed(cache, 16);
  EXPECT_TRUE(cache.make_mask(1, std::nullopt, true).is_none());
  EXPECT_EQ(cache.make_mask(4, std::nullopt, true).array->shape(), (mx::Shape{4, 20}));
  feed(cache, 16);
  // test_window_mask_with_full_kv_cache
  EXPECT_EQ(text(*cache.make_mask(1, 4, false).array), text(create_causal_mask(1, 32, {.window = 4})));
  EXPECT_THROW(cache.make_mask(0, std::nullopt, false), std::invalid_argument);
}

// mlx-lm's test_rotating_cache_mask. Its single query's mask is in the order of its ring; ours is by position, and
// gather_ring_columns() gives theirs: their oldest row lies in row 1, then in row 2.
TEST(AttentionMask, OfARingCoversTheRowsOfItsNextUpdate) {
  KVCache cache({.window = 8});
  EXPECT_TRUE(cache.make_mask(4, 5, false).is_causal());
  EXPECT_EQ(cache.make_mask(4, 5, true).array->shape(), (mx::Shape{4, 4}));
  const std::vector<int> rows = sums(*cache.make_mask(6, 5, false).array);
  EXPECT_EQ(*std::max_element(rows.begin(), rows.end()), 5);
  EXPECT_TRUE(cache.make_mask(1, 5, false).is_none());
  feed(cache, 10);
  const Mask many = cache.make_mask(3, 5, false);
  EXPECT_EQ(many.array->shape(), (mx::Shape{3, 10}));
  EXPECT_EQ(sums(*many.array), (std::vector<int>{5, 5, 5}));
  EXPECT_TRUE(cache.make_mask(1, std::nullopt, false).is_none());
  const Mask one = cache.make_mask(1, 5, false);
  EXPECT_EQ(text(*one.array), (Rows{"FFFTTTTT"}));
  EXPECT_EQ(text(gather_ring_columns(*one.array, 1, 8)), (Rows{"TFFFTTTT"}));
  feed(cache, 1);
  EXPECT_EQ(text(gather_ring_columns(*cache.make_mask(1, 5, false).array, 2, 8)), (Rows{"TTFFFTTT"}));
}

// mlx-lm's mask hides kept rows from all but the first of several queries; keep 2, 8 rows in all, 10 written.
TEST(AttentionMask, OfARingShowsTheKeptRowsToEveryQuery) {
  KVCache cache({.window = 6, .keep = 2});
  feed(cache, 10);
  const Mask mask = cache.make_mask(3, std::nullopt, false);
  EXPECT_EQ(text(*mask.array), (Rows{"TTTTTTTTFF", "TTFTTTTTTF", "TTFFTTTTTT"}));
  EXPECT_EQ(positions_of(feed(cache, 3)), (std::vector<int>{0, 1, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(AttentionMask, OfAChunkEndsAtItsBorder) {
  KVCache cache({.chunk = 4});
  EXPECT_TRUE(cache.make_mask(4, std::nullopt, false).is_causal());
  EXPECT_EQ(text(*cache.make_mask(6, std::nullopt, false).array),
            (Rows{"TFFFFF", "TTFFFF", "TTTFFF", "TTTTFF", "FFFFTF", "FFFFTT"}));
  feed(cache, 6);
  EXPECT_TRUE(cache.make_mask(2, std::nullopt, false).is_causal());
  EXPECT_EQ(text(*cache.make_mask(3, std::nullopt, false).array), (Rows{"TTTFF", "TTTTF", "FFFFT"}));
  EXPECT_TRUE(cache.make_mask(1, std::nullopt, false).is_none());
}

// A mask says of every row of the history what kernels::attention would by position.
TEST(AttentionMask, AgreesWithAttentionByPosition) {
  const std::vector<KVOptions> kinds = {{}, {.window = 5}, {.window = 5, .keep = 3}, {.chunk = 4}};
  for (const KVOptions& options : kinds) {
    KVCache cache(options);
    for (const int n_tokens : {3, 1, 1, 7, 2, 1, 30, 4, 1}) {
      const Mask mask = cache.make_mask(n_tokens, std::nullopt, true);
      const auto rows = [&](int heads, unsigned seed) {
        return mx::random::normal({1, heads, n_tokens, 8}, mx::float32, mx::random::key(seed));
      };
      const History history = cache.update(rows(2, 1), rows(2, 2));
      const mx::array q = rows(2, 3);
      const mx::array by_position = kernels::attention(
          q, history, {.scale = 1, .window = options.window, .keep = options.keep, .chunk = options.chunk});
      std::optional<mx::array> array;
      if (mask.array) array = mx::reshape(*mask.array, {1, 1, n_tokens, history.n_rows()});
      EXPECT_TRUE(n_tokens == 1 || array);
      EXPECT_TRUE(
          mx::array_equal(by_position, kernels::attention(q, history, {.scale = 1, .mask = array})).item<bool>());
    }
  }
}

// The gather of seed 000: storage row s shows logical column (s - index) mod n.
TEST(RingColumns, TurnWithTheRing) {
  const mx::array mask = mx::reshape(mx::array({0.0F, 1.0F, 2.0F, 3.0F}), {1, 1, 1, 4});
  const mx::array turned = gather_ring_columns(mask, 3, 4);
  EXPECT_TRUE(mx::array_equal(mx::reshape(turned, {4}), mx::array({1.0F, 2.0F, 3.0F, 0.0F})).item<bool>());
  EXPECT_TRUE(mx::array_equal(gather_ring_columns(mask, 8, 4), mask).item<bool>());
  EXPECT_TRUE(mx::array_equal(gather_ring_columns(mask, 7, 4), turned).item<bool>());
  const mx::array one = mx::zeros({1, 1, 1, 1});
  EXPECT_EQ(gather_ring_columns(one, 3, 4).shape(), one.shape());
  EXPECT_THROW(gather_ring_columns(mask, 3, 5), std::invalid_argument);
  EXPECT_THROW(gather_ring_columns(mask, -1, 4), std::invalid_argument);
}

TEST(RingApplier, NeedsNoArrayForOneQueryButTheCallers) {
  const RingApplier applier{.n_rows = 4, .n_tokens = 1, .window = 4, .ring_index = 3};
  EXPECT_TRUE(applier.apply(Mask::none()).is_none());
  EXPECT_TRUE(applier.apply(Mask::causal()).is_none());
  const mx::array mask({true, false, false, false}, {1, 1, 1, 4});
  EXPECT_EQ(text(*applier.apply(Mask::of(mask)).array), (Rows{"FFFT"}));
  const RingApplier keeping{.n_rows = 6, .n_tokens = 1, .window = 4, .keep = 2, .ring_index = 3};
  const mx::array wide({true, false, true, false, false, false}, {1, 1, 1, 6});
  EXPECT_EQ(text(*keeping.apply(Mask::of(wide)).array), (Rows{"TFFFFT"}));
}

TEST(RingApplier, IntersectsTheWindowForMany) {
  const RingApplier applier{.n_rows = 6, .n_tokens = 3, .window = 3, .keep = 1, .ring_index = 0};
  const Rows window = {"TTTTFF", "TFTTTF", "TFFTTT"};
  EXPECT_EQ(text(*applier.apply(Mask::none()).array), window);
  EXPECT_EQ(text(*applier.apply(Mask::causal()).array), window);
  const mx::array mask = mx::logical_not(mx::equal(mx::arange(6), mx::array(3)));
  EXPECT_EQ(text(*applier.apply(Mask::of(mx::broadcast_to(mask, {3, 6}))).array), (Rows{"TTTFFF", "TFTFTF", "TFFFTT"}));
}

TEST(RingApplier, RefusesNumbersThatFitNoRing) {
  const Mask mask = Mask::of(mx::zeros({1, 4}));
  const auto refuses = [&](const RingApplier& applier) { EXPECT_THROW(applier.apply(mask), std::invalid_argument); };
  refuses({.n_rows = 0, .n_tokens = 1, .window = 4, .ring_index = 1});
  refuses({.n_rows = 4, .n_tokens = 1, .window = 4, .keep = -1, .ring_index = 1});
  refuses({.n_rows = 4, .n_tokens = 1, .window = 4, .ring_index = -1});
  refuses({.n_rows = 4, .n_tokens = 5, .window = 4, .ring_index = 1});
  EXPECT_THROW(gather_ring_columns(mx::zeros({1, 0}), 1, 0), std::invalid_argument);
  EXPECT_THROW(intersect(Mask{Mask::Kind::kArray}, Mask::causal(), 2, 4), std::invalid_argument);
}

TEST(Intersect, AddsFloatsAndTurnsBoolsIntoMinusInfinity) {
  const Mask added = Mask::of(mx::full({2, 3}, 0.5F));
  EXPECT_TRUE(intersect(Mask::none(), Mask::none(), 2, 3).is_none());
  EXPECT_TRUE(intersect(Mask::none(), Mask::causal(), 2, 3).is_causal());
  EXPECT_TRUE(intersect(Mask::causal(), Mask::causal(), 2, 3).is_causal());
  const float inf = std::numeric_limits<float>::infinity();
  const mx::array both({0.5F, 0.5F, -inf, 0.5F, 0.5F, 0.5F}, {2, 3});
  EXPECT_TRUE(mx::array_equal(*intersect(Mask::causal(), added, 2, 3).array, both).item<bool>());
  EXPECT_TRUE(mx::array_equal(*intersect(added, Mask::causal(), 2, 3).array, both).item<bool>());
  EXPECT_TRUE(mx::array_equal(*intersect(added, added, 2, 3).array, mx::full({2, 3}, 1.0F)).item<bool>());
  EXPECT_EQ(Mask::none().mode(), "");
  EXPECT_EQ(Mask::causal().mode(), "causal");
  EXPECT_EQ(added.mode(), "array");
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::cache
