// Every family against transformers: logits and greedy tokens of tiny models in float32, in both spellings of their
// configuration (tests/README.md).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/transaction.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "memoir/kernels/device.h"
#include "memoir/model/gguf_names.h"
#include "memoir/model/load.h"
#include "memoir/model/registry.h"
#include "tests/golden.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using test::copied_model;
using test::edit_tensors;
using test::expected_of;
using test::kTolerance;
using test::load_error;
using test::logits_in_chunks;
using test::max_difference;
using test::TemporaryFolder;
using test::Tensors;
using test::tokens_of;

const std::vector<std::string> kModels = {"cohere2",
                                          "deepseek_v3",
                                          "falcon_h1",
                                          "gemma3",
                                          "gemma3_mm",
                                          "gemma4",
                                          "gemma4_mm",
                                          "gemma4_moe",
                                          "gemma4_unified_mm",
                                          "gpt_oss",
                                          "gpt_oss_mxfp4",
                                          "granitemoehybrid",
                                          "granitemoehybrid_dense",
                                          "lfm2",
                                          "llama",
                                          "llama4",
                                          "llama4_mm",
                                          "mamba2",
                                          "mistral",
                                          "olmo3",
                                          "qwen2",
                                          "qwen3",
                                          "qwen3_5",
                                          "qwen3_5_mm",
                                          "qwen3_5_moe",
                                          "qwen3_moe",
                                          "qwen3_next"};

bool are_same_bits(const mx::array& a, const mx::array& b) {
  return mx::array_equal(a, b).item<bool>();
}

// Tokens of no particular text, more than any window or chunk.
std::vector<TokenId> some_tokens(int n, int n_vocab) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 37 + 11) % n_vocab);
  return tokens;
}

struct Golden {
  std::string name;
  std::string config;
};

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  for (const std::string& name : kModels) {
    all.push_back({name, "config.json"});
    all.push_back({name, "config.alt.json"});
  }
  return all;
}

class FamilyGolden : public testing::TestWithParam<Golden> {};
INSTANTIATE_TEST_SUITE_P(Spellings, FamilyGolden, testing::ValuesIn(goldens()), [](const auto& golden) {
  return golden.param.name + (golden.param.config == "config.json" ? "_first" : "_second");
});

TEST_P(FamilyGolden, LogitsOfThePromptAgreeAndAreTheSameBitsInChunksOfAnySize) {
  const TemporaryFolder folder;
  const model::LoadedModel loaded = model::load_model(copied_model(folder, GetParam().name, GetParam().config));
  const Tensors expected = expected_of(GetParam().name);
  const std::vector<TokenId> prompt = tokens_of(expected.at("prompt"));
  const mx::array whole = logits_in_chunks(*loaded.model, prompt, prompt.size());
  ASSERT_EQ(whole.shape(), expected.at("logits").shape());
  const float difference = max_difference(whole, expected.at("logits"));
  EXPECT_LT(difference, kTolerance);
  RecordProperty("max_difference", std::to_string(difference));
  for (const std::size_t n_chunk : {1U, 7U}) {
    EXPECT_TRUE(are_same_bits(logits_in_chunks(*loaded.model, prompt, n_chunk), whole)) << "chunks of " << n_chunk;
  }
}

TEST_P(FamilyGolden, GreedyTokensAndTheirLogitsAgree) {
  const TemporaryFolder folder;
  const model::LoadedModel loaded = model::load_model(copied_model(folder, GetParam().name, GetParam().config));
  const Tensors expected = expected_of(GetParam().name);
  std::vector<TokenId> tokens = tokens_of(expected.at("prompt"));
  const std::vector<TokenId> greedy = tokens_of(expected.at("greedy"));
  engine::Session session(*loaded.model);
  engine::GenerateOptions options;
  options.max_tokens = static_cast<int>(greedy.size());
  options.prefill_chunk = 16;
  EXPECT_EQ(engine::generate(session, tokens, options, nullptr).tokens, greedy);

  const auto n_prompt = static_cast<int>(tokens.size());
  tokens.insert(tokens.end(), greedy.begin(), greedy.end() - 1);
  const mx::array logits = logits_in_chunks(*loaded.model, tokens, tokens.size());
  const mx::array last_rows = mx::slice(logits, {n_prompt - 1, 0}, {logits.shape(0), logits.shape(1)});
  EXPECT_LT(max_difference(last_rows, expected.at("greedy_logits")), kTolerance);
  // And decode after decode: with mistral's window of 8 the ring of 24 rows turns three times.
  EXPECT_TRUE(are_same_bits(logits_in_chunks(*loaded.model, tokens, 1), logits));
}

class Family : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Family, testing::ValuesIn(kModels), [](const auto& model) { return model.param; });

