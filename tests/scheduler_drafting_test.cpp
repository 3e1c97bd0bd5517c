// Drafts in the scheduler, over real models and with every drafter: each request's tokens are those that
// engine::generate gives it alone and without drafts, whatever the layers keep and whatever is stored for later
// requests.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <functional>
#include <memory>
#include <string>

#include "memoir/engine/drafting.h"
#include "memoir/engine/model_runner.h"
#include "memoir/model/gemma4_assistant.h"
#include "memoir/model/mtp_head.h"
#include "tests/model_files.h"
#include "tests/mtp_files.h"
#include "tests/service_cases.h"

namespace memoir::engine {
namespace {

using test::answers_alone;
using test::Case;
using test::cases_to_guess;
using test::compare_all;
using test::data;
using test::Listener;
using test::mixed_cases;
using test::run_and_compare;
using test::Tokens;

constexpr std::size_t kPlenty = std::size_t{1} << 26;

// Always as many as there may be: whether they pay is a matter of the machine.
Drafting always(Drafting drafting, int max_drafts = 4) {
  drafting.max_drafts = max_drafts;
  drafting.adapts = false;
  return drafting;
}

/// Guesses what it was told that a text goes on with, every fourth token wrong; for models that say too little twice.
class Oracle final : public Drafter {
 public:
  using Texts = std::vector<Tokens>;
  Oracle(std::shared_ptr<const Texts> texts, int n_vocab) : texts_(std::move(texts)), n_vocab_(n_vocab) {}

  Tokens propose(std::span<const TokenId> tokens, int n_max) override {
    for (const Tokens& text : *texts_) {
      if (text.size() <= tokens.size() || !std::equal(tokens.begin(), tokens.end(), text.begin())) continue;
      Tokens drafts;
      for (std::size_t i = tokens.size(); i < text.size() && std::ssize(drafts) < n_max; ++i) {
        drafts.push_back((text[i] + (i % 4 == 0 ? 1 : 0)) % n_vocab_);
      }
      return drafts;
    }
    return {};
  }

