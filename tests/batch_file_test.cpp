// Batches in prompt-cache files: what comes back, and what is refused. (tests/mlx_lm has mlx-lm's own side.)

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "damaged_bytes.h"
#include "memoir/base/error.h"
#include "memoir/cache/arrays.h"
#include "memoir/cache/batch.h"
#include "memoir/cache/batch_kv.h"
#include "memoir/cache/prompt_file.h"
#include "memoir/cache/recurrent.h"
#include "tests/model_files.h"
#include "tests/token_states.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using memoir::test::is_equal;
using memoir::test::TemporaryFolder;

std::unique_ptr<KVCache> single(const KVOptions& options, int n_tokens, int seed) {
  auto cache = make_kv_cache(options);
  if (n_tokens == 0) return cache;
  const mx::array rows = mx::random::normal({1, 2, n_tokens, 32}, mx::random::key(static_cast<std::uint64_t>(seed)));
  cache->update(mx::astype(rows, mx::float16), mx::astype(mx::negative(rows), mx::float16));
  return cache;
}

std::unique_ptr<BatchKVCache> batch_of(const KVOptions& options, const std::vector<int>& lengths) {
  std::vector<std::unique_ptr<KVCache>> caches;
  std::vector<const KVCache*> all;
  for (const int n : lengths) {
    caches.push_back(single(options, n, n));
    all.push_back(caches.back().get());
  }
  return BatchKVCache::merged(all);
}

template <typename... Caches>
ModelCache model_of(std::unique_ptr<Caches>... caches) {
  std::vector<std::unique_ptr<LayerCache>> layers;
  (layers.push_back(std::move(caches)), ...);
  return ModelCache(std::move(layers));
}

void expect_equal(const LayerCache& a, const LayerCache& b) {
  EXPECT_EQ(a.kind(), b.kind());
  EXPECT_EQ(a.meta_state(), b.meta_state());
  const std::vector<mx::array> x = a.state();
  const std::vector<mx::array> y = b.state();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(is_equal(x[i], y[i])) << a.kind() << " " << i;
}

class BatchFile : public testing::Test {
 protected:
  ModelCache round_trip(const ModelCache& cache, PromptFormat format = PromptFormat::kV2) const {
    save_prompt_file(path(), cache, {}, format);
    return load_prompt_file(path()).cache;
  }
  std::string path() const { return (folder_.path() / "cache.safetensors").string(); }

  TemporaryFolder folder_;
};

TEST_F(BatchFile, EveryKindComesBack) {
  for (const std::vector<int>& lengths : {std::vector<int>{3, 5, 0}, {40, 1}, {300, 299}}) {
    for (const std::optional<KVQuantization> quantization :
         {std::optional<KVQuantization>(), {KVQuantization{4, 32}}}) {
      for (KVOptions options :
           {KVOptions{}, KVOptions{.window = 6}, KVOptions{.window = 6, .keep = 2}, KVOptions{.chunk = 16}}) {
        options.quantization = quantization;
        const ModelCache cache = model_of(batch_of(options, lengths));
        const ModelCache loaded = round_trip(cache);
        expect_equal(loaded.layer(0), cache.layer(0));
        EXPECT_EQ(dynamic_cast<const BatchKVCache&>(loaded.layer(0)).options(), options);
        if (!quantization && options.keep == 0 && !options.chunk) {
          expect_equal(round_trip(cache, PromptFormat::kV1).layer(0), cache.layer(0));
        } else {
          EXPECT_THROW(round_trip(cache, PromptFormat::kV1), UnsupportedError);
        }
      }
    }
  }
}

TEST_F(BatchFile, EmptyOnesKeepTheirPadding) {
  ModelCache cache = model_of(std::make_unique<BatchKVCache>(KVOptions{}, std::vector<int>{2, 0}),
                              std::make_unique<BatchKVCache>(KVOptions{.window = 4}, std::vector<int>{2, 0}),
                              std::make_unique<BatchKVCache>(KVOptions{.chunk = 4}, std::vector<int>{2, 0}));
  const ModelCache loaded = round_trip(cache);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(dynamic_cast<const BatchKVCache&>(loaded.layer(i)).offsets(), (std::vector<int>{-2, 0}));
  }
  EXPECT_THROW(round_trip(cache, PromptFormat::kV1), UnsupportedError);
  prepare(cache, {3, 1});
  EXPECT_THROW(round_trip(cache), std::invalid_argument);
}

// mlx-lm takes a ring that has turned for full. Without the row it would try to grow it.
TEST_F(BatchFile, ARingWithoutItsOldestRowComesBackAsItIs) {
  auto ring = std::make_unique<BatchKVCache>(KVOptions{.window = 6}, std::vector<int>{1, 0});
  const mx::array rows = mx::random::normal({2, 2, 40, 32}, mx::random::key(1));
  ring->update(rows, rows);
  const mx::array more = mx::random::normal({2, 2, 1, 32}, mx::random::key(2));
  ring->update(more, more);  // the buffer goes back to its steady size, and keeps what 16 columns back needs
  ASSERT_EQ(ring->trim(16), 16);
  const ModelCache cache = model_of(std::move(ring));
  ASSERT_EQ(cache.layer(0).state()[0].shape(2), 5);
  for (const PromptFormat format : {PromptFormat::kV1, PromptFormat::kV2}) {
    expect_equal(round_trip(cache, format).layer(0), cache.layer(0));
    EXPECT_EQ(mx::load_safetensors(path()).first.at("0.0").shape(2), 6);
  }
}

TEST_F(BatchFile, SlotsKeepEachSequencesOffset) {
  RecurrentCache a(memoir::test::kShape);
  RecurrentCache b(memoir::test::kShape);
  memoir::test::feed(a, {1, 2, 3, 4, 5}, 5);
  memoir::test::feed(b, {7, 8, 9}, 3);
  const auto five = single({}, 5, 1);
  const auto three = single({}, 3, 2);
  const ModelCache cache = model_of(merged(std::vector<const LayerCache*>{&a, &b}),
                                    merged(std::vector<const LayerCache*>{five.get(), three.get()}));
  const ModelCache loaded = round_trip(cache);
  const auto& slots = dynamic_cast<const ArraysCache&>(loaded.layer(0));
  EXPECT_EQ(slots.extract(1)->offset(), 3);
  EXPECT_TRUE(is_equal(slots.extract(1)->slot(0), b.get(1, mx::float32).tail));
  EXPECT_EQ(extract(loaded, 0).offset(), 5);
  EXPECT_EQ(extract(loaded, 1).offset(), 3);
}

TEST_F(BatchFile, EveryTruncationAndDamagedByteIsAnInputError) {
  const ModelCache cache =
      model_of(batch_of({}, {1, 2}), batch_of({.window = 2}, {1, 2}), batch_of({.window = 1, .keep = 1}, {1, 2}));
  save_prompt_file(path(), cache, {});
  const std::vector<std::byte> valid = memoir::test::file_bytes(path());
  int n_loaded = 0;
  const auto load = [&](const std::vector<std::byte>& bytes) {
    if (bytes == valid) return;
    try {
      load_prompt_file(SafetensorsFile(memoir::test::source_of(bytes)));
      ++n_loaded;
    } catch (const InputError&) {
    }
  };
  memoir::test::for_each_truncation(valid, load);
  memoir::test::for_each_damage(valid, load);
  EXPECT_EQ(n_loaded, 0);
}

}  // namespace
}  // namespace memoir::cache
