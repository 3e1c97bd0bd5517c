// Prompt-cache files: those in data/prompt_cache were written by mlx-lm (make_prompt_caches.py there), which also is
// where the expected contents come from: key rows are filled with their position, value rows with its negative.

#include "memoir/cache/prompt_file.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "damaged_bytes.h"
#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/safetensors.h"
#include "memoir/cache/arrays.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/recurrent.h"
#include "tests/cache_rows.h"
#include "tests/model_files.h"

namespace memoir::cache {
namespace {

namespace mx = mlx::core;

using memoir::test::TemporaryFolder;
using test::contents;
using test::feed;
using test::range;

PromptFile load_golden(const std::string& name) {
  return load_prompt_file(memoir::test::data("prompt_cache/" + name + ".safetensors"));
}

template <typename... Caches>
ModelCache model_of(std::unique_ptr<Caches>... caches) {
  std::vector<std::unique_ptr<LayerCache>> layers;
  (layers.push_back(std::move(caches)), ...);
  return ModelCache(std::move(layers));
}

std::unique_ptr<KVCache> fed(const KVOptions& options, int n_tokens) {
  auto cache = make_kv_cache(options);
  feed(*cache, n_tokens);
  return cache;
}

std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool are_equal(const mx::array& a, const mx::array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && mx::array_equal(a, b).item<bool>();
}

void expect_equal(const LayerCache& a, const LayerCache& b) {
  EXPECT_EQ(a.kind(), b.kind());
  EXPECT_EQ(a.offset(), b.offset());
  EXPECT_EQ(a.meta_state(), b.meta_state());
  const std::vector<mx::array> x = a.state();
  const std::vector<mx::array> y = b.state();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(are_equal(x[i], y[i])) << a.kind() << " " << i;
}

template <typename Error>
void expect_refused(const std::function<void()>& load, const std::string& reason) {
  try {
    load();
    ADD_FAILURE() << "loaded, expected an error about " << reason;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

// ---- mlx-lm's files

class GoldenOf : public testing::TestWithParam<std::string> {
 protected:
  PromptFile load(const std::string& name) const { return load_golden(name + "." + GetParam()); }
};

TEST_P(GoldenOf, PlainRowsComeWithoutTheirPadding) {
  const PromptFile file = load("kv");
  EXPECT_EQ(format_name(file.format), GetParam());
  ASSERT_EQ(file.cache.n_layers(), 2U);
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_EQ(file.cache.layer(i).kind(), "KVCache");
    EXPECT_EQ(contents(file.cache.attention(i).view()), range(0, 5));
    EXPECT_EQ(file.cache.layer(i).state()[0].dtype(), mx::float16);
  }
  EXPECT_EQ(file.metadata.user, (std::map<std::string, std::string>{{"about", "five"}, {"model", "a/b"}}));
  EXPECT_FALSE(file.metadata.tokens);
  EXPECT_EQ(file.metadata.model, "");
}

TEST_P(GoldenOf, RingsComeInOrderWhateverTheirTurn) {
  const PromptFile file = load("rotating");
  const std::vector<int> kept = joined(range(0, 2), range(7, 13));
  const std::vector<std::vector<int>> expected = {range(0, 13), range(0, 13), range(5, 13), kept, kept, kept};
  ASSERT_EQ(file.cache.n_layers(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(file.cache.layer(i).kind(), "RotatingKVCache");
    EXPECT_EQ(file.cache.layer(i).offset(), 13);
    EXPECT_EQ(contents(file.cache.attention(i).view()), expected[i]) << i;
  }
  // And goes on: mlx-lm's max_size 8 with 2 kept rows is a window of 6.
  const auto turned = file.cache.layer(3).copy();
  auto& ring = dynamic_cast<KVCache&>(*turned);
  ring.update(test::rows_at(13, 14, 1, test::kWidth, mx::float16),
              test::rows_at(13, 14, -1, test::kWidth, mx::float16));
  EXPECT_EQ(contents(ring.view()), joined(range(0, 2), range(8, 14)));
}

TEST_P(GoldenOf, QuantizedRowsStayTheSameCodes) {
  const PromptFile file = load("quantized");
  const mx::array positions = mx::reshape(mx::arange(0, 4, mx::float16), {1, 1, 4, 1});
  const mx::array rows = mx::contiguous(mx::broadcast_to(positions, {1, 1, 4, 32}));
  const int bits[] = {8, 4};
  for (const std::size_t i : {0U, 1U}) {
    const std::vector<mx::array> state = file.cache.layer(i).state();
    const std::vector<mx::array> expected = mx::quantize(rows, 32, bits[i]);
    ASSERT_EQ(state.size(), 6U);
    for (std::size_t part = 0; part < 3; ++part)
      EXPECT_TRUE(are_equal(state[part], expected[part])) << i << " " << part;
    EXPECT_EQ(file.cache.layer(i).meta_state(), (std::vector<std::string>{"4", "32", std::to_string(bits[i])}));
  }
}

// v1 has neither the offset of a chunk nor where its padding begins: the layer beside it tells.
TEST_P(GoldenOf, ChunksLoseTheRowsOfOlderOnes) {
  const PromptFile file = load("chunked");
  EXPECT_EQ(contents(file.cache.attention(0).view()), range(0, 9));
  EXPECT_EQ(contents(file.cache.attention(1).view()), range(8, 9));
  EXPECT_EQ(file.cache.layer(1).offset(), 9);
  EXPECT_EQ(dynamic_cast<KVCache&>(file.cache.layer(1)).options().chunk, 4);
}

TEST_P(GoldenOf, SlotsTakeTheirOffsetFromTheLayersBesideThem) {
  const PromptFile file = load("arrays");
  const auto& slots = dynamic_cast<const ArraysCache&>(file.cache.layer(0));
  EXPECT_EQ(slots.offset(), 6);
  ASSERT_EQ(slots.n_slots(), 2);
  EXPECT_TRUE(are_equal(slots.slot(0).value(), mx::full({1, 3, 4}, 1.0F)));
  EXPECT_TRUE(are_equal(slots.slot(1).value(), mx::full({1, 2, 4, 4}, 2.0F)));
}

TEST_P(GoldenOf, ListsKeepTheirChildren) {
  const PromptFile file = load("list");
  auto& first = dynamic_cast<CacheList&>(file.cache.layer(0));
  EXPECT_EQ(contents(first.child<AttentionCache>(0).view()), range(2, 6));
  EXPECT_TRUE(are_equal(first.child<ArraysCache>(1).slot(0).value(), mx::full({1, 2}, 1.0F)));
  auto& second = dynamic_cast<CacheList&>(file.cache.layer(1));
  EXPECT_EQ(contents(second.child<CacheList>(0).child<AttentionCache>(0).view()), range(0, 6));
  EXPECT_EQ(second.child<ArraysCache>(1).offset(), 6);
}

INSTANTIATE_TEST_SUITE_P(Formats, GoldenOf, testing::Values("v1", "v2"));

TEST(PromptFile, EmptyCachesKeepTheirOptions) {
  const PromptFile file = load_golden("empty.v2");
  EXPECT_EQ(file.cache.offset(), 0);
  const auto options = [&](std::size_t i) { return dynamic_cast<KVCache&>(file.cache.layer(i)).options(); };
  EXPECT_EQ(options(1).window, 6);
  EXPECT_EQ(options(1).keep, 2);
  EXPECT_EQ(options(2).quantization, (KVQuantization{4, 32}));
  EXPECT_EQ(options(3).chunk, 4);
  EXPECT_EQ(dynamic_cast<ArraysCache&>(file.cache.layer(4)).n_slots(), 2);
}

TEST(PromptFile, PaddingBelowZeroIsNone) {
  const PromptFile file = load_golden("padded.v2");
  const auto& slots = dynamic_cast<const ArraysCache&>(file.cache.layer(0));
  EXPECT_EQ(slots.left_padding(), (std::vector<int>{1, 0}));
  EXPECT_EQ(slots.lengths(), (std::vector<int>{4, 0}));
}

TEST(PromptFile, WhatCanNotBeKnownIsRefused) {
  expect_refused<UnsupportedError>([] { load_golden("no_offset.v2"); }, "how many tokens");
  std::vector<std::byte> bytes = memoir::test::file_bytes(memoir::test::data("prompt_cache/unknown.v2.safetensors"));
  const std::string_view kind = "BatchKVCache";
  const auto at = std::search(bytes.begin(), bytes.end(), kind.begin(), kind.end(),
                              [](std::byte a, char b) { return static_cast<char>(a) == b; });
  ASSERT_NE(at, bytes.end());
  *at = std::byte{'C'};
  expect_refused<UnsupportedError>([&] { load_prompt_file(SafetensorsFile(memoir::test::source_of(bytes))); },
                                   "CatchKVCache");
  expect_refused<FormatError>([] { load_prompt_file(memoir::test::data("safetensors/small.safetensors")); },
                              "not a prompt cache");
  expect_refused<FileError>([] { load_prompt_file("/nowhere/at.all"); }, "/nowhere/at.all");
}

// ---- memoir's own

class PromptFileOf : public testing::TestWithParam<PromptFormat> {
 protected:
  PromptFile round_trip(const ModelCache& cache, const PromptMetadata& metadata = {}) const {
    save_prompt_file(path(), cache, metadata, GetParam());
    return load_prompt_file(path());
  }
  std::string path() const { return (folder_.path() / "cache.safetensors").string(); }

  TemporaryFolder folder_;
};

TEST_P(PromptFileOf, EveryKindOfRowsComesBack) {
  for (const int n_tokens : {1, 7, 40, 300}) {
    std::vector<std::unique_ptr<LayerCache>> layers;
    for (const bool is_quantized : {false, true}) {
      for (const KVOptions& layout : {KVOptions{}, KVOptions{.window = 6}, KVOptions{.window = 6, .keep = 2},
                                      KVOptions{.chunk = 16}, KVOptions{.chunk = 1}}) {
        auto cache = make_kv_cache(layout);
        const mx::array rows = mx::random::normal({2, 3, n_tokens, 32}, mx::float16);
        cache->update(rows, mx::negative(rows));
        layers.push_back(is_quantized ? std::unique_ptr<LayerCache>(cache->to_quantized({4, 32})) : std::move(cache));
      }
    }
    layers.push_back(nullptr);
    const ModelCache cache(std::move(layers));
    std::vector<TokenId> tokens(static_cast<std::size_t>(n_tokens), 17);
    const PromptFile file = round_trip(cache, {"0123", "tiny", tokens, {{"k", "v \"\n"}}});
    ASSERT_EQ(file.cache.n_layers(), cache.n_layers());
    EXPECT_EQ(file.cache.find(10), nullptr);
    for (std::size_t i = 0; i < 10; ++i) expect_equal(file.cache.layer(i), cache.layer(i));
    EXPECT_EQ(file.format, GetParam());
    EXPECT_EQ(file.metadata.model, "0123");
    EXPECT_EQ(file.metadata.model_name, "tiny");
    EXPECT_EQ(file.metadata.tokens, tokens);
    EXPECT_EQ(file.metadata.user, (std::map<std::string, std::string>{{"k", "v \"\n"}}));
  }
}

TEST_P(PromptFileOf, StatesAndListsComeBack) {
  auto recurrent = std::make_unique<RecurrentCache>(RecurrentShape{3, 4, {2, 5}});
  recurrent->put({mx::random::normal({1, 3, 4}, mx::float16), mx::random::normal({1, 2, 5})}, 9);
  auto tail = std::make_unique<RecurrentCache>(RecurrentShape{2, 4, {}});
  tail->put({mx::random::normal({1, 2, 4})}, 9);
  auto scan = std::make_unique<RecurrentCache>(RecurrentShape{0, 0, {3, 3}});
  scan->put({std::nullopt, mx::random::normal({1, 3, 3})}, 9);
  auto mamba = std::make_unique<MambaCache>();
  mamba->set_slot(0, mx::random::normal({1, 2}));
  mamba->set_slot(1, mx::random::normal({1, 2, 2}));
  mamba->advance(9);
  std::vector<std::unique_ptr<LayerCache>> children;
  children.push_back(fed({.window = 4}, 9));
  children.push_back(mamba->copy());
  const ModelCache cache = model_of(std::move(recurrent), std::move(tail), std::move(scan), std::move(mamba),
                                    std::make_unique<CacheList>(std::move(children)));
  const PromptFile file = round_trip(cache);
  ASSERT_EQ(file.cache.n_layers(), 5U);
  for (std::size_t i = 0; i < 5; ++i) expect_equal(file.cache.layer(i), cache.layer(i));
}

// Right after 16 rows were taken back a ring has all that its next token sees, but not one row more.
TEST_P(PromptFileOf, ARingWithoutItsOldestRowComesBackAsItIs) {
  auto ring = fed({.window = 6, .keep = 2}, 60);
  ASSERT_EQ(ring->trim(16), 16);
  const ModelCache cache = model_of(std::move(ring));
  PromptFile file = round_trip(cache);
  expect_equal(file.cache.layer(0), cache.layer(0));
  // For mlx-lm, to which one that has turned is full, there is a row in its place.
  const auto rows = mx::load_safetensors(path()).first.at("0.0");
  EXPECT_EQ(rows.shape(2), 8);
  auto& again = dynamic_cast<KVCache&>(file.cache.layer(0));
  feed(again, 1);
  EXPECT_EQ(contents(again.view()), joined(range(0, 2), range(39, 45)));
}

TEST_P(PromptFileOf, EveryTruncationAndDamagedByteIsAnInputError) {
  std::vector<std::unique_ptr<LayerCache>> children;
  children.push_back(fed({.window = 2}, 3));
  auto slots = std::make_unique<ArraysCache>(1);
  slots->set_slot(0, mx::zeros({1, 2}));
  slots->advance(3);
  children.push_back(std::move(slots));
  auto small = make_kv_cache({});
  small->update(mx::ones({1, 1, 3, 2}, mx::float16), mx::ones({1, 1, 3, 2}, mx::float16));
  save_prompt_file(path(), model_of(std::move(small), std::make_unique<CacheList>(std::move(children))),
                   {"0123", "m", std::vector<TokenId>{1, 2, 3}, {}}, GetParam());
  const std::vector<std::byte> valid = memoir::test::file_bytes(path());
  EXPECT_NO_THROW(load_prompt_file(SafetensorsFile(memoir::test::source_of(valid))));
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

TEST_P(PromptFileOf, WhatIsWrongIsSaidAndTheOldFileStays) {
  const ModelCache cache = model_of(fed({}, 3));
  save_prompt_file(path(), cache, {}, GetParam());
  const std::string before = memoir::test::read_file(path());
  const ModelCache apart = model_of(fed({}, 3), fed({}, 4));
  EXPECT_THROW(save_prompt_file(path(), apart, {}, GetParam()), std::invalid_argument);
  EXPECT_THROW(save_prompt_file(path(), cache, {"", "", std::vector<TokenId>{1}, {}}, GetParam()),
               std::invalid_argument);
  EXPECT_THROW(save_prompt_file(path(), cache, {"", "", std::nullopt, {{"memoir", ""}}}, GetParam()),
               std::invalid_argument);
  EXPECT_THROW(save_prompt_file(path(), cache, {"", "\xff", std::nullopt, {}}, GetParam()), std::invalid_argument);
  EXPECT_THROW(save_prompt_file(path(), cache, {"", "", std::nullopt, {{"k", "\xff"}}}, GetParam()),
               std::invalid_argument);
  EXPECT_THROW(save_prompt_file(folder_.path(), cache, {}, GetParam()), FileError);
  EXPECT_THROW(save_prompt_file(folder_.path() / "none" / "cache", cache, {}, GetParam()), FileError);
  EXPECT_EQ(memoir::test::read_file(path()), before);
  int n_files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) ++n_files;
  EXPECT_EQ(n_files, 1);
}

INSTANTIATE_TEST_SUITE_P(Formats, PromptFileOf, testing::Values(PromptFormat::kV1, PromptFormat::kV2),
                         [](const auto& format) { return std::string(format_name(format.param)); });

// 4 MB in several pieces, each a part of each head's buffer, and numbers.
ModelCache large_cache() {
  const mx::array rows = mx::astype(mx::reshape(mx::arange(4 * 1025 * 64), {1, 4, 1025, 64}), mx::float32);
  auto first = make_kv_cache(KVOptions{});
  auto second = make_kv_cache(KVOptions{});
  first->update(rows, mx::negative(rows));
  second->update(mx::add(rows, mx::array(1.0F)), rows);
  return model_of(std::move(first), std::move(second));
}

TEST(PromptFile, RowsLieTogetherAndNumbersBehindThem) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "large.safetensors";
  const ModelCache cache = large_cache();
  save_prompt_file(path, cache, {});
  std::vector<std::uint64_t> sizes;
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const SafetensorsTensor& tensor : file.tensors()) sizes.push_back(tensor.size_bytes);
  const std::vector<std::uint64_t> rows(4, 4 * 1025 * 64 * 4);
  ASSERT_GT(sizes.size(), 4U) << "a scalar for each layer's offset at least";
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), sizes.begin()));
  EXPECT_LE(*std::max_element(sizes.begin() + 4, sizes.end()), 4U);
  const PromptFile loaded = load_prompt_file(path);
  for (std::size_t i = 0; i < 2; ++i) expect_equal(loaded.cache.layer(i), cache.layer(i));
}

