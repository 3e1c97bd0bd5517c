// Models over the cells of several sequences: the bits that each sequence gets alone, samples of one prompt, and
// contexts that shift. The tiny models are those of tests/README.md.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/cache/cell_caches.h"
#include "memoir/engine/context_shift.h"
#include "memoir/engine/samples.h"
#include "memoir/engine/session.h"
#include "tests/golden.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using test::data;
using test::max_difference;

const std::vector<std::string> kAttention = {"llama",   "mistral", "qwen3",   "qwen3_moe", "gemma3",     "gemma4",
                                             "gpt_oss", "llama4",  "cohere2", "olmo3",     "deepseek_v3"};

std::vector<TokenId> some_tokens(int n, int n_vocab, int step = 37) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * step + 11) % n_vocab);
  return tokens;
}

bool are_same_bits(const mx::array& a, const mx::array& b) {
  return a.shape() == b.shape() && mx::array_equal(a, b).item<bool>();
}

class CellsOfFamily : public testing::TestWithParam<std::string> {
 protected:
  const model::LoadedModel loaded_ = model::load_model(data(GetParam()));
  const model::Model& model_ = *loaded_.model;
  const int n_vocab_ = loaded_.model->config().vocab_size;
};
INSTANTIATE_TEST_SUITE_P(Models, CellsOfFamily, testing::ValuesIn(kAttention),
                         [](const auto& one) { return one.param; });

// Each sequence in a cache of its own.
class Alone {
 public:
  explicit Alone(const model::Model& model) : model_(model) {}

  mx::array forward(int sequence, const std::vector<TokenId>& tokens) {
    auto found = caches_.find(sequence);
    if (found == caches_.end()) found = caches_.emplace(sequence, model_.make_cache()).first;
    return mx::squeeze(model_.forward(tokens, found->second, model::LogitRows::kAll), 0);
  }

  void fork(int from, int to) { caches_.insert_or_assign(to, caches_.at(from).copy()); }

 private:
  const model::Model& model_;
  std::map<int, cache::ModelCache> caches_;
};

TEST_P(CellsOfFamily, SequencesThatShareTheirBeginningGetTheBitsThatTheyGetAlone) {
  cache::CellCaches cells = cache::make_cell_caches(
      model_.make_cache(), {.max_sequences = 3, .capacity = 120, .n_shared = 40, .max_batch = 64});
  Alone alone(model_);
  const auto feed = [&](const std::vector<int>& sequences, const std::vector<std::vector<TokenId>>& tokens) {
    std::vector<model::CellTokens> parts;
    std::vector<mx::array> expected;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      parts.push_back({tokens[i], sequences[i], model::LogitRows::kAll});
      expected.push_back(alone.forward(sequences[i], tokens[i]));
    }
    const auto logits = model_.forward(cells, parts);
    ASSERT_TRUE(logits);
    ASSERT_TRUE(are_same_bits(*logits, mx::concatenate(expected, 0))) << "at " << cells.offset(sequences[0]);
  };
  feed({0}, {some_tokens(40, n_vocab_)});
  for (int s = 1; s < 3; ++s) {
    cells.copy_prefix(0, s, 40);
    alone.fork(0, s);
  }
  for (int i = 0; i < 12; ++i) {
    feed({0, 1, 2}, {{(i * 7) % n_vocab_}, {(i * 5 + 1) % n_vocab_}, {(i * 3 + 2) % n_vocab_}});
  }
  feed({2, 0}, {some_tokens(9, n_vocab_, 5), some_tokens(3, n_vocab_, 3)});
  const auto part = some_tokens(2, n_vocab_);
  const std::vector<model::CellTokens> twice = {{part, 1}, {part, 1}};
  EXPECT_THROW(model_.forward(cells, twice), std::invalid_argument);
  const std::vector<model::CellTokens> unknown = {{part, 3}};
  EXPECT_THROW(model_.forward(cells, unknown), std::invalid_argument);
  EXPECT_EQ(cells.offset(1), 52);
}

