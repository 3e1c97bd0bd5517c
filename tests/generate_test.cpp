// Sessions and generation on a tiny model: what is reused, what is computed, when it ends.

#include "memoir/engine/generate.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

class Generate : public testing::Test {
 protected:
  std::vector<TokenId> golden(const char* name) const {
    mx::array a = mx::load_safetensors((test::data("llama") / "expected.safetensors").string()).first.at(name);
    mx::eval(a);
    return {a.data<std::int32_t>(), a.data<std::int32_t>() + a.size()};
  }

  std::vector<TokenId> run(Session& session, const std::vector<TokenId>& tokens, GenerateOptions options) const {
    return generate(session, tokens, options, nullptr).tokens;
  }

  GenerateOptions options(int max_tokens, int prefill_chunk = 512) const {
    GenerateOptions result;
    result.max_tokens = max_tokens;
    result.prefill_chunk = prefill_chunk;
    return result;
  }

  model::LoadedModel loaded_ = model::load_model(test::data("llama"));
  const model::Model& model_ = *loaded_.model;
  std::vector<TokenId> prompt_ = golden("prompt");
  std::vector<TokenId> greedy_ = golden("greedy");
};

TEST_F(Generate, ChunkedPrefillGivesTheSameTokens) {
  for (const int n_chunk : {1, 7, 40, 41, 512}) {
    Session session(model_);
    EXPECT_EQ(run(session, prompt_, options(48, n_chunk)), greedy_) << n_chunk;
  }
}

TEST_F(Generate, TheSessionHoldsPromptAndAllTokensButTheLast) {
  Session session(model_);
  const Completion completion = generate(session, prompt_, options(5), nullptr);
  std::vector<TokenId> held = prompt_;
  held.insert(held.end(), completion.tokens.begin(), completion.tokens.end() - 1);
  EXPECT_EQ(session.tokens(), held);
  EXPECT_EQ(session.cache().offset(), static_cast<int>(held.size()));
  EXPECT_EQ(completion.prompt_tokens, 41);
  EXPECT_EQ(completion.cached_tokens, 0);
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
}

TEST_F(Generate, AContinuationComputesOnlyWhatIsNew) {
  Session session(model_);
  run(session, prompt_, options(10));
  std::vector<TokenId> longer = prompt_;
  longer.insert(longer.end(), greedy_.begin(), greedy_.begin() + 10);
  const Completion completion = generate(session, longer, options(38), nullptr);
  EXPECT_EQ(completion.cached_tokens, 41 + 9);
  EXPECT_EQ(completion.tokens, std::vector<TokenId>(greedy_.begin() + 10, greedy_.end()));
}

TEST_F(Generate, TheSamePromptAgainComputesItsLastTokenOnly) {
  Session session(model_);
  run(session, prompt_, options(48));
  const Completion completion = generate(session, prompt_, options(48), nullptr);
  EXPECT_EQ(completion.cached_tokens, 40);
  EXPECT_EQ(completion.tokens, greedy_);
}

TEST_F(Generate, ADivergingPromptKeepsTheSharedBeginning) {
  Session session(model_);
  std::vector<TokenId> other = prompt_;
  other[20] = (other[20] + 1) % 160;
  run(session, other, options(4));
  const Completion completion = generate(session, prompt_, options(48), nullptr);
  EXPECT_EQ(completion.cached_tokens, 20);
  EXPECT_EQ(completion.tokens, greedy_);
}

TEST_F(Generate, StopTokensEndTheTextAndAreNoPartOfIt) {
  Session session(model_);
  GenerateOptions with_stop = options(48);
  with_stop.stop_tokens = {greedy_[5]};
  const Completion completion = generate(session, prompt_, with_stop, nullptr);
  EXPECT_EQ(completion.tokens, std::vector<TokenId>(greedy_.begin(), greedy_.begin() + 5));
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(session.tokens().size(), 41U + 5U);
}

// With each token that is handed out its forward pass has been scheduled, so the session has the token already.
TEST_F(Generate, TheModelIsOneTokenAheadOfTheReader) {
  Session session(model_);
  Generation generation(session, options(3));
  generation.start(prompt_);
  std::vector<TokenId> held = prompt_;
  EXPECT_EQ(session.tokens(), held);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(generation.next(), greedy_[static_cast<std::size_t>(i)]);
    held.push_back(greedy_[static_cast<std::size_t>(i)]);
    EXPECT_EQ(session.tokens(), held) << i;
    EXPECT_EQ(session.cache().offset(), static_cast<int>(held.size())) << i;
  }
  EXPECT_EQ(generation.next(), greedy_[2]);
  EXPECT_EQ(session.tokens(), held);  // nothing is scheduled behind the last token asked for
  EXPECT_EQ(generation.next(), std::nullopt);
  EXPECT_EQ(session.tokens(), held);
}

TEST_F(Generate, NothingIsScheduledBehindAStopToken) {
  Session session(model_);
  GenerateOptions with_stop = options(48);
  with_stop.stop_tokens = {greedy_[1]};
  Generation generation(session, with_stop);
  generation.start(prompt_);
  EXPECT_EQ(generation.next(), greedy_[0]);
  const std::vector<TokenId> held = session.tokens();
  EXPECT_EQ(held.size(), prompt_.size() + 1);
  EXPECT_EQ(generation.next(), std::nullopt);
  EXPECT_EQ(session.tokens(), held);
  EXPECT_EQ(session.cache().offset(), static_cast<int>(held.size()));
}