// A file whose disk fails from some byte on.
class FailingSource final : public ByteSource {
 public:
  FailingSource(std::unique_ptr<ByteSource> whole, std::uint64_t end) : whole_(std::move(whole)), end_(end) {}

  const std::string& path() const override { return whole_->path(); }
  std::uint64_t size_bytes() const override { return whole_->size_bytes(); }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset < end_ && offset + out.size() > end_) throw FileError(path(), "", "reading failed");
    whole_->read(offset, out);
  }

 private:
  std::unique_ptr<ByteSource> whole_;
  std::uint64_t end_;
};

TEST(PromptFile, ADiskThatFailsInTheMiddleIsAnErrorOfTheFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "large.safetensors";
  save_prompt_file(path, large_cache(), {});
  for (const std::uint64_t end : {std::uint64_t{60'000}, std::uint64_t{1'500'000}, std::uint64_t{4'000'000}}) {
    const SafetensorsFile file(std::make_unique<FailingSource>(open_file(path), end));
    EXPECT_THROW(load_prompt_file(file), FileError) << end;
  }
}

TEST(PromptFile, V1CanNotHoldEmptyLayersSlotsOrPadding) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  const auto save = [&](const ModelCache& cache) { save_prompt_file(path, cache, {}, PromptFormat::kV1); };
  expect_refused<UnsupportedError>([&] { save(model_of(make_kv_cache({}))); }, "a cache without rows");
  expect_refused<UnsupportedError>([&] { save(model_of(std::make_unique<ArraysCache>(1))); }, "an empty slot");
  auto padded = std::make_unique<ArraysCache>(1, std::vector<int>{2});
  padded->set_slot(0, mx::zeros({1, 2}));
  expect_refused<UnsupportedError>([&] { save(model_of(std::move(padded))); }, "padding");
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Data of another program's file have no checksum: damage may go unnoticed there, but never crashes.
TEST(PromptFile, DamageToAnotherProgramsFileIsAnInputErrorOrACache) {
  for (const char* name : {"quantized.v1", "padded.v2"}) {
    const auto path = memoir::test::data("prompt_cache/" + std::string(name) + ".safetensors");
    const std::vector<std::byte> valid = memoir::test::file_bytes(path);
    const auto load = [](const std::vector<std::byte>& bytes) {
      try {
        load_prompt_file(SafetensorsFile(memoir::test::source_of(bytes)));
      } catch (const InputError&) {
      }
    };
    memoir::test::for_each_truncation(valid, load);
    memoir::test::for_each_damage(valid, load);
  }
}

TEST(PromptFile, MemoirsKeysAreThereTogetherOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "cache.safetensors").string();
  save_prompt_file(path, model_of(fed({}, 3)), {});
  auto [tensors, metadata] = mx::load_safetensors(path);
  for (auto& [name, tensor] : tensors) mx::eval(tensor);
  for (const char* key : {"0.memoir", "0.memoir_checksum"}) {
    auto without = metadata;
    without.erase(key);
    mx::save_safetensors(path, tensors, without);
    expect_refused<FormatError>([&] { load_prompt_file(path); }, "is missing");
  }
  auto changed = metadata;
  changed["0.more"] = "";
  mx::save_safetensors(path, tensors, changed);
  expect_refused<FormatError>([&] { load_prompt_file(path); }, "damaged or was changed");
}

// ---- Files that no program writes

class MadeUp : public testing::Test {
 protected:
  void SetUp() override {
    metadata_ = {{"1.0", "KVCache"}, {"2.0", ""}, {"2.1.0", "0.2"}, {"2.1.1", "scalar"}};
    tensors_.insert({"0.0", mx::zeros({1, 1, 4, 2})});
    tensors_.insert({"0.1", mx::zeros({1, 1, 4, 2})});
    tensors_.insert({"0.2", mx::array(3)});
  }

  void put(const std::string& name, const mx::array& a) { tensors_.insert_or_assign(name, a); }

  void expect(const std::string& reason) const {
    const std::string path = (folder_.path() / "cache.safetensors").string();
    mx::save_safetensors(path, tensors_, metadata_);
    expect_refused<FormatError>([&] { load_prompt_file(path); }, reason);
  }

  TemporaryFolder folder_;
  std::unordered_map<std::string, std::string> metadata_;
  std::unordered_map<std::string, mx::array> tensors_;
};

TEST_F(MadeUp, OffsetBeyondTheRows) {
  put("0.2", mx::array(5));
  expect("0: 4 rows at offset 5");
}
TEST_F(MadeUp, NegativeOffset) {
  put("0.2", mx::array(-1));
  expect("offset is -1");
}
TEST_F(MadeUp, OffsetOfAnotherType) {
  put("0.2", mx::array(3.0F));
  expect("0.2: is no single I32");
}
TEST_F(MadeUp, RowsOfAnotherRank) {
  put("0.1", mx::zeros({1, 4, 2}));
  expect("0.1: has 3 axes");
}
TEST_F(MadeUp, OtherRowsOfValues) {
  put("0.1", mx::zeros({1, 1, 3, 2}));
  expect("0.1: has 3 rows");
}
TEST_F(MadeUp, OtherHeadsOfValues) {
  put("0.1", mx::zeros({1, 2, 4, 2}));
  expect("0: [");
}
TEST_F(MadeUp, IntegersForRows) {
  put("0.0", mx::zeros({1, 1, 4, 2}, mx::int32));
  expect("0: [");
}
TEST_F(MadeUp, KeysAlone) {
  tensors_.erase("0.1");
  expect("item 1 before it is missing");
}
TEST_F(MadeUp, AGapBetweenLayers) {
  put("2.0", mx::zeros({1, 1, 4, 2}));
  expect("item 1 before it is missing");
}
TEST_F(MadeUp, ALayerWithoutAClass) {
  put("1.0", mx::zeros({1, 1, 4, 2}));
  expect("is a layer without a class");
}
TEST_F(MadeUp, AClassWithoutALayer) {
  metadata_["1.1"] = "KVCache";
  expect("1: has a class and no tensors");
}
TEST_F(MadeUp, ANumberWithALeadingZero) {
  put("0.01", mx::array(3));
  expect("is no tensor of a prompt cache");
}
TEST_F(MadeUp, AMarkWithoutATensor) {
  metadata_["2.2.0"] = "0.3";
  metadata_["2.2.1"] = "none";
  expect("0.3: is a scalar without a tensor");
}
TEST_F(MadeUp, AMarkThatIsUnknown) {
  metadata_["2.1.1"] = "float";
  expect("expected scalar, string or none");
}
TEST_F(MadeUp, RowsOfNoSequences) {
  for (const char* name : {"0.0", "0.1"}) put(name, mx::zeros({0, 1, 4, 2}));
  expect("0: [");
}
TEST_F(MadeUp, CodesThatAreNone) {
  metadata_ = {{"1.0", "QuantizedKVCache"}, {"2.0", ""}};
  const auto mark = [&](const std::string& n, const std::string& name, const std::string& what) {
    metadata_["2." + n + ".0"] = name;
    metadata_["2." + n + ".1"] = what;
  };
  tensors_.clear();
  for (const char* side : {"0.0.", "0.1."}) {
    put(side + std::string("0"), mx::zeros({1, 1, 4, 8}, mx::uint32));
    for (const char* part : {"1", "2"}) put(side + std::string(part), mx::zeros({1, 1, 4, 1}));
  }
  const std::vector<int> numbers = {4, 32, 8};  // offset, group_size, bits
  for (int i = 0; i < 3; ++i) {
    const std::string name = "0." + std::to_string(i + 2);
    put(name, mx::array(numbers[static_cast<std::size_t>(i)]));
    mark(std::to_string(i + 1), name, "scalar");
  }
  mark("4", "0.0.1", "none");
  put("0.0.1", mx::zeros({0}));
  expect("0.0.1: is none");
}
TEST_F(MadeUp, NumbersInTheNoteThatNoIntHolds) {
  metadata_["0.memoir_checksum"] = "0";
  for (const char* number : {"1e300", "3.5", "-1", "4294967299", "18446744073709551615", "-9223372036854775808", "true",
                             "null", "\"3\"", "[3]"}) {
    metadata_["0.memoir"] = R"({"offset": )" + std::string(number) + "}";
    expect("memoir: ");
    metadata_["0.memoir"] = R"({"offset": 3, "tokens": [1, 2, )" + std::string(number) + "]}";
    expect(number == std::string("-1") ? "does not match" : "memoir: ");
    metadata_["0.memoir"] = R"({"offset": 3, "unfilled": {"0": )" + std::string(number) + "}}";
    expect(number == std::string("-1") ? "does not match" : "memoir: ");
  }
}
TEST_F(MadeUp, OffsetsApart) {
  for (const char* name : {"1.0", "1.1"}) put(name, mx::zeros({1, 1, 4, 2}));
  put("1.2", mx::array(4));
  metadata_["1.1"] = "KVCache";
  metadata_["2.2.0"] = "1.2";
  metadata_["2.2.1"] = "scalar";
  expect("1: is at offset 4, another layer at 3");
}
TEST_F(MadeUp, ListsWithoutEnd) {
  metadata_ = {{"1.0", "CacheList"}, {"2.0", ""}};
  tensors_.clear();
  std::string key = "0";
  for (int i = 0; i < 13; ++i) key += ".0.0";
  put(key, mx::array(3));
  expect("is no tensor of a prompt cache");
}

// mlx-lm writes the chunk size as it is, which may be None: then nothing is ever cut off.
TEST_F(MadeUp, AChunkedCacheWithoutASizeKeepsEveryRow) {
  metadata_ = {{"1.0", "ChunkedKVCache"}, {"2.0", ""},       {"2.1.0", "0.2"}, {"2.1.1", "scalar"},
               {"2.2.0", "0.3"},          {"2.2.1", "none"}, {"2.3.0", "0.4"}, {"2.3.1", "scalar"}};
  put("0.3", mx::zeros({0}));
  put("0.4", mx::array(0));
  const std::string path = (folder_.path() / "cache.safetensors").string();
  mx::save_safetensors(path, tensors_, metadata_);
  const PromptFile v2 = load_prompt_file(path);
  EXPECT_EQ(v2.cache.layer(0).kind(), "KVCache");
  EXPECT_EQ(v2.cache.offset(), 3);
  put("0.4", mx::array(1));
  expect("chunk_size is None");

  for (const char* name : {"0.2", "0.3", "0.4"}) tensors_.erase(name);
  mx::save_safetensors(path, tensors_, {{"0.0.0", "None"}, {"0.0.1", "0"}, {"2.0", "ChunkedKVCache"}});
  const PromptFile v1 = load_prompt_file(path);
  EXPECT_EQ(v1.cache.layer(0).kind(), "KVCache");
  EXPECT_EQ(v1.cache.offset(), 4);
}

// ---- fitted

TEST(Fitted, SlotsBecomeTheRecurrentCacheInTheirPlace) {
  const RecurrentShape shape{3, 4, {2, 5}};
  const ModelCache made = model_of(std::make_unique<RecurrentCache>(shape), make_kv_cache({}));
  auto slots = std::make_unique<ArraysCache>(2);
  slots->set_slot(0, mx::ones({1, 3, 4}, mx::float16));
  slots->set_slot(1, mx::ones({1, 2, 5}));
  slots->advance(3);
  const ModelCache cache = fitted(model_of(slots->copy(), fed({}, 3)), made);
  EXPECT_EQ(cache.layer(0).kind(), "RecurrentCache");
  EXPECT_EQ(cache.offset(), 3);
  EXPECT_EQ(fitted(model_of(std::make_unique<ArraysCache>(2), make_kv_cache({})), made).offset(), 0);
  slots->set_slot(1, mx::ones({1, 2, 6}));
  EXPECT_THROW(fitted(model_of(std::move(slots), fed({}, 3)), made), std::invalid_argument);
}

TEST(Fitted, RefusesOtherKindsWindowsAndCounts) {
  EXPECT_THROW(fitted(model_of(fed({}, 3)), model_of(make_kv_cache({.window = 4}))), std::invalid_argument);
  EXPECT_THROW(fitted(model_of(fed({.window = 5}, 3)), model_of(make_kv_cache({.window = 4}))), std::invalid_argument);
  EXPECT_THROW(fitted(model_of(fed({}, 3)), model_of(make_kv_cache({}), make_kv_cache({}))), std::invalid_argument);
  EXPECT_THROW(fitted(model_of(fed({}, 3)), model_of(std::make_unique<ArraysCache>(1))), std::invalid_argument);
  const ModelCache quantized = model_of(make_kv_cache({.quantization = KVQuantization{}}));
  EXPECT_THROW(fitted(model_of(fed({}, 3)), quantized), std::invalid_argument);
  EXPECT_EQ(fitted(model_of(fed({}, 3)), quantized, RowForms::kAskedOrDense).offset(), 3);
}

TEST(Fitted, RowsStayInTheirTypeAndFormUnlessAnotherIsAskedFor) {
  const auto rows = [](int n) { return mx::ones({1, 2, n, 32}); };
  const auto fit = [&](const KVOptions& own, const KVOptions& asked, RowForms forms = RowForms::kAsked) {
    auto cache = make_kv_cache(own);
    cache->update(rows(3), rows(3));
    return fitted(model_of(std::move(cache)), model_of(make_kv_cache(asked)), forms);
  };
  const KVQuantization eight{8, 32};
  ModelCache halves = fit({.dtype = mx::float16}, {});
  auto& layer = dynamic_cast<KVCache&>(halves.layer(0));
  layer.update(rows(1), rows(1));
  EXPECT_EQ(layer.state()[0].dtype(), mx::float16);
  EXPECT_EQ(fit({.dtype = mx::float16}, {.dtype = mx::float16}).offset(), 3);
  EXPECT_EQ(fit({.dtype = mx::float16, .quantization = eight}, {.quantization = eight}).offset(), 3);
  EXPECT_EQ(fit({.quantization = eight}, {}).layer(0).kind(), "QuantizedKVCache");
  EXPECT_THROW(fit({.dtype = mx::float16}, {.dtype = mx::float32}), std::invalid_argument);
  EXPECT_EQ(fit({.quantization = eight}, {.dtype = mx::float16}, RowForms::kAny).layer(0).kind(), "QuantizedKVCache");
  EXPECT_EQ(fit({}, {.dtype = mx::float16}, RowForms::kAny).state()[0].dtype(), mx::float32);
  EXPECT_THROW(fit({}, {.dtype = mx::float16}), std::invalid_argument);
  EXPECT_THROW(fit({.quantization = eight}, {.dtype = mx::float32}), std::invalid_argument);
  EXPECT_THROW(fit({.quantization = eight}, {.quantization = KVQuantization{4, 32}}), std::invalid_argument);
}

}  // namespace
}  // namespace memoir::cache