TEST_P(CellsOfFamily, FullCellsAreARefusalThatChangesNothing) {
  cache::CellCaches cells = cache::make_cell_caches(
      model_.make_cache(), {.max_sequences = 2, .capacity = 20, .n_shared = 20, .max_batch = 32});
  const std::vector<TokenId> tokens = some_tokens(16, n_vocab_);
  const std::vector<model::CellTokens> first = {{tokens, 0}};
  const std::vector<model::CellTokens> second = {{tokens, 1}};
  ASSERT_TRUE(model_.forward(cells, first));
  EXPECT_FALSE(model_.forward(cells, second));
  EXPECT_EQ(cells.offset(1), 0);
  const std::vector<TokenId> one = {3};
  const std::vector<model::CellTokens> next = {{one, 0, model::LogitRows::kAll}};
  Alone alone(model_);
  alone.forward(0, tokens);
  EXPECT_TRUE(are_same_bits(*model_.forward(cells, next), alone.forward(0, one)));
}

// K samples are K runs alone with the same seeds.
TEST_P(CellsOfFamily, SamplesAreRunsAloneWithTheirSeeds) {
  const std::vector<TokenId> prompt = some_tokens(33, n_vocab_);
  engine::GenerateOptions options;
  options.max_tokens = 20;
  options.prefill_chunk = 13;
  options.sampler.temperature = 1.5;
  options.sampler.repetition_penalty = 1.2;
  options.sampler.seed = 100;
  options.stop_tokens = {7, 8, 9, 10, 11, 12};  // so that samples end at different times
  const engine::Samples samples = engine::generate_samples(model_, {}, prompt, options, 5, nullptr);
  ASSERT_EQ(samples.completions.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    engine::GenerateOptions one = options;
    one.sampler.seed = 100 + i;
    engine::Session session(model_);
    const engine::Completion alone = engine::generate(session, prompt, one, nullptr);
    EXPECT_EQ(samples.seeds[i], 100 + i);
    EXPECT_EQ(samples.completions[i].tokens, alone.tokens) << i;
    EXPECT_EQ(samples.completions[i].finish_reason, alone.finish_reason) << i;
    EXPECT_EQ(samples.completions[i].prompt_tokens, 33);
    EXPECT_EQ(samples.completions[i].cached_tokens, i == 0 ? 0 : 33);
  }
}

TEST(Samples, QuantizedAndBoundedCachesGiveTheTokensOfRunsAlone) {
  const model::LoadedModel loaded = model::load_model(data("llama"));
  const std::vector<TokenId> prompt = some_tokens(30, loaded.model->config().vocab_size);
  engine::GenerateOptions options;
  options.max_tokens = 25;
  options.sampler.temperature = 1;
  options.sampler.seed = 1;
  std::vector<cache::CacheOptions> kinds(3);
  kinds[0].dtype = mx::float16;
  kinds[1].max_size = 20;
  kinds[2].max_size = 500;
  if (loaded.model->config().head_dim % 32 == 0) kinds[0].quantization = cache::KVQuantization{8, 32};
  for (const cache::CacheOptions& kind : kinds) {
    const engine::Samples samples = engine::generate_samples(*loaded.model, kind, prompt, options, 3, nullptr);
    for (std::size_t i = 0; i < 3; ++i) {
      engine::GenerateOptions one = options;
      one.sampler.seed = 1 + i;
      engine::Session session(*loaded.model, kind);
      EXPECT_EQ(samples.completions[i].tokens, engine::generate(session, prompt, one, nullptr).tokens);
    }
  }
}

