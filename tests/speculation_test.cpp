// Generation with drafts against generation without: the same tokens, the same logits to the bit, the same session,
// whatever the drafter says. On the tiny models of the tests (every row stays; a window or chunks that are passed;
// quantized rows; states that can't be rewound, alone, in some layers, or in a list beside attention) 200 tokens each
// with drafts of 1 to 8, and on the real one some.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memoir/engine/draft_model.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "memoir/engine/speculate.h"
#include "memoir/kernels/device.h"
#include "memoir/model/load.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using Tokens = std::vector<TokenId>;

Tokens tokens_of(mx::array a) {
  mx::eval(a);
  return {a.data<std::int32_t>(), a.data<std::int32_t>() + a.size()};
}

// Knows the text that will come, and says it, or something else at every n-th place.
class Oracle final : public Drafter {
 public:
  Oracle(Tokens text, int n_vocab, int wrong_every) : text_(std::move(text)), n_vocab_(n_vocab), wrong_(wrong_every) {}

  Tokens propose(std::span<const TokenId> tokens, int n_max) override {
    Tokens drafts;
    for (std::size_t i = tokens.size(); i < text_.size() && drafts.size() < static_cast<std::size_t>(n_max); ++i) {
      const bool is_wrong = wrong_ > 0 && i % static_cast<std::size_t>(wrong_) == 0;
      drafts.push_back(is_wrong ? (text_[i] + 1) % n_vocab_ : text_[i]);
    }
    n_asked_ += 1;
    return drafts;
  }

  int n_asked() const { return n_asked_; }

 private:
  Tokens text_;
  int n_vocab_;
  int wrong_;  // 0: never
  int n_asked_ = 0;
};

// Says the same whatever the text.
class Fixed final : public Drafter {
 public:
  explicit Fixed(Tokens drafts) : drafts_(std::move(drafts)) {}
  Tokens propose(std::span<const TokenId>, int) override { return drafts_; }

 private:
  Tokens drafts_;
};

class Speculation : public testing::TestWithParam<const char*> {
 protected:
  static constexpr std::string_view kQuantized = "_q8";  // behind a model's name: keys and values as 8-bit codes

  void SetUp() override {
    mx::set_default_device(mx::Device::cpu);
    std::string name = GetParam();
    if (name.ends_with(kQuantized)) {
      name.resize(name.size() - kQuantized.size());
      cache_options_.quantization = cache::KVQuantization{8, 32};
    }
    is_real_ = name == "smollm2";
    kernels::set_cpu_threads(is_real_ ? 2 : 1);  // a second one would only wait for work
    loaded_ = loaded(is_real_ ? test::fs::path(MEMOIR_TEST_SMOLLM2) : test::data(name));
    if (is_real_) {
      prompt_ = loaded_->tokenizer->encode("One two three four. One two three four. One two");
    } else {
      prompt_ =
          tokens_of(mx::load_safetensors((test::data(name) / "expected.safetensors").string()).first.at("prompt"));
    }
  }

  // Loaded once in a run of all cases.
  static const model::LoadedModel* loaded(const test::fs::path& path) {
    static std::map<test::fs::path, model::LoadedModel> models;
    const auto found = models.find(path);
    return &(found != models.end() ? found : models.emplace(path, model::load_model(path)).first)->second;
  }

  const model::Model& model() const { return *loaded_->model; }
  int n_vocab() const { return model().config().vocab_size; }

  int length() const { return is_real_ ? 30 : 200; }

  GenerateOptions options() const { return options(length()); }

  static GenerateOptions options(int max_tokens) {
    GenerateOptions result;
    result.max_tokens = max_tokens;
    return result;
  }

  GenerateOptions with(Drafter& drafter, int max_drafts, GenerateOptions result) const {
    result.drafter = &drafter;
    result.max_drafts = max_drafts;
    result.adapts_drafts = false;
    return result;
  }

  struct Run {
    Completion completion;
    Tokens session;
    int offset;
  };

  Run run(const GenerateOptions& options) const {
    Session session(model(), cache_options_);
    Run result{generate(session, prompt_, options, nullptr), {}, 0};
    result.session = session.tokens();
    result.offset = session.cache().offset();
    EXPECT_FALSE(session.has_draft());
    return result;
  }

  // Plain generation, and the text that it makes.
  Run plain(const GenerateOptions& options) {
    Run result = run(options);
    text_ = prompt_;
    text_.insert(text_.end(), result.completion.tokens.begin(), result.completion.tokens.end());
    return result;
  }

