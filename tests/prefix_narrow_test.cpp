// Rows kept as 8-bit codes: what they take, how near they come back, and who is refused.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/model_runner.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/model/load.h"
#include "memoir/prefix/directory_tier.h"
#include "memoir/prefix/narrow_rows.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::prefix {
namespace {

constexpr std::size_t kLots = std::size_t{1} << 30;
constexpr int kGroup = 32;

// One flat layer with one head and the dimensions given.
std::vector<std::unique_ptr<cache::LayerCache>> layers_of(std::optional<cache::KVQuantization> codes = {}) {
  std::vector<std::unique_ptr<cache::LayerCache>> layers;
  layers.push_back(std::make_unique<cache::KVCache>(cache::KVOptions{.quantization = codes}));
  return layers;
}

cache::ModelCache fed(cache::ModelCache cache, const mx::array& keys, const mx::array& values) {
  dynamic_cast<cache::KVCache&>(*cache.find(0)).update(keys, values);
  return cache;
}

mx::array random_rows(int n_heads, int n_rows, int n_dims, mx::Dtype dtype = mx::float32) {
  return mx::astype(mx::random::normal({1, n_heads, n_rows, n_dims}, mx::random::key(7)), dtype);
}

float largest(const mx::array& a) {
  return mx::max(mx::abs(mx::astype(a, mx::float32))).item<float>();
}

// 8 bits: 255 steps between the least and the largest of a group. mx::quantize shifts the codes so that 0 is one of
// them, so the nearest may be a whole step away at an end. Scale and offset are float16 numbers: 11 bits of each, of at
// most 255 scales and of the offset; and what comes back is rounded to the type of the rows.
TEST(NarrowRows, ComeBackWithinAStepOfTheirGroup) {
  for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
    const mx::array keys = random_rows(3, 300, 64, dtype);
    const mx::array values = random_rows(3, 300, 96, dtype) * mx::array(5, dtype);
    const cache::ModelCache cache = fed(cache::ModelCache(layers_of()), keys, values);
    const CacheParts parts = parts_of(cache);
    const NarrowRows narrow = NarrowRows::of(cache);
    EXPECT_EQ(narrow.codes, (cache::KVQuantization{8, kGroup})) << "96 is no multiple of 64";
    EXPECT_EQ(narrow.dtype, dtype);
    const auto blocks = RowBlocks::copied(parts, 0, 300, narrow);
    ASSERT_EQ(blocks->blocks().size(), 2U);
    // A byte for each element, and 4 for each group.
    EXPECT_EQ(narrow.row_bytes(parts), 3U * (64 + 96) + 3U * 4 * (2 + 3));
    EXPECT_EQ(blocks->size_bytes(), 300 * narrow.row_bytes(parts));
    for (const auto& block : blocks->blocks()) {
      const auto wide = narrow.widened(*block->parts[0]);
      EXPECT_EQ(wide->keys().data.dtype(), dtype);
      for (const auto& [is, was] : {std::pair(wide->keys().data, keys), std::pair(wide->values().data, values)}) {
        const mx::array part = mx::slice(was, {0, 0, block->from, 0}, {1, 3, block->to, was.shape(-1)});
        const mx::array groups = mx::reshape(mx::astype(part, mx::float32), {-1, kGroup});
        const mx::array span = mx::max(groups, 1) - mx::min(groups, 1);
        const float rounded = dtype == mx::bfloat16 ? 1.F / 256 : 1.F / 2048;
        const float most = largest(span) / 255 + (2.F / 1024 + rounded) * largest(part);
        EXPECT_LE(largest(mx::astype(is, mx::float32) - mx::astype(part, mx::float32)), most);
        EXPECT_GT(largest(mx::astype(is, mx::float32) - mx::astype(part, mx::float32)), 0) << "it is not exact";
      }
    }
  }
}

TEST(NarrowRows, AreTheSameHoweverBlocksAreCutAndJoined) {
  const mx::array rows = random_rows(2, 200, 64);
  const cache::ModelCache cache = fed(cache::ModelCache(layers_of()), rows, rows);
  const CacheParts parts = parts_of(cache);
  const NarrowRows narrow = NarrowRows::of(cache);
  const auto whole = RowBlocks::copied(parts, 0, 200, narrow);
  const auto first = RowBlocks::copied(parts, 0, 77, narrow);
  auto second = RowBlocks::copied(parts, 77, 200, narrow);
  ASSERT_TRUE(first->append(*second));
  ASSERT_EQ(first->blocks().size(), 1U);
  const auto a = whole->blocks()[0]->parts[0]->arrays();
  const auto b = first->blocks()[0]->parts[0]->arrays();
  ASSERT_EQ(a.size(), 6U);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(mx::array_equal(a[i], b[i]).item<bool>());
}