TEST(Samples, StopAtTheContextsEndAsARunAloneDoes) {
  const model::LoadedModel loaded = model::load_model(data("llama"));
  const int context = loaded.model->context();
  const std::vector<TokenId> prompt = some_tokens(context - 3, loaded.model->config().vocab_size);
  engine::GenerateOptions options;
  options.max_tokens = 20;
  options.sampler.seed = 1;
  const engine::Samples samples = engine::generate_samples(*loaded.model, {}, prompt, options, 2, nullptr);
  engine::Session session(*loaded.model);
  const engine::Completion alone = engine::generate(session, prompt, options, nullptr);
  EXPECT_EQ(alone.tokens.size(), 4U);
  EXPECT_EQ(samples.completions[0].tokens, alone.tokens);
  EXPECT_EQ(samples.completions[1].tokens, alone.tokens);  // greedy
}

TEST(Samples, NothingToGenerateAndACancelEndAllOfThem) {
  const model::LoadedModel loaded = model::load_model(data("llama"));
  const std::vector<TokenId> prompt = some_tokens(10, loaded.model->config().vocab_size);
  engine::GenerateOptions options;
  options.max_tokens = 0;
  const engine::Samples none = engine::generate_samples(*loaded.model, {}, prompt, options, 2, nullptr);
  EXPECT_TRUE(none.completions[1].tokens.empty());
  EXPECT_EQ(none.completions[1].finish_reason, engine::FinishReason::kLength);
  options.max_tokens = 50;
  for (const int n_asked : {0, 4}) {
    int n = 0;
    options.should_cancel = [&] { return n++ >= n_asked; };
    const engine::Samples cut = engine::generate_samples(*loaded.model, {}, prompt, options, 2, nullptr);
    for (const engine::Completion& one : cut.completions) {
      EXPECT_EQ(one.finish_reason, engine::FinishReason::kCancelled);
      EXPECT_EQ(one.tokens.size(), static_cast<std::size_t>(n_asked));
    }
  }
}

TEST(Samples, ModelsWithOtherStatesAreRefusedByName) {
  for (const std::string name : {"lfm2", "mamba2"}) {
    const model::LoadedModel loaded = model::load_model(data(name));
    const std::vector<TokenId> prompt = {1, 2, 3};
    try {
      engine::generate_samples(*loaded.model, {}, prompt, {}, 2, nullptr);
      ADD_FAILURE() << name;
    } catch (const std::invalid_argument& error) {
      EXPECT_MENTIONS(std::string(error.what()), "layer 0 has a");
    }
  }
}

TEST(Samples, BadInputIsRefused) {
  const model::LoadedModel loaded = model::load_model(data("llama"));
  const std::vector<TokenId> prompt = {1, 2, 3};
  const std::vector<TokenId> outside = {loaded.model->config().vocab_size};
  const auto refuses = [&](std::span<const TokenId> tokens, const cache::CacheOptions& cache,
                           const engine::GenerateOptions& options, int n) {
    EXPECT_THROW(engine::generate_samples(*loaded.model, cache, tokens, options, n, nullptr), std::invalid_argument);
  };
  refuses(prompt, {}, {}, 0);
  refuses({}, {}, {}, 2);
  refuses(outside, {}, {}, 2);
  engine::GenerateOptions wrong;
  wrong.prefill_chunk = 0;
  refuses(prompt, {}, wrong, 2);
  wrong = {};
  wrong.max_tokens = -1;
  refuses(prompt, {}, wrong, 2);
  cache::CacheOptions later;
  later.quantization = cache::KVQuantization{};
  later.quantize_from = 10;
  refuses(prompt, later, {}, 2);
}

// ---- State between the two