// A sequence on its way, and what its logits are when it runs alone.
struct Alone {
  std::vector<TokenId> tokens;
  mx::array logits;  // [T, V]
  cache::ModelCache cache;
};

TEST_P(Family, SequencesOfAnyLengthsInOnePassHaveTheBitsThatTheyHaveAlone) {
  const model::LoadedModel loaded = model::load_model(test::data(GetParam()));
  const int n_vocab = loaded.model->config().vocab_size;
  std::vector<Alone> all;
  for (const std::size_t n_tokens : {90U, 41U, 150U, 5U}) {
    std::vector<TokenId> tokens = some_tokens(static_cast<int>(n_tokens), n_vocab);
    tokens[0] = static_cast<TokenId>(n_tokens % static_cast<std::size_t>(n_vocab));
    const mx::array logits = logits_in_chunks(*loaded.model, tokens, n_tokens);
    all.push_back({std::move(tokens), logits, loaded.model->make_cache()});
  }
  std::mt19937 random(20261128);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (bool is_done = false; !is_done;) {
    is_done = true;
    std::vector<model::SequenceTokens> sequences;
    std::vector<mx::array> expected;
    for (Alone& one : all) {
      const int offset = one.cache.offset();
      const int n_left = static_cast<int>(one.tokens.size()) - offset;
      if (n_left == 0) continue;
      is_done = false;
      if (number(0, 3) == 0) continue;
      const int n_tokens = std::min(n_left, number(0, 1) == 0 ? 1 : number(1, 40));
      const auto rows = static_cast<model::LogitRows>(number(0, 2));
      const int end = offset + n_tokens;
      const int first = rows == model::LogitRows::kAll ? offset : rows == model::LogitRows::kLast ? end - 1 : end;
      sequences.push_back(
          {std::span(one.tokens).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(n_tokens)),
           &one.cache, rows});
      expected.push_back(mx::slice(one.logits, {first, 0}, {end, n_vocab}));
    }
    if (sequences.empty()) continue;
    const mx::array logits = loaded.model->forward(sequences);
    ASSERT_TRUE(are_same_bits(logits, mx::concatenate(expected, 0)));
    for (Alone& one : all) one.cache.materialize();
  }
}

TEST(ModelForward, SequencesThatDoNotFitChangeNoCache) {
  const model::LoadedModel loaded = model::load_model(test::data("llama"));
  cache::ModelCache first = loaded.model->make_cache();
  cache::ModelCache second = loaded.model->make_cache();
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<TokenId> outside = {1, loaded.model->config().vocab_size};
  using Sequences = std::vector<model::SequenceTokens>;
  for (const Sequences& wrong :
       {Sequences{}, Sequences{{tokens, &first}, {tokens, &first}}, Sequences{{tokens, &first}, {outside, &second}},
        Sequences{{tokens, &first}, {{}, &second}}}) {
    EXPECT_THROW(loaded.model->forward(wrong), std::invalid_argument);
    EXPECT_EQ(first.offset(), 0);
    EXPECT_EQ(second.offset(), 0);
  }
}

TEST_P(Family, LogitsAreTheSameBitsInChunksOfAnySizeOnAnyThreads) {
  const model::LoadedModel loaded = model::load_model(test::data(GetParam()));
  const std::vector<TokenId> tokens = some_tokens(150, loaded.model->config().vocab_size);
  const int before = kernels::cpu_threads();
  const mx::array whole = logits_in_chunks(*loaded.model, tokens, tokens.size());
  for (const std::size_t n_chunk : {1U, 7U, 64U}) {
    for (const int n_threads : {1, 2, 3}) {
      kernels::set_cpu_threads(n_threads);
      EXPECT_TRUE(are_same_bits(logits_in_chunks(*loaded.model, tokens, n_chunk), whole))
          << "chunks of " << n_chunk << ", threads " << n_threads;
    }
  }
  kernels::set_cpu_threads(before);
}