 private:
  std::shared_ptr<const Texts> texts_;
  int n_vocab_;
};

Drafting draft_by_oracle(const std::vector<Case>& cases, const std::vector<Tokens>& answers) {
  const auto texts = std::make_shared<Oracle::Texts>();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    texts->push_back(cases[i].prompt);
    texts->back().insert(texts->back().end(), answers[i].begin(), answers[i].end());
  }
  Drafting drafting;
  drafting.make = [texts](const model::Model& target) {
    return std::make_unique<Oracle>(texts, target.config().vocab_size);
  };
  return drafting;
}

/// What a chat sends next: the text so far and something more.
std::vector<Case> going_on(const std::vector<Case>& cases, const std::vector<Tokens>& answers) {
  std::vector<Case> next;
  for (std::size_t i = 0; i < cases.size(); i += 2) {
    Case one = cases[i];
    one.prompt.insert(one.prompt.end(), answers[i].begin(), answers[i].end());
    one.prompt.insert(one.prompt.end(), {5, 9});
    one.max_tokens = 12;
    one.cancel_after.reset();
    next.push_back(std::move(one));
  }
  return next;
}

void expect_drafts(const ServiceStats& stats) {
  EXPECT_GT(stats.n_accepted_tokens, 0U);
  EXPECT_LT(stats.n_accepted_tokens, stats.n_drafted_tokens);
  EXPECT_GT(stats.n_draft_rounds, 0U);
}

// Then the same again and further, from what the first have left.
void expect_same_as_alone(const test::fs::path& path, const Drafting& drafting, const std::vector<Case>& cases,
                          std::size_t n_kept) {
  const std::vector<Tokens> expected = answers_alone(path, cases);
  const std::vector<Case> next = going_on(cases, expected);
  const std::vector<Tokens> expected_next = answers_alone(path, next);
  const auto service = make_service(
      model::load_model(path),
      {.max_running = 6, .prefill_tokens_per_step = 48, .prefix_cache_bytes = n_kept, .drafting = drafting});
  compare_all(*service, cases, expected);
  expect_drafts(service->stats());
  compare_all(*service, next, expected_next);
  if (n_kept == kPlenty) {
    EXPECT_GT(service->stats().n_cached_tokens, 0U);
  }
  service->drain(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  EXPECT_EQ(service->stats().cache_bytes, 0U);
}

class SchedulerDraftingKinds : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, SchedulerDraftingKinds,
                         testing::Values("llama", "mistral", "gemma3", "llama4", "mamba2", "lfm2", "falcon_h1",
                                         "qwen3_next"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(SchedulerDraftingKinds, ThirtyTwoRequestsGetTheTokensTheyGetAlone) {
  const std::vector<Case> cases = cases_to_guess(120, 120, 24);
  const Drafting drafting = draft_by_oracle(cases, answers_alone(data(GetParam()), cases));
  expect_same_as_alone(data(GetParam()), always(drafting), cases, kPlenty);
}

TEST_P(SchedulerDraftingKinds, InLittleRoomForWhatIsKept) {
  const std::vector<Case> cases = cases_to_guess(120, 120, 24);
  const Drafting drafting = draft_by_oracle(cases, answers_alone(data(GetParam()), cases));
  expect_same_as_alone(data(GetParam()), always(drafting, 7), cases, 300'000);
}

TEST(SchedulerDrafting, LookupGivesTheTokensOfARequestAlone) {
  for (const std::string name : {"llama", "gemma3"}) {
    expect_same_as_alone(data(name), always(draft_by_lookup()), cases_to_guess(120, 120, 24), kPlenty);
  }
}

TEST(SchedulerDrafting, ADraftModelGivesTheTokensOfARequestAlone) {
  // The model itself, whose drafts are right at temperature 0, and one whose cache is of another kind.
  const std::vector<Case> cases = cases_to_guess(120, 100, 24);
  for (const auto& [target, draft] : {std::pair("llama", "llama"), std::pair("mistral", "mistral")}) {
    const auto loaded = std::make_shared<const model::LoadedModel>(model::load_model(data(draft)));
    for (const int n_at_once : {7, 512}) {
      SCOPED_TRACE(std::string(target) + " " + std::to_string(n_at_once));
      expect_same_as_alone(data(target), always(draft_with_model(loaded, n_at_once)), cases, kPlenty);
    }
  }
}

TEST(SchedulerDrafting, TheModelsOwnHeadGivesTheTokensOfARequestAlone) {
  const test::TemporaryFolder folder;
  for (const std::string name : {"qwen3_5", "qwen3_next"}) {
    SCOPED_TRACE(name);
    const test::fs::path path = test::model_with_head(folder.path() / name, name);
    const model::LoadedModel loaded = model::load_model(path);
    const Drafting drafting = draft_with_head(model::load_mtp_head(path), *loaded.model);
    EXPECT_GT(drafting.cost.bytes_per_token, 0U);
    expect_same_as_alone(path, always(drafting), cases_to_guess(loaded.model->config().vocab_size, 100, 24), kPlenty);
  }
}

// Behind a prefix that another sequence computed, from the begin or caught up with, the head proposes what it proposes
// where all was computed.
TEST(SchedulerDrafting, ProposalsBehindARestoredPrefixAreThoseOfARunThatComputedIt) {
  const test::TemporaryFolder folder;
  for (const std::string name : {"qwen3_5", "qwen3_next"}) {
    SCOPED_TRACE(name);
    const test::fs::path path = test::model_with_head(folder.path() / name, name);
    const model::LoadedModel loaded = model::load_model(path);
    const Drafting drafting = always(draft_with_head(model::load_mtp_head(path), *loaded.model));
    const auto runner = [&](std::size_t n_bytes) {
      return std::make_unique<ModelRunner>(model::load_model(path).model, prefix::StoreOptions{.max_bytes = n_bytes},
                                           cache::CacheOptions{}, std::nullopt, drafting);
    };
    Tokens text;
    for (int i = 0; i < 130; ++i) text.push_back(i * i % 90);
    Tokens other(text.begin(), text.begin() + 80);
    for (int i = 0; i < 60; ++i) other.push_back(i * 3 % 90);
    const std::vector<int> turn_ends = {80};
    const auto create = [&](ModelRunner& on, SequenceId id, const Tokens& tokens) {
      return on.create({id, tokens, static_cast<int>(tokens.size()), turn_ends});
    };
    // All but the last token, in two passes.
    const auto drafts_of = [](ModelRunner& on, SequenceId id, const Tokens& tokens) {
      while (on.offset(id) + 1 < static_cast<int>(tokens.size())) {
        const auto n_held = static_cast<std::size_t>(on.offset(id));
        const std::size_t n = std::min<std::size_t>(tokens.size() - 1 - n_held, 70);
        const StepRunner::Slice slice{id, std::span(tokens).subspan(n_held, n), true};
        on.run({&slice, 1});
      }
      return on.propose(id, tokens, 4);
    };
    const auto alone = runner(0);
    create(*alone, 1, text);
    create(*alone, 2, other);
    const Tokens of_text = drafts_of(*alone, 1, text);
    const Tokens of_other = drafts_of(*alone, 2, other);
    ASSERT_EQ(of_text.size(), 4U);
    const auto shared = runner(kPlenty);
    EXPECT_EQ(create(*shared, 1, text), 0);
    EXPECT_EQ(create(*shared, 2, other), 0);
    EXPECT_EQ(drafts_of(*shared, 1, text), of_text);
    EXPECT_EQ(shared->catch_up({2, other, static_cast<int>(other.size()), turn_ends}, 1), 80);
    EXPECT_EQ(drafts_of(*shared, 2, other), of_other);
    shared->retire(1);
    EXPECT_EQ(create(*shared, 3, other), 136);  // 4 tokens before the prompt's end
    EXPECT_EQ(drafts_of(*shared, 3, other), of_other);
    EXPECT_EQ(create(*shared, 4, text), 126);
    EXPECT_EQ(drafts_of(*shared, 4, text), of_text);
    EXPECT_EQ(shared->store().counters().n_failed_restores, 0U);
  }
}

TEST(SchedulerDrafting, AnAssistantGivesTheTokensOfARequestAlone) {
  for (const std::string name : {"gemma4_assistant", "gemma4_assistant_ordered"}) {
    SCOPED_TRACE(name);
    const test::fs::path path = data(name) / "target";
    const model::LoadedModel loaded = model::load_model(path);
    const Drafting drafting =
        draft_with_assistant(model::load_gemma4_assistant(data(name) / "assistant"), *loaded.model);
    expect_same_as_alone(path, always(drafting), cases_to_guess(loaded.model->config().vocab_size, 100, 24), kPlenty);
  }
}

TEST(SchedulerDrafting, AsManyAsPayChangeNoTokenEither) {
  const std::vector<Case> cases = cases_to_guess(160, 200, 60);
  run_and_compare(data("llama"), cases, answers_alone(data("llama"), cases),
                  {.max_running = 8, .prefix_cache_bytes = kPlenty, .drafting = draft_by_lookup()});
}

TEST(SchedulerDrafting, MakingRoomChangesNoToken) {
  const std::vector<Case> cases = cases_to_guess(160, 255, 100);
  const auto draft = std::make_shared<const model::LoadedModel>(model::load_model(data("llama")));
  const std::vector<Tokens> expected = answers_alone(data("llama"), cases);
  for (const Drafting& drafting : {always(draft_by_lookup()), always(draft_with_model(draft, 64))}) {
    const CacheCost cost = ModelRunner(model::load_model(data("llama")).model, {}, {}, std::nullopt, drafting).cost();
    const ServiceStats stats =
        run_and_compare(data("llama"), cases, expected,
                        {.prefix_cache_bytes = kPlenty, .max_cache_bytes = 3 * cost.bytes(256), .drafting = drafting});
    expect_drafts(stats);
    EXPECT_EQ(stats.n_finished.at(FinishReason::kLength) + stats.n_finished.at(FinishReason::kCancelled), 32U);
  }
}

TEST(SchedulerDrafting, ADraftModelsCacheIsCounted) {
  const auto draft = std::make_shared<const model::LoadedModel>(model::load_model(data("llama")));
  const CacheCost alone = ModelRunner(model::load_model(data("llama")).model).cost();
  const CacheCost both =
      ModelRunner(model::load_model(data("llama")).model, {}, {}, std::nullopt, draft_with_model(draft)).cost();
  EXPECT_EQ(both.bytes_per_token, 2 * alone.bytes_per_token);
}

// Log probabilities too, which are the model's before anything else, and equal to the bit.
TEST(SchedulerDrafting, LogProbabilitiesAreThoseWithoutDrafts) {
  std::vector<std::vector<TokenEvent>> events[2];
  for (const bool drafts : {false, true}) {
    ServiceOptions options;
    if (drafts) options.drafting = always(draft_by_lookup());
    const auto service = make_service(model::load_model(data("mistral")), options);
    std::vector<std::shared_ptr<Listener>> listeners;
    for (const Case& one : cases_to_guess(120, 60, 30)) {
      listeners.push_back(std::make_shared<Listener>());
      Request request = test::request_for(one.prompt, one.max_tokens, listeners.back());
      request.sampler = one.sampler;
      request.n_likeliest = 3;
      service->submit(std::move(request));
    }
    for (const auto& listener : listeners) {
      listener->wait();
      events[drafts ? 1 : 0].push_back(listener->token_events);
    }
    EXPECT_EQ(service->stats().n_accepted_tokens > 0, drafts);
  }
  for (std::size_t i = 0; i < events[0].size(); ++i) {
    ASSERT_EQ(events[0][i].size(), events[1][i].size());
    for (std::size_t k = 0; k < events[0][i].size(); ++k) {
      EXPECT_EQ(events[0][i][k].token, events[1][i][k].token);
      EXPECT_EQ(events[0][i][k].log_probability, events[1][i][k].log_probability);
      EXPECT_EQ(events[0][i][k].likeliest, events[1][i][k].likeliest);
    }
  }
}

class ModelRunnerDrafts : public testing::Test {
 protected:
  static std::vector<float> row_after(const Tokens& tokens) {
    ModelRunner runner(model::load_model(data("mistral")).model);
    runner.create({1, tokens, 1});
    const StepRunner::Slice slice{1, tokens, true};
    const std::span<float> row = runner.run({&slice, 1})[0];
    return {row.begin(), row.end()};
  }
};

TEST_F(ModelRunnerDrafts, RowsAreThoseBehindEachDraftAndOnlyWhatIsKeptStays) {
  const Tokens text{1, 2, 3, 4, 5, 6, 7, 8, 9};
  ModelRunner runner(model::load_model(data("mistral")).model, {}, {}, std::nullopt, draft_by_lookup());
  runner.create({1, text, 1});
  const StepRunner::Slice prompt{1, std::span(text).first(5), true};
  runner.run({&prompt, 1});
  const StepRunner::Slice drafts{1, std::span(text).subspan(5, 4), true, false, 3};
  const std::span<float> rows = runner.run({&drafts, 1})[0];
  const auto n_vocab = static_cast<std::size_t>(runner.n_vocab());
  ASSERT_EQ(rows.size(), 4 * n_vocab);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::span<float> row = rows.subspan(i * n_vocab, n_vocab);
    const auto held = text.begin() + static_cast<std::ptrdiff_t>(6 + i);
    EXPECT_EQ(std::vector<float>(row.begin(), row.end()), row_after(Tokens(text.begin(), held)));
  }
  runner.keep_drafts(1, 1);
  EXPECT_EQ(runner.offset(1), 7);
  EXPECT_THROW(runner.keep_drafts(1, 0), std::invalid_argument);
  const Tokens other{20};
  const StepRunner::Slice next{1, other, true};
  const std::span<float> row = runner.run({&next, 1})[0];
  EXPECT_EQ(std::vector<float>(row.begin(), row.end()), row_after({1, 2, 3, 4, 5, 6, 7, 20}));
}

TEST_F(ModelRunnerDrafts, AStepThatFailsTakesItsDraftsBack) {
  const Tokens text{1, 2, 3, 4, 5, 6, 7, 8};
  const Tokens bad{1, 2, 99'999};
  ModelRunner runner(model::load_model(data("mistral")).model, {}, {}, std::nullopt, draft_by_lookup());
  runner.create({1, text, 1});
  runner.create({2, bad, 3});
  const StepRunner::Slice prompt{1, std::span(text).first(5), true};
  runner.run({&prompt, 1});
  const std::vector<StepRunner::Slice> both{{1, std::span(text).subspan(5), true, false, 2}, {2, bad, true}};
  EXPECT_THROW(runner.run(both), std::invalid_argument);
  EXPECT_EQ(runner.offset(1), 5);
  const StepRunner::Slice next{1, std::span(text).subspan(5), true};
  const std::span<float> row = runner.run({&next, 1})[0];
  EXPECT_EQ(std::vector<float>(row.begin(), row.end()), row_after(text));
}

// The end of a sequence whose drafts nobody has judged keeps nothing of them.
TEST_F(ModelRunnerDrafts, AnEndBeforeTheyAreJudgedKeepsNoneOfThem) {
  const Tokens text{1, 2, 3, 4, 5, 6, 7, 8};
  ModelRunner runner(model::load_model(data("llama")).model, {.max_bytes = kPlenty}, {}, std::nullopt,
                     draft_by_lookup());
  runner.create({1, text, 5});
  const StepRunner::Slice prompt{1, std::span(text).first(5), true};
  runner.run({&prompt, 1});
  const StepRunner::Slice drafts{1, std::span(text).subspan(5), true, false, 2};
  runner.run({&drafts, 1});
  runner.retire(1);
  EXPECT_EQ(runner.create({2, text, 8}), 5);
}

TEST(SchedulerDrafting, MoreDraftsThanCachesTakeBackAreRefused) {
  const auto options = ServiceOptions{.drafting = always(draft_by_lookup(), 16)};
  EXPECT_THROW(make_service(model::load_model(data("llama")), options), std::invalid_argument);
}

}  // namespace
}  // namespace memoir::engine