TEST_P(CellsOfFamily, AModelsStateMovesIntoCellsAndBack) {
  cache::ModelCache single = model_.make_cache();
  const std::vector<TokenId> tokens = some_tokens(30, n_vocab_);
  const mx::array before = model_.forward(tokens, single, model::LogitRows::kLast);
  mx::eval(before);
  std::vector<std::unique_ptr<cache::Snapshot>> snapshots;
  for (std::size_t i = 0; i < single.n_layers(); ++i) {
    snapshots.push_back(single.find(i) ? single.layer(i).snapshot(0) : nullptr);
  }
  cache::CellCaches cells =
      cache::make_cell_caches(model_.make_cache(), {.max_sequences = 2, .capacity = 100, .max_batch = 64});
  ASSERT_TRUE(cells.restore(1, snapshots, 30));
  const std::vector<TokenId> next = some_tokens(6, n_vocab_, 3);
  const std::vector<model::CellTokens> part = {{next, 1, model::LogitRows::kAll}};
  const mx::array in_cells = *model_.forward(cells, part);
  const mx::array alone = mx::squeeze(model_.forward(next, single, model::LogitRows::kAll), 0);
  EXPECT_TRUE(are_same_bits(in_cells, alone));
  cache::ModelCache back = model_.make_cache();
  const auto paged = cells.snapshot(1);
  ASSERT_EQ(paged.size(), back.n_layers());
  for (std::size_t i = 0; i < paged.size(); ++i) {
    if (!paged[i]) continue;
    ASSERT_TRUE(back.layer(i).restore(paged[i].get(), 36));
  }
  EXPECT_TRUE(are_same_bits(model_.forward(next, back, model::LogitRows::kAll),
                            model_.forward(next, single, model::LogitRows::kAll)));
}

// ---- Contexts that shift

// ollama's runner/ollamarunner/cache_test.go, ShiftDiscard: context, keep, tokens held -> dropped.
TEST(ContextShift, DropsHalfOfWhatIsNotKept) {
  const auto n = [](int context, int keep, int held) { return engine::n_to_discard({context, keep}, held); };
  EXPECT_EQ(n(2048, 5, 2048), 1021);
  EXPECT_EQ(n(2048, 2047, 2048), 1);
  EXPECT_EQ(n(2048, 0, 2048), 1024);
  EXPECT_EQ(n(2048, 5, 5000), 3973);
  EXPECT_EQ(n(2048, 2047, 5000), 2953);
  EXPECT_EQ(n(2048, 5, 512), 0);
  EXPECT_EQ(n(10, 2, 10), 4);  // ShiftCacheSlot: 6 of 10 are left
}

// Of the same table, the inputs that belong together (SameBatch): so many behind input `first` go with it.
TEST(ContextShift, DropsWholeWhatBelongsTogether) {
  const auto n = [](engine::ContextShift shift, int held, const std::vector<int>& firsts, int n_behind) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(held), 0);  // 1: goes on
    for (const int first : firsts) {
      for (int i = first + 1; i <= first + n_behind && i < held; ++i) tokens[static_cast<std::size_t>(i)] = 1;
    }
    shift.goes_on = [](TokenId token) { return token == 1; };
    return engine::n_whole(shift, tokens, engine::n_to_discard(shift, held));
  };
  EXPECT_EQ(n({2048, 5}, 2048, {1024}, 511), 1531);
  EXPECT_EQ(n({2048, 5}, 2048, {10}, 511), 1021);
  EXPECT_EQ(n({32, 0}, 32, {0, 10, 20}, 9), 20);
  EXPECT_EQ(n({32, 0}, 32, {4, 8, 14}, 9), 24);
  EXPECT_EQ(n({2048, 5}, 512, {10}, 511), 0);
  // Ours: to the end, and but for one.
  const engine::ContextShift all{8, 2, [](TokenId) { return true; }};
  const std::vector<TokenId> tokens(8, 1);
  EXPECT_EQ(engine::n_whole(all, tokens, 3), 6);
  EXPECT_EQ(engine::n_whole(all, tokens, 3, 1), 5);
}