TEST_P(Family, SequencesTogetherGiveTheBitsOfEachAlone) {
  const model::LoadedModel loaded = model::load_model(test::data(GetParam()));
  constexpr int kSequences = 3;
  constexpr int kTokens = 20;
  const std::vector<TokenId> tokens = some_tokens(kSequences * kTokens, loaded.model->config().vocab_size);
  cache::ModelCache cache = loaded.model->make_cache();
  const mx::array together = loaded.model->forward(tokens, cache, model::LogitRows::kAll, kSequences);
  for (int i = 0; i < kSequences; ++i) {
    engine::Session session(*loaded.model);
    const auto own = std::span(tokens).subspan(static_cast<std::size_t>(i * kTokens), kTokens);
    const mx::array alone = mx::squeeze(session.forward(own, model::LogitRows::kAll), 0);
    EXPECT_TRUE(are_same_bits(mx::take(together, i, 0), alone)) << "sequence " << i;
  }
  EXPECT_THROW(loaded.model->forward(tokens, cache, model::LogitRows::kAll, 7), std::invalid_argument);
  EXPECT_THROW(loaded.model->forward(tokens, cache, model::LogitRows::kAll, 0), std::invalid_argument);
  if (cache.find(0) && dynamic_cast<const cache::AttentionCache*>(cache.find(0))) {
    EXPECT_THROW(loaded.model->forward(tokens, cache, model::LogitRows::kAll, 2), std::invalid_argument);
    EXPECT_EQ(cache.offset(), kTokens);
  }
}

TEST_P(Family, ALastRowAloneIsTheLastOfAllRows) {
  const model::LoadedModel loaded = model::load_model(test::data(GetParam()));
  const Tensors expected = expected_of(GetParam());
  const std::vector<TokenId> prompt = tokens_of(expected.at("prompt"));
  const int index = static_cast<int>(prompt.size()) - 1;
  engine::Session session(*loaded.model);
  const mx::array last = session.forward(prompt, model::LogitRows::kLast);
  ASSERT_EQ(last.shape(1), 1);
  const mx::array all = logits_in_chunks(*loaded.model, prompt, prompt.size());
  EXPECT_TRUE(are_same_bits(mx::flatten(last), mx::take(all, index, 0)));
  EXPECT_LT(max_difference(mx::flatten(last), mx::take(expected.at("logits"), index, 0)), kTolerance);
}

// Snapshots of all layers that keep something.
std::vector<std::unique_ptr<cache::Snapshot>> snapshots_of(const cache::ModelCache& cache) {
  std::vector<std::unique_ptr<cache::Snapshot>> snapshots;
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    snapshots.push_back(cache.find(i) ? cache.find(i)->snapshot(0) : nullptr);
  }
  return snapshots;
}

mx::array logits_after(const model::Model& model, cache::ModelCache& cache, std::span<const TokenId> tokens) {
  const mx::array logits = model.forward(tokens, cache, model::LogitRows::kAll);
  mx::eval(logits);
  return logits;
}

TEST_P(Family, SnapshotsAtThreeOffsetsRestoredElsewhereGoOnWithTheSameBits) {
  const model::LoadedModel loaded = model::load_model(test::data(GetParam()));
  const model::Model& model = *loaded.model;
  const std::vector<TokenId> tokens = some_tokens(60, model.config().vocab_size);
  const auto part = [&](int begin, int n) {
    return std::span(tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
  };
  cache::ModelCache cache = model.make_cache();
  for (const int offset : {5, 17, 40}) {
    logits_after(model, cache, part(cache.offset(), offset - cache.offset()));
    const auto snapshots = snapshots_of(cache);
    cache::ModelCache restored = model.make_cache();
    logits_after(model, restored, part(30, 9));  // of another text
    restored.free();
    for (std::size_t i = 0; i < snapshots.size(); ++i) {
      if (snapshots[i]) {
        ASSERT_TRUE(restored.layer(i).restore(snapshots[i].get(), offset)) << i;
      }
    }
    ASSERT_EQ(restored.offset(), offset);
    cache::ModelCache going_on = cache.copy();
    const mx::array expected = logits_after(model, going_on, part(offset, 12));
    EXPECT_TRUE(are_same_bits(logits_after(model, restored, part(offset, 12)), expected)) << offset;
  }
}

// Where the keys and values, or the states, of a layer lie.
void add_memory(const cache::LayerCache* cache, std::vector<const void*>& memory) {
  if (const auto* list = dynamic_cast<const cache::CacheList*>(cache)) {
    for (std::size_t i = 0; i < list->n_children(); ++i) add_memory(list->find(i), memory);
  } else if (const auto* attention = dynamic_cast<const cache::AttentionCache*>(cache)) {
    const cache::History history = *attention->view();
    memory.push_back(history.keys.data.data<void>());
    memory.push_back(history.values.data.data<void>());
  } else if (cache) {
    for (const mx::array& state : cache->state()) memory.push_back(state.data<void>());
  }
}

std::vector<const void*> cache_memory(const cache::ModelCache& cache) {
  std::vector<const void*> memory;
  for (std::size_t i = 0; i < cache.n_layers(); ++i) add_memory(cache.find(i), memory);
  return memory;
}

// A copy would lie elsewhere, since what it is made from is still there. The first step is left out: after a long
// prompt it makes rings smaller.
TEST_P(Family, ADecodeStepCopiesNoCache) {
  const model::LoadedModel loaded = model::load_model(test::data(GetParam()));
  engine::Session session(*loaded.model);
  mx::eval(session.forward(some_tokens(300, loaded.model->config().vocab_size), model::LogitRows::kLast));
  std::vector<const void*> memory;
  for (int step = 0; step < 6; ++step) {
    mx::eval(session.forward(std::vector<TokenId>{7}, model::LogitRows::kLast));
    session.cache().materialize();
    mx::synchronize();
    const std::vector<const void*> now = cache_memory(session.cache());
    if (step > 0) {
      EXPECT_EQ(now, memory) << "step " << step;
    }
    memory = now;
  }
}

const model::FamilyInfo& info_of(const std::string& model_type) {
  static const std::vector<model::FamilyInfo> kAll = model::families();
  return *std::ranges::find(kAll, model_type, &model::FamilyInfo::model_type);
}

void expect_named(const cache::LayerCache& cache, const model::FamilyInfo& info) {
  EXPECT_NE(info.caches.find(cache.kind()), std::string_view::npos) << cache.kind();
  const auto* list = dynamic_cast<const cache::CacheList*>(&cache);
  for (std::size_t i = 0; list && i < list->n_children(); ++i) expect_named(*list->find(i), info);
}

TEST_P(Family, ItsCachesAreThoseThatTheListOfFamiliesNames) {
  const model::LoadedModel loaded = model::load_model(test::data(GetParam()));
  const model::FamilyInfo& info = info_of(loaded.model->config().model_type);
  cache::ModelCache cache = loaded.model->make_cache();
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    if (cache.find(i)) expect_named(*cache.find(i), info);
  }
  EXPECT_EQ(!cache::Transaction::refusal(cache, 8), info.takes_drafts());
  logits_after(*loaded.model, cache, some_tokens(100, 100));
  if (info.rewinds_anywhere()) {
    EXPECT_TRUE(cache.rewind(1));
  }
}