TEST(NarrowRows, RefuseWhatHasNoneOrCannotBe) {
  const auto refusal = [](const cache::ModelCache& cache) -> std::string {
    try {
      NarrowRows::of(cache);
    } catch (const UnsupportedError& error) {
      return error.what();
    }
    return "";
  };
  const mx::array rows = random_rows(1, 4, 64);
  EXPECT_EQ(refusal(fed(cache::ModelCache(layers_of()), rows, rows)), "");
  EXPECT_NE(refusal(fed(cache::ModelCache(layers_of(cache::KVQuantization{4, 64})), rows, rows)).find("already"),
            std::string::npos);
  EXPECT_NE(refusal(fed(cache::ModelCache(layers_of()), random_rows(1, 4, 16), rows)).find("multiple of 32"),
            std::string::npos);
  EXPECT_NE(refusal(fed(cache::ModelCache(layers_of()), rows, mx::astype(rows, mx::float16)))
                .find("some layers keep float32 rows, others float16 ones"),
            std::string::npos);
  const auto loaded = model::load_model(test::data("mamba2"));
  EXPECT_THROW(engine::make_prefix_store(*loaded.model, {.max_bytes = kLots, .format = StoreFormat::kQ8}),
               UnsupportedError);
}

// ---- A model with rows and recurrent states

class NarrowStore : public testing::Test {
 protected:
  static std::unique_ptr<engine::ModelRunner> runner(StoreFormat format,
                                                     const std::optional<DirectoryTierOptions>& directory = {}) {
    return std::make_unique<engine::ModelRunner>(model::load_model(test::data("qwen3_next")).model,
                                                 StoreOptions{.max_bytes = kLots, .format = format},
                                                 cache::CacheOptions{}, directory);
  }

  static std::vector<TokenId> prompt(int n) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back((7 * i + i / 11) % 128);
    return tokens;
  }

  struct Run {
    int restored;
    std::vector<float> logits;
  };
  static Run run(engine::ModelRunner& runner, const std::vector<TokenId>& tokens) {
    const int restored = runner.create({1, tokens, static_cast<int>(tokens.size()), {}});
    const std::vector<TokenId> rest(tokens.begin() + restored, tokens.end());
    const std::vector<engine::StepRunner::Slice> slices = {{1, rest, true}};
    const auto rows = runner.run(slices);
    Run result{restored, {rows[0].begin(), rows[0].end()}};
    runner.retire(1);
    EXPECT_EQ(runner.store().trie().check(), "");
    return result;
  }

  static float distance(const std::vector<float>& a, const std::vector<float>& b) {
    float most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  }

  test::TemporaryFolder folder_;
};

TEST_F(NarrowStore, RestoresAsManyTokensInFewerBytesNearToWhatTheyWere) {
  const auto exact = runner(StoreFormat::kAsComputed);
  const auto narrow = runner(StoreFormat::kQ8);
  const Run first = run(*exact, prompt(400));
  EXPECT_EQ(run(*narrow, prompt(400)).logits, first.logits) << "nothing is restored yet";
  // float32 rows of 32 dimensions: 128 bytes become 32 codes and 4.
  EXPECT_EQ(narrow->store().trie().rows_bytes() * 128, exact->store().trie().rows_bytes() * 36);
  const auto n_spaced = [](auto& one) {
    return one.store().trie().counters().n_placed.at(static_cast<std::size_t>(CheckpointRule::kSpacing));
  };
  EXPECT_LT(n_spaced(*narrow), n_spaced(*exact)) << "rows that take less pay for fewer spaced checkpoints";
  std::vector<TokenId> longer = prompt(400);
  longer.insert(longer.end(), {1, 2, 3, 4, 5});
  const Run whole = run(*exact, longer);
  const Run near = run(*narrow, longer);
  EXPECT_EQ(near.restored, whole.restored);
  EXPECT_GE(near.restored, 396);
  const float scale = *std::max_element(whole.logits.begin(), whole.logits.end());
  EXPECT_LE(distance(near.logits, whole.logits), 0.05F * std::abs(scale));
  EXPECT_GT(distance(near.logits, whole.logits), 0);
}

// Restarts find what was kept in the same format, with the same bits; the formats are apart.
TEST_F(NarrowStore, AfterARestartTheSameCodesAreThere) {
  DirectoryTierOptions directory;
  directory.path = folder_.path() / "prefixes";
  directory.model = "a model";
  std::vector<TokenId> longer = prompt(400);
  longer.insert(longer.end(), {1, 2, 3, 4, 5});
  const auto in_memory = runner(StoreFormat::kQ8);
  run(*in_memory, prompt(400));
  const Run expected = run(*in_memory, longer);
  run(*runner(StoreFormat::kQ8, directory), prompt(400));
  EXPECT_EQ(runner(StoreFormat::kAsComputed, directory)->create({1, longer, 405, {}}), 0);
  const Run after = run(*runner(StoreFormat::kQ8, directory), longer);
  EXPECT_EQ(after.restored, expected.restored);
  EXPECT_EQ(after.logits, expected.logits);
}

}  // namespace
}  // namespace memoir::prefix