// ShiftCacheSlot of the table: 10 inputs, 2 kept, 6 left. And a text is not cut within a character.
TEST(ContextShift, ASessionDropsThoseAndWholeCharacters) {
  const model::LoadedModel loaded = model::load_model(data("llama"));
  for (const bool is_whole : {false, true}) {
    engine::ContextShift shift{10, 2};
    if (is_whole) shift.goes_on = [](TokenId token) { return token == 7; };
    engine::Session session(*loaded.model, {}, nullptr, shift);
    session.forward(std::vector<TokenId>{0, 1, 2, 3, 4, 5, 7, 7, 8, 9}, model::LogitRows::kNone);
    session.make_room(1);
    EXPECT_EQ(session.tokens(),
              is_whole ? (std::vector<TokenId>{0, 1, 8, 9}) : (std::vector<TokenId>{0, 1, 7, 7, 8, 9}));
    EXPECT_EQ(session.cache().offset(), static_cast<int>(session.tokens().size()));
  }
}

TEST(ContextShift, TokensInTheMiddleOfACharacterGoOn) {
  const auto tokenizer = text::Tokenizer::from_json(read_text_file(data("tokenizer/gpt2.json")), "gpt2.json");
  const auto goes_on = engine::goes_on_character(tokenizer);
  int n_going_on = 0;
  for (const TokenId token : tokenizer.encode("a\xF0\x9F\xA6\x93z")) n_going_on += goes_on(token) ? 1 : 0;
  EXPECT_GT(n_going_on, 0);
  for (const TokenId token : tokenizer.encode("plain words")) EXPECT_FALSE(goes_on(token));
}

// LoadCacheSlot of the table: prompt 1, 2, 3 over 1, 2 leaves one input, as does an exact match. (That there is no slot
// is the scheduler's full queue.)
TEST(SessionReuse, LeavesOneTokenOfAKnownPrompt) {
  const model::LoadedModel loaded = model::load_model(data("llama"));
  engine::Session session(*loaded.model);
  session.forward(std::vector<TokenId>{1, 2}, model::LogitRows::kNone);
  EXPECT_EQ(session.reuse(std::vector<TokenId>{1, 2, 3}), 2);
  EXPECT_EQ(session.reuse(std::vector<TokenId>{1, 2}), 1);
}

// In a model of one layer rows hold nothing of what came before, so after a shift they are those of the text without
// the dropped tokens. In deeper ones the first layer's are; the rest was computed with the dropped tokens in sight.
TEST_P(CellsOfFamily, ShiftedKeysOfTheFirstLayerAreThoseOfTheTextWithoutTheDroppedTokens) {
  const std::vector<TokenId> tokens = some_tokens(60, n_vocab_);
  cache::ModelCache cache = model_.make_cache();
  mx::eval(model_.forward(tokens, cache, model::LogitRows::kLast));
  ASSERT_EQ(engine::remove_positions(cache, 4, 30, model_.key_turn()), cache::Removal::kDone);
  EXPECT_EQ(cache.offset(), 34);
  std::vector<TokenId> rest(tokens.begin(), tokens.begin() + 4);
  rest.insert(rest.end(), tokens.begin() + 30, tokens.end());
  cache::ModelCache fresh = model_.make_cache();
  mx::eval(model_.forward(rest, fresh, model::LogitRows::kLast));
  const auto shifted = cache.attention(0).view();
  const auto expected = fresh.attention(0).view();
  ASSERT_TRUE(shifted && expected);
  ASSERT_EQ(shifted->n_rows(), expected->n_rows());
  EXPECT_LT(max_difference(shifted->key_rows(), expected->key_rows()), 1e-4F);
  EXPECT_TRUE(are_same_bits(shifted->value_rows(), expected->value_rows()));
}