TEST(Families, AllHaveAGoldenAndTheirGgufNamesAreKnown) {
  std::set<std::string> with_golden;
  for (const std::string& name : kModels) {
    with_golden.insert(model::read_config(test::data(name)).model_type);
  }
  for (const model::FamilyInfo& info : model::families()) {
    EXPECT_TRUE(with_golden.contains(std::string(info.model_type))) << info.model_type;
    const bool is_read_as_llama = info.model_type == "mistral";
    EXPECT_EQ(!info.gguf.empty(), model::has_gguf_names(info.model_type) || is_read_as_llama) << info.model_type;
  }
}

bool is_of_other_media(const std::string& name) {
  return name.find("vision") != std::string::npos || name.find("visual") != std::string::npos ||
         name.starts_with("multi_modal");
}

TEST_P(Family, EveryMissingTensorIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, GetParam());
  const std::string file = (path / "model.safetensors").string();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : mx::load_safetensors(file).first) names.push_back(name);
  std::ranges::sort(names);
  std::erase_if(names, is_of_other_media);
  // Every fifth: each kind of tensor comes up in some layer.
  for (std::size_t i = 0; i < names.size(); i += 5) {
    test::fs::copy_file(test::data(GetParam()) / "model.safetensors", file, test::fs::copy_options::overwrite_existing);
    edit_tensors(path, [&](Tensors& tensors) { tensors.erase(names[i]); });
    const std::string error = load_error(path);
    EXPECT_NE(error, "no error") << names[i];
    EXPECT_MENTIONS(error, names[i].substr(std::min(names[i].find("layers."), names[i].rfind("model.") + 6)));
  }
}

TEST_P(Family, EveryMisshapenTensorIsNamedWithBothShapes) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, GetParam());
  const std::string file = (path / "model.safetensors").string();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : mx::load_safetensors(file).first) {
    if (!is_of_other_media(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  for (std::size_t i = 0; i < names.size(); i += 7) {
    test::fs::copy_file(test::data(GetParam()) / "model.safetensors", file, test::fs::copy_options::overwrite_existing);
    edit_tensors(path, [&](Tensors& tensors) { tensors.insert_or_assign(names[i], mx::zeros({3, 5})); });
    EXPECT_MENTIONS(load_error(path), names[i] + ": has shape (3,5), expected (");
  }
}

TEST_P(Family, AnExtraTensorIsNamed) {
  const TemporaryFolder folder;
  const test::fs::path path = copied_model(folder, GetParam());
  edit_tensors(path, [](Tensors& tensors) { tensors.insert_or_assign("model.layers.0.extra.weight", mx::zeros({4})); });
  EXPECT_MENTIONS(load_error(path), "model.layers.0.extra.weight");
}

}  // namespace
}  // namespace memoir