  void expect_same(const Run& drafted, const Run& plain) const {
    ASSERT_EQ(drafted.completion.tokens, plain.completion.tokens);
    EXPECT_EQ(drafted.completion.finish_reason, plain.completion.finish_reason);
    EXPECT_EQ(drafted.session, plain.session);
    EXPECT_EQ(drafted.offset, plain.offset);
  }

  std::vector<int> lengths() const { return is_real_ ? std::vector<int>{4} : std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}; }

  bool is_real_ = false;
  cache::CacheOptions cache_options_;
  const model::LoadedModel* loaded_ = nullptr;
  Tokens prompt_;
  Tokens text_;
};

TEST_P(Speculation, AnAlwaysRightDrafterGivesTheSameTokensInFewerPasses) {
  const Run expected = plain(options());
  for (const int n : lengths()) {
    SCOPED_TRACE(n);
    Oracle oracle(text_, n_vocab(), 0);
    const Run drafted = run(with(oracle, n, options()));
    ASSERT_NO_FATAL_FAILURE(expect_same(drafted, expected));
    const DraftCounts& counts = drafted.completion.drafts;
    EXPECT_EQ(counts.n_accepted, counts.n_drafted);
    // A pass gives its drafts and one more; the last one stands without a pass, so nothing is drafted past it.
    EXPECT_EQ(counts.n_rounds, (length() - 2 + n) / (n + 1));
  }
}

TEST_P(Speculation, AnAlwaysWrongDrafterGivesTheSameTokens) {
  const Run expected = plain(options());
  for (const int n : lengths()) {
    SCOPED_TRACE(n);
    Oracle liar(text_, n_vocab(), 1);
    const Run drafted = run(with(liar, n, options()));
    ASSERT_NO_FATAL_FAILURE(expect_same(drafted, expected));
    EXPECT_EQ(drafted.completion.drafts.n_accepted, 0);
    EXPECT_EQ(drafted.completion.drafts.n_rounds, length() - 2);  // none behind the last but one
    EXPECT_GE(drafted.completion.drafts.n_drafted, length() - 2);
  }
}

TEST_P(Speculation, DraftersThatAreRightNowAndThenGiveTheSameTokens) {
  const Run expected = plain(options());
  for (const int n : lengths()) {
    SCOPED_TRACE(n);
    Oracle sometimes(text_, n_vocab(), 3);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(with(sometimes, n, options())), expected));
  }
}

TEST_P(Speculation, PromptLookupGivesTheSameTokens) {
  const Run expected = plain(options());
  for (const int n : {2, 8}) {
    SCOPED_TRACE(n);
    NgramDrafter ngram;
    ASSERT_NO_FATAL_FAILURE(expect_same(run(with(ngram, n, options())), expected));
  }
  NgramDrafter adapting;
  GenerateOptions adapted = with(adapting, 8, options());
  adapted.adapts_drafts = true;
  ASSERT_NO_FATAL_FAILURE(expect_same(run(adapted), expected));
}

// The model as its own draft model: every draft is right, but where the drafter's rows are not quantized as the
// model's.
TEST_P(Speculation, ADraftModelGivesTheSameTokens) {
  prompt_.resize(std::min(prompt_.size(), DraftModel::kFirst - 1));  // which it reads whole
  const Run expected = plain(options(30));
  for (const int n : {1, 5}) {
    DraftModel draft(model(), n_vocab());
    const Run drafted = run(with(draft, n, options(30)));
    ASSERT_NO_FATAL_FAILURE(expect_same(drafted, expected));
    const DraftCounts& counts = drafted.completion.drafts;
    if (!cache_options_.quantization) {
      EXPECT_EQ(counts.n_accepted, counts.n_drafted);
    }
    EXPECT_GT(counts.n_accepted, 0);
    // Another text, and this one again, with the same drafter.
    Session session(model(), cache_options_);
    Tokens other = prompt_;
    other[1] = (other[1] + 1) % n_vocab();
    generate(session, other, with(draft, n, options(7)), nullptr);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(with(draft, n, options(30))), expected));
  }
}

TEST_P(Speculation, SampledTokensArePenalizedAndReproducible) {
  GenerateOptions sampled = options();
  sampled.sampler.temperature = 0.8;
  sampled.sampler.top_p = 0.95;
  sampled.sampler.repetition_penalty = 1.1;
  sampled.sampler.presence_penalty = 0.2;
  sampled.sampler.frequency_penalty = 0.1;
  sampled.sampler.seed = 42;
  sampled.sampler.logit_bias[prompt_[0]] = 2;
  const Run expected = plain(sampled);
  for (const auto& [n, wrong_every] : {std::pair{3, 1}, {8, 0}, {8, 3}}) {
    SCOPED_TRACE(std::to_string(n) + " drafts, wrong every " + std::to_string(wrong_every));
    Oracle oracle(text_, n_vocab(), wrong_every);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(with(oracle, n, sampled)), expected));
  }
  NgramDrafter ngram({.longest = 3, .shortest = 1});
  ASSERT_NO_FATAL_FAILURE(expect_same(run(with(ngram, 3, sampled)), expected));
}