TEST_P(CellsOfFamily, ASessionThatShiftsNeverEnds) {
  const engine::ContextShift shift{48, 4};
  engine::Session session(model_, {}, nullptr, shift);
  engine::GenerateOptions options;
  options.max_tokens = 100;
  options.sampler.repetition_penalty = 1.3;
  const std::vector<TokenId> prompt = some_tokens(20, n_vocab_);
  const engine::Completion completion = engine::generate(session, prompt, options, nullptr);
  EXPECT_EQ(completion.tokens.size(), 100U);
  EXPECT_LE(session.tokens().size(), 48U);
  EXPECT_EQ(session.cache().offset(), static_cast<int>(session.tokens().size()));
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.begin() + 4, session.tokens().begin()));
  // The text goes on: what is still there is not computed again.
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), completion.tokens.begin(), completion.tokens.end());
  const std::size_t n_held = session.tokens().size();
  all.push_back(5);
  options.max_tokens = 3;
  const engine::Completion more = engine::generate(session, all, options, nullptr);
  EXPECT_GE(more.cached_tokens, static_cast<int>(n_held) / 2);
  EXPECT_EQ(more.tokens.size(), 3U);
  // Another text that is longer than the context.
  const engine::Completion other = engine::generate(session, some_tokens(130, n_vocab_, 5), options, nullptr);
  EXPECT_EQ(other.tokens.size(), 3U);
  EXPECT_LE(session.tokens().size(), 48U);
}

// Until the context is full, nothing differs.
TEST(ContextShift, ChangesNothingBefore) {
  const model::LoadedModel loaded = model::load_model(data("llama"));
  const std::vector<TokenId> prompt = some_tokens(20, loaded.model->config().vocab_size);
  engine::GenerateOptions options;
  options.max_tokens = 28;  // the last one is not fed
  engine::Session plain(*loaded.model);
  engine::Session shifting(*loaded.model, {}, nullptr, engine::ContextShift{48, 4});
  EXPECT_EQ(engine::generate(plain, prompt, options, nullptr).tokens,
            engine::generate(shifting, prompt, options, nullptr).tokens);
}

// A window that would see what it has let go: what stays is computed again, and is what a new text gives.
TEST(ContextShift, WhatAWindowCannotShiftIsComputedAgain) {
  const model::LoadedModel loaded = model::load_model(data("mistral"));
  const model::Model& model = *loaded.model;
  const int window = *model.config().sliding_window;
  const engine::ContextShift shift{3 * window, 2};
  engine::Session session(model, {}, nullptr, shift);
  const std::vector<TokenId> tokens = some_tokens(3 * window, model.config().vocab_size);
  mx::eval(session.forward(std::span(tokens).first(2), model::LogitRows::kLast));
  for (std::size_t i = 2; i < tokens.size(); ++i) {
    mx::eval(session.forward(std::span(tokens).subspan(i, 1), model::LogitRows::kLast));
  }
  session.make_room(3 * window - 4);  // no more than 4 may stay, which a window of 8 looks beyond
  EXPECT_LE(session.tokens().size(), 4U);
  engine::Session fresh(model);
  fresh.forward(session.tokens(), model::LogitRows::kLast);
  EXPECT_TRUE(are_same_bits(session.forward(std::vector<TokenId>{1}, model::LogitRows::kLast),
                            fresh.forward(std::vector<TokenId>{1}, model::LogitRows::kLast)));
}

TEST(ContextShift, IsRefusedByNameWhereAStateHasNoPositions) {
  const engine::ContextShift shift{48, 4};
  for (const std::string name : {"lfm2", "mamba2"}) {
    const model::LoadedModel loaded = model::load_model(data(name));
    try {
      engine::Session(*loaded.model, {}, nullptr, shift);
      ADD_FAILURE() << name;
    } catch (const std::invalid_argument& error) {
      EXPECT_MENTIONS(std::string(error.what()), name + " can't shift its context: layer 0 has a");
    }
  }
  const model::LoadedModel loaded = model::load_model(data("llama"));
  for (const engine::ContextShift& wrong : {engine::ContextShift{1, 0}, engine::ContextShift{48, 48},
                                            engine::ContextShift{48, -1}, engine::ContextShift{1 << 20, 4}}) {
    EXPECT_THROW(engine::Session(*loaded.model, {}, nullptr, wrong), std::invalid_argument);
  }
  cache::CacheOptions bounded;
  bounded.max_size = 20;
  EXPECT_THROW(engine::Session(*loaded.model, bounded, nullptr, shift), std::invalid_argument);
}

}  // namespace
}  // namespace memoir