TEST_F(Generate, ZeroTokensComputesThePromptAlone) {
  Session session(model_);
  const Completion completion = generate(session, prompt_, options(0), nullptr);
  EXPECT_TRUE(completion.tokens.empty());
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
  EXPECT_EQ(session.tokens(), prompt_);
}

TEST_F(Generate, EndsWhereTheContextIsFull) {
  Session session(model_);
  std::vector<TokenId> long_prompt(510, 7);
  const Completion completion = generate(session, long_prompt, options(100), nullptr);
  // Tokens at 510 and 511 fit the context of 512 and are computed; the one sampled after 511 has no place.
  EXPECT_EQ(completion.tokens.size(), 3U);
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
  EXPECT_EQ(session.cache().offset(), 512);
}

TEST_F(Generate, RefusesPromptsAndLeavesTheSession) {
  Session session(model_);
  run(session, prompt_, options(3));
  const std::vector<TokenId> held = session.tokens();
  const auto refuses = [&](const std::vector<TokenId>& tokens, const GenerateOptions& with) {
    EXPECT_THROW(generate(session, tokens, with, nullptr), std::invalid_argument);
    EXPECT_EQ(session.tokens(), held);
    EXPECT_EQ(session.cache().offset(), static_cast<int>(held.size()));
  };
  refuses({}, options(3));
  refuses({1, 160}, options(3));
  refuses({-1}, options(3));
  refuses(std::vector<TokenId>(513, 1), options(3));
  refuses(prompt_, options(-1));
  refuses(prompt_, options(3, 0));
}

TEST_F(Generate, ReportsProgressUpToTheWholePrompt) {
  Session session(model_);
  GenerateOptions with_progress = options(1, 10);
  std::vector<std::pair<int, int>> seen;
  with_progress.on_prefill = [&](int n_done, int n_total) { seen.emplace_back(n_done, n_total); };
  run(session, prompt_, with_progress);
  EXPECT_EQ(seen, (std::vector<std::pair<int, int>>{{10, 41}, {20, 41}, {30, 41}, {40, 41}, {41, 41}}));
}

TEST_F(Generate, ACancelledPrefillKeepsItsChunks) {
  Session session(model_);
  GenerateOptions cancelled = options(5, 10);
  int n_asked = 0;
  cancelled.should_cancel = [&] { return ++n_asked > 2; };
  const Completion completion = generate(session, prompt_, cancelled, nullptr);
  EXPECT_TRUE(completion.tokens.empty());
  EXPECT_EQ(completion.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(session.tokens().size(), 20U);
  const Completion resumed = generate(session, prompt_, options(48), nullptr);
  EXPECT_EQ(resumed.cached_tokens, 20);
  EXPECT_EQ(resumed.tokens, greedy_);
}

TEST_F(Generate, ACancelledDecodeCanGoOn) {
  Session session(model_);
  GenerateOptions cancelled = options(48);
  int n_asked = 0;
  cancelled.should_cancel = [&] { return ++n_asked > 8; };
  const Completion completion = generate(session, prompt_, cancelled, nullptr);
  EXPECT_EQ(completion.finish_reason, FinishReason::kCancelled);
  ASSERT_GT(completion.tokens.size(), 0U);
  ASSERT_LT(completion.tokens.size(), 10U);
  std::vector<TokenId> longer = prompt_;
  longer.insert(longer.end(), completion.tokens.begin(), completion.tokens.end());
  const Completion resumed = generate(session, longer, options(20), nullptr);
  EXPECT_GE(resumed.cached_tokens, static_cast<int>(longer.size()) - 1);
  const auto rest = greedy_.begin() + static_cast<std::ptrdiff_t>(completion.tokens.size());
  EXPECT_EQ(resumed.tokens, std::vector<TokenId>(rest, rest + 20));
}

TEST_F(Generate, AThrowFromACallbackLeavesAUsableSession) {
  Session session(model_);
  GenerateOptions throwing = options(5, 10);
  throwing.on_prefill = [](int n_done, int) {
    if (n_done == 30) throw std::runtime_error("enough");
  };
  EXPECT_THROW(generate(session, prompt_, throwing, nullptr), std::runtime_error);
  EXPECT_EQ(session.cache().offset(), static_cast<int>(session.tokens().size()));
  EXPECT_EQ(run(session, prompt_, options(48)), greedy_);
}

TEST_F(Generate, TheSameSeedGivesTheSameTokens) {
  GenerateOptions sampled = options(30);
  sampled.sampler.temperature = 1.5;
  sampled.sampler.seed = 42;
  Session first(model_);
  Session second(model_);
  const std::vector<TokenId> tokens = run(first, prompt_, sampled);
  EXPECT_EQ(run(second, prompt_, sampled), tokens);
  EXPECT_NE(tokens, std::vector<TokenId>(greedy_.begin(), greedy_.begin() + 30));
  sampled.sampler.seed = 43;
  Session third(model_);
  EXPECT_NE(run(third, prompt_, sampled), tokens);
}

TEST_F(Generate, ABiasBansATokenFromGreedyText) {
  GenerateOptions banned = options(48);
  banned.sampler.logit_bias[greedy_[0]] = -std::numeric_limits<float>::infinity();
  Session session(model_);
  for (const TokenId token : run(session, prompt_, banned)) EXPECT_NE(token, greedy_[0]);
}

}  // namespace
}  // namespace memoir::engine