// Each row of a pass over drafts is the row of plain decoding at its position.
TEST_P(Speculation, LogitsAreThoseOfPlainDecodingToTheBit) {
  Session session(model(), cache_options_);
  const auto likeliest = [](const mx::array& row) {
    return static_cast<TokenId>(mx::argmax(mx::reshape(row, {-1})).item<std::uint32_t>());
  };
  std::vector<mx::array> rows = {mx::reshape(session.forward(prompt_, model::LogitRows::kLast), {-1})};
  Tokens tokens;
  for (int i = 0; i < length(); ++i) {
    tokens.push_back(likeliest(rows.back()));
    rows.push_back(mx::reshape(session.forward(std::span(&tokens.back(), 1), model::LogitRows::kLast), {-1}));
    mx::eval(rows.back());
  }
  for (const int n : lengths()) {
    Session drafting(model(), cache_options_);
    drafting.forward(prompt_, model::LogitRows::kLast);
    for (std::size_t at = 0; at < tokens.size();) {
      // Right up to one that is wrong, at a place that changes.
      const std::size_t n_right = at % (static_cast<std::size_t>(n) + 1);
      Tokens pass;
      for (std::size_t i = 0; i <= static_cast<std::size_t>(n) && at + i < tokens.size(); ++i) {
        pass.push_back(i <= n_right ? tokens[at + i] : (tokens[at + i] + 1) % n_vocab());
      }
      drafting.begin_draft(static_cast<int>(pass.size()));
      const mx::array logits = drafting.forward(pass, model::LogitRows::kAll);
      const std::size_t n_kept = std::min(pass.size(), n_right + 1);
      for (std::size_t i = 0; i < n_kept; ++i) {
        const mx::array row = mx::reshape(mx::take(logits, static_cast<int>(i), 1), {-1});
        ASSERT_TRUE(mx::array_equal(row, rows[at + i + 1]).item<bool>()) << n << " drafts, token " << at + i;
      }
      drafting.commit_draft(static_cast<int>(n_kept));
      at += n_kept;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Speculation,
                         testing::Values("llama", "mistral", "gemma3", "llama4", "lfm2", "mamba2", "qwen3_next",
                                         "qwen3_5_q8", "falcon_h1", "granitemoehybrid", "smollm2", "smollm2_q8"),
                         [](const auto& param) { return std::string(param.param); });

// ---- Where a run ends, on the smallest model

using SpeculationEnds = Speculation;

TEST_P(SpeculationEnds, AStopTokenInsideTheAcceptedRunEndsItThere) {
  plain(options(40));
  for (std::size_t at = 0; at < 12; ++at) {
    GenerateOptions stopping = options(40);
    stopping.stop_tokens = {text_[prompt_.size() + at]};
    const Run expected = run(stopping);
    EXPECT_EQ(expected.completion.finish_reason, FinishReason::kStop);
    for (const int n : {1, 4, 8}) {
      Oracle oracle(text_, n_vocab(), 0);
      ASSERT_NO_FATAL_FAILURE(expect_same(run(with(oracle, n, stopping)), expected)) << at << " " << n;
    }
  }
}

TEST_P(SpeculationEnds, NothingIsDraftedBeyondTheLastTokenAskedFor) {
  plain(options(40));
  for (int n_tokens = 0; n_tokens <= 12; ++n_tokens) {
    const Run expected = run(options(n_tokens));
    for (const int n : {1, 4, 8, 15}) {
      Oracle oracle(text_, n_vocab(), 0);
      ASSERT_NO_FATAL_FAILURE(expect_same(run(with(oracle, n, options(n_tokens))), expected)) << n_tokens << " " << n;
    }
  }
}

TEST_P(SpeculationEnds, EndsWhereTheContextIsFull) {
  for (std::size_t n_prompt = 505; n_prompt <= 512; ++n_prompt) {
    prompt_.assign(n_prompt, 7);
    const Run expected = plain(options(100));
    Oracle oracle(text_, n_vocab(), 0);
    const Run drafted = run(with(oracle, 8, options(100)));
    ASSERT_NO_FATAL_FAILURE(expect_same(drafted, expected)) << n_prompt;
    EXPECT_EQ(drafted.offset, 512);
  }
}

// The session holds what was handed out, however a run is left.
TEST_P(SpeculationEnds, ARunThatIsLeftKeepsWhatWasHandedOut) {
  plain(options(40));
  for (int n_taken = 1; n_taken <= 8; ++n_taken) {
    for (const bool is_cancelled : {false, true}) {
      Oracle oracle(text_, n_vocab(), 0);
      Session session(model(), cache_options_);
      bool is_over = false;
      GenerateOptions leaving = with(oracle, 3, options(40));
      leaving.should_cancel = [&] { return is_over; };
      {
        Generation generation(session, leaving);
        generation.start(prompt_);
        for (int i = 0; i < n_taken; ++i) ASSERT_TRUE(generation.next().has_value());
        is_over = is_cancelled;
        if (is_cancelled) {
          ASSERT_EQ(generation.next(), std::nullopt);
        }
      }
      EXPECT_FALSE(session.has_draft());
      const Tokens held(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(prompt_.size()) + n_taken);
      EXPECT_EQ(session.tokens(), held) << n_taken;
      EXPECT_EQ(session.cache().offset(), static_cast<int>(held.size()));
      // And goes on from there.
      const Completion rest = generate(session, held, options(40 - n_taken), nullptr);
      EXPECT_EQ(rest.tokens, Tokens(text_.begin() + static_cast<std::ptrdiff_t>(held.size()), text_.end()));
    }
  }
}

TEST_P(SpeculationEnds, ADrafterThatBreaksItsContractIsRefused) {
  plain(options(5));
  for (const Tokens& drafts : {Tokens{1, 2, 3}, Tokens{1, n_vocab()}, Tokens{-1}}) {
    Fixed fixed(drafts);
    Session session(model(), cache_options_);
    Generation generation(session, with(fixed, 2, options()));
    generation.start(prompt_);
    EXPECT_THROW(generation.next(), std::invalid_argument);
    EXPECT_FALSE(session.has_draft());
    EXPECT_EQ(session.tokens(), prompt_);
  }
  Fixed none({});
  ASSERT_NO_FATAL_FAILURE(expect_same(run(with(none, 2, options(20))), run(options(20))));
  Session session(model(), cache_options_);
  for (const int n : {0, 16}) {
    EXPECT_THROW(Generation(session, with(none, n, options())), std::invalid_argument);
  }
}

TEST_P(SpeculationEnds, TheDraftLengthFallsToNoneForAnAlwaysWrongDrafter) {
  plain(options());
  Oracle liar(text_, n_vocab(), 1);
  GenerateOptions adapting = with(liar, 8, options());
  adapting.adapts_drafts = true;
  run(adapting);
  EXPECT_EQ(liar.length().best(), 0);
  EXPECT_LT(liar.n_asked(), length() / 4);
}

INSTANTIATE_TEST_SUITE_P(Models, SpeculationEnds, testing::Values("llama"),
                         [](const auto& param) { return std::string(param.param); });

// ---- Sessions

TEST(SessionDraft, RefusesWhatDoesNotFitAndGoesBack) {
  const model::LoadedModel loaded = model::load_model(test::data("llama"));
  Session session(*loaded.model);
  const Tokens tokens = {1, 2, 3, 4};
  session.forward(tokens, model::LogitRows::kLast);
  EXPECT_THROW(session.commit_draft(0), std::invalid_argument);
  session.begin_draft(3);
  EXPECT_THROW(session.begin_draft(3), std::invalid_argument);
  session.forward(Tokens{5, 6}, model::LogitRows::kLast);
  EXPECT_THROW(session.forward(Tokens{7, 8}, model::LogitRows::kLast), std::invalid_argument);
  EXPECT_EQ(session.tokens(), (Tokens{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(session.n_drafted(), 2);
  EXPECT_THROW(session.commit_draft(3), std::invalid_argument);
  session.commit_draft(1);
  EXPECT_EQ(session.tokens(), (Tokens{1, 2, 3, 4, 5}));
  session.begin_draft(3);
  session.forward(Tokens{9}, model::LogitRows::kLast);
  EXPECT_EQ(session.reuse(Tokens{1, 2, 3, 4, 5, 6}), 5);  // rolls back
  EXPECT_EQ(session.tokens(), (Tokens{1, 2, 3, 4, 5}));
}

TEST(Vocabularies, DifferencesAreNamed) {
  const auto gpt2 = text::Tokenizer::from_json(test::read_file(test::data("tokenizer/gpt2.json")), "gpt2.json");
  const auto qwen = text::Tokenizer::from_json(test::read_file(test::data("tokenizer/qwen2.json")), "qwen2.json");
  EXPECT_EQ(vocabulary_difference(gpt2, gpt2), "");
  EXPECT_NE(vocabulary_difference(gpt2, qwen), "");
}

}  // namespace
}  // namespace memoir::engine
