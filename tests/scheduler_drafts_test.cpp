// Drafts in the scheduler, over a fake model: with them each request's tokens and events are those that it has without,
// whatever is guessed and whatever joins, leaves or fails. Expected tokens come from the fake model's formula.

#include <gtest/gtest.h>

#include <future>

#include "memoir/engine/scheduler.h"
#include "tests/fake_runner.h"
#include "tests/scheduler_fixture.h"

namespace memoir::engine {
namespace {

using test::counted;
using test::fake_answer;
using test::FakeControl;
using test::kFakeVocab;
using test::kPoison;
using test::Listener;
using test::request_for;
using test::Tokens;
using Clock = std::chrono::steady_clock;

class SchedulerDrafts : public test::SchedulerFixture {
 protected:
  SchedulerDrafts() {
    control_.max_drafts = 4;
    control_.adapts_drafts = false;  // whether they pay is a matter of the machine
  }
};

TEST_F(SchedulerDrafts, SeveralTokensComeFromAStep) {
  start();
  const auto listener = answer(counted(5), 100);
  EXPECT_EQ(listener->tokens, fake_answer(counted(5), 100));
  ASSERT_TRUE(listener->finished);
  const Counts& counts = listener->finished->counts;
  const ServiceStats stats = service_->stats();
  // Each is a row of a pass: the first of the prompt's, the others one a step and one for each draft that was right.
  EXPECT_EQ(static_cast<int>(stats.n_steps) + counts.accepted_tokens, 100);
  EXPECT_LT(stats.n_steps, 60U);
  EXPECT_EQ(counts.drafted_tokens, counts.accepted_tokens);  // the fake's guesses are right
  EXPECT_EQ(stats.n_drafted_tokens, static_cast<std::uint64_t>(counts.drafted_tokens));
  EXPECT_EQ(stats.n_accepted_tokens, static_cast<std::uint64_t>(counts.accepted_tokens));
  EXPECT_GT(stats.n_draft_rounds, 0U);
  EXPECT_LT(stats.n_draft_rounds, stats.n_steps);
  EXPECT_EQ(stats.n_completion_tokens, 100U);
}

TEST_F(SchedulerDrafts, DraftsThatAreWrongChangeNoToken) {
  control_.is_draft_right = [](std::size_t place) { return place % 3 != 0; };
  start({.max_running = 4, .prefill_tokens_per_step = 16});
  std::vector<Sent> sent;
  for (int i = 0; i < 24; ++i) {
    sent.push_back(send(counted(1 + i * 3 % 41, i), 1 + i * 5 % 37, [&](Request& request) {
      request.n_likeliest = 2;
      request.sampler.temperature = i % 2 == 0 ? 0 : 0.5;
      request.sampler.seed = 7;
      request.sampler.top_k = 1;
    }));
  }
  std::uint64_t n_drafted = 0;
  for (int i = 0; i < 24; ++i) {
    const auto& listener = *sent[static_cast<std::size_t>(i)].listener;
    sent[static_cast<std::size_t>(i)].listener->wait();
    const Tokens expected = fake_answer(counted(1 + i * 3 % 41, i), 1 + i * 5 % 37);
    EXPECT_EQ(listener.tokens, expected);
    for (const TokenEvent& event : listener.token_events) {
      EXPECT_EQ(event.likeliest.at(0).first, event.token);
      EXPECT_EQ(event.likeliest.at(0).second, event.log_probability);
    }
    ASSERT_TRUE(listener.finished);
    n_drafted += static_cast<std::uint64_t>(listener.finished->counts.drafted_tokens);
  }
  const ServiceStats stats = service_->stats();
  EXPECT_EQ(stats.n_drafted_tokens, n_drafted);
  EXPECT_GT(stats.n_accepted_tokens, 0U);
  EXPECT_LT(stats.n_accepted_tokens, stats.n_drafted_tokens);
}

TEST_F(SchedulerDrafts, NothingIsDraftedBehindTheLastTokenOrTheContextsEnd) {
  control_.context = 30;
  start();
  for (const int n : {1, 2, 3, 5, 9}) {
    EXPECT_EQ(answer(counted(8), n)->tokens, fake_answer(counted(8), n));
  }
  const auto full = answer(counted(8), 100);
  EXPECT_EQ(full->tokens, fake_answer(counted(8), 23));
  EXPECT_EQ(full->finished->reason, FinishReason::kLength);
  EXPECT_EQ(service_->stats().n_drafted_tokens, service_->stats().n_accepted_tokens);
}

TEST_F(SchedulerDrafts, AStopTokenAmongTheDraftsEndsTheAnswer) {
  start();
  for (int n = 3; n < 20; ++n) {
    const Tokens whole = fake_answer(counted(6, n), 40);
    const TokenId stop = whole[static_cast<std::size_t>(n)];
    const auto end = std::find(whole.begin(), whole.end(), stop);
    const auto listener = answer(counted(6, n), 40, [&](Request& request) { request.stop_tokens = {stop}; });
    EXPECT_EQ(listener->tokens, Tokens(whole.begin(), end));
    EXPECT_EQ(listener->finished->reason, FinishReason::kStop);
  }
}

// Forbids what the model would say at every fifth place, and counts what it is told.
class Forbids : public LogitsProcessor {
 public:
  void apply(std::span<float> logits) override {
    if (n_accepted_ % 5 == 4) *std::max_element(logits.begin(), logits.end()) = -1e30F;
  }
  void accept(TokenId token) override {
    ++n_accepted_;
    last_ = token;
  }

 private:
  int n_accepted_ = 0;
  TokenId last_ = 0;
};

TEST_F(SchedulerDrafts, AProcessorSeesTheTokensOneAfterTheOther) {
  const auto constrained = [](Request& request) { request.processor = std::make_unique<Forbids>(); };
  control_.max_drafts = 0;
  start();
  const Tokens plain = answer(counted(6), 60, constrained)->tokens;
  service_.reset();
  ASSERT_NE(plain, fake_answer(counted(6), 60));
  control_.max_drafts = 4;
  start();
  EXPECT_EQ(answer(counted(6), 60, constrained)->tokens, plain);
  EXPECT_GT(service_->stats().n_accepted_tokens, 0U);
  EXPECT_LT(service_->stats().n_accepted_tokens, service_->stats().n_drafted_tokens);
}

TEST_F(SchedulerDrafts, PenaltiesSeeTheDraftsBefore) {
  const auto penalized = [](Request& request) {
    request.sampler.repetition_penalty = 3;
    request.sampler.frequency_penalty = 0.7;
    request.sampler.temperature = 1;
    request.sampler.seed = 3;
  };
  control_.max_drafts = 0;
  start();
  const Tokens plain = answer(counted(6), 80, penalized)->tokens;
  service_.reset();
  control_.max_drafts = 4;
  start();
  EXPECT_EQ(answer(counted(6), 80, penalized)->tokens, plain);
}

TEST_F(SchedulerDrafts, ACancelAtAnyEventOfARoundEndsTheRequestWithinAStep) {
  control_.keeps_caches = true;
  start({.prefill_tokens_per_step = 4});
  const Tokens prompt = counted(12);
  const auto other = send(counted(9, 3), 300);
  for (int n_tokens = 1; n_tokens < 30; ++n_tokens) {
    auto id = std::make_shared<std::promise<RequestId>>();
    const auto sent = send(prompt, 200, [&, n = n_tokens, known = id->get_future().share()](Request& request) {
      request.on_event = [this, n, known, send_on = request.on_event, seen = 0](const Event& event) mutable {
        send_on(event);
        if (std::holds_alternative<TokenEvent>(event) && ++seen == n) service_->cancel(known.get());
      };
    });
    id->set_value(sent.id);
    sent.listener->wait();
    EXPECT_TRUE(sent.listener->is_cancelled());
    const auto n_seen = static_cast<int>(sent.listener->tokens.size());
    EXPECT_GE(n_seen, n_tokens);
    EXPECT_LE(n_seen, n_tokens + control_.max_drafts);
    EXPECT_EQ(sent.listener->tokens, fake_answer(prompt, n_seen));
  }
  other.listener->wait();
  EXPECT_EQ(other.listener->tokens, fake_answer(counted(9, 3), 300));
}

TEST_F(SchedulerDrafts, AListenerThatThrowsInARoundIsCancelledAlone) {
  start();
  const auto other = send(counted(6), 60);
  for (int n_before = 2; n_before < 16; ++n_before) {
    const auto thrower = send(counted(7), 60, [&](Request& request) {
      request.on_event = [n = n_before, send_on = request.on_event](const Event& event) mutable {
        if (std::holds_alternative<TokenEvent>(event) && n-- == 0) throw 42;
        send_on(event);
      };
    });
    thrower.listener->wait();
    EXPECT_TRUE(thrower.listener->is_cancelled());
    EXPECT_EQ(thrower.listener->tokens, fake_answer(counted(7), n_before));
  }
  other.listener->wait();
  EXPECT_EQ(other.listener->tokens, fake_answer(counted(6), 60));
}

// A draft of the poison makes the step fail; computed alone, without drafts, everybody goes on.
TEST_F(SchedulerDrafts, AStepThatFailsForItsDraftsIsComputedWithoutThem) {
  class PoisonedDrafts : public test::FakeRunner {
   public:
    using FakeRunner::FakeRunner;
    Tokens propose(SequenceId sequence, std::span<const TokenId> text, int n_max) override {
      Tokens drafts = FakeRunner::propose(sequence, text, n_max);
      if (text.size() % 7 == 0) drafts.back() = kPoison;
      return drafts;
    }
  };
  for (const bool loses : {false, true}) {
    control_.fails_on_poison = true;
    control_.loses_caches = loses;
    service_ = make_service([this] { return std::make_unique<PoisonedDrafts>(control_); }, std::nullopt,
                            {.prefill_tokens_per_step = 8});
    std::vector<Sent> sent;
    for (int i = 0; i < 6; ++i) sent.push_back(send(counted(3 + i, i + 1), 50));
    for (int i = 0; i < 6; ++i) {
      const auto& listener = sent[static_cast<std::size_t>(i)].listener;
      listener->wait();
      EXPECT_FALSE(listener->failed);
      EXPECT_EQ(listener->tokens, fake_answer(counted(3 + i, i + 1), 50));
    }
    EXPECT_EQ(service_->stats().n_failed, 0U);
    service_.reset();
  }
}

TEST_F(SchedulerDrafts, ARequestWhoseDraftsCannotBeMadeGoesOnWithout) {
  control_.fails_to_draft = true;
  start();
  const auto failing = send(counted(5, 1), 60);  // its prompt begins with 1
  const auto other = send(counted(5, 2), 60);
  failing.listener->wait();
  other.listener->wait();
  EXPECT_EQ(failing.listener->tokens, fake_answer(counted(5, 1), 60));
  EXPECT_EQ(failing.listener->finished->counts.drafted_tokens, 0);
  EXPECT_EQ(other.listener->tokens, fake_answer(counted(5, 2), 60));
  EXPECT_GT(other.listener->finished->counts.accepted_tokens, 0);
}

TEST_F(SchedulerDrafts, DraftsOutsideTheVocabularyOrTooManyAreLeftOut) {
  class Strange : public test::FakeRunner {
   public:
    using FakeRunner::FakeRunner;
    Tokens propose(SequenceId sequence, std::span<const TokenId> text, int n_max) override {
      FakeRunner::propose(sequence, text, n_max);
      return text[0] == 1 ? Tokens{kFakeVocab} : Tokens(static_cast<std::size_t>(n_max) + 1, 0);
    }
  };
  service_ = make_service([this] { return std::make_unique<Strange>(control_); }, std::nullopt, {});
  for (const int first : {1, 2}) {
    EXPECT_EQ(answer(counted(5, first), 40)->tokens, fake_answer(counted(5, first), 40));
  }
  EXPECT_EQ(service_->stats().n_drafted_tokens, 0U);
}

class SchedulerDraftsKept : public SchedulerDrafts, public testing::WithParamInterface<bool> {};

TEST_P(SchedulerDraftsKept, RequestsThatArePagedOutComeBack) {
  control_.cost = {0, 1, 4};
  control_.is_draft_right = [](std::size_t place) { return place % 5 != 0; };
  control_.keeps_caches = GetParam();
  hold_first_step();  // until all are there: else each may find the others gone
  start({.max_running = 6, .max_cache_bytes = 90});
  std::vector<Sent> sent;
  for (int i = 0; i < 12; ++i) sent.push_back(send(counted(4 + i, i), 30 + i));
  gate_.open();
  for (int i = 0; i < 12; ++i) {
    sent[static_cast<std::size_t>(i)].listener->wait();
    EXPECT_EQ(sent[static_cast<std::size_t>(i)].listener->tokens, fake_answer(counted(4 + i, i), 30 + i));
  }
  EXPECT_GT(control_.n_retired, 12) << "nobody was paged out";
  EXPECT_GT(service_->stats().n_accepted_tokens, 0U);
  EXPECT_EQ(service_->stats().cache_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(Caches, SchedulerDraftsKept, testing::Bool(),
                         [](const auto& kept) { return kept.param ? "Kept" : "Dropped"; });

TEST_F(SchedulerDrafts, AnEmbeddingBesideDraftsIsWhatItIsAlone) {
  start({.prefill_tokens_per_step = 5});
  const auto talking = send(counted(6), 150);
  const auto embed = [](Request& request) { request.embedding = Pooling::kMean; };
  const auto beside = answer(counted(23, 4), 0, embed);
  talking.listener->wait();
  const auto alone = answer(counted(23, 4), 0, embed);
  EXPECT_FALSE(alone->embedding.empty());
  EXPECT_EQ(beside->embedding, alone->embedding);
  EXPECT_EQ(talking.listener->tokens, fake_answer(counted(6), 150));
}

}  // namespace
}  // namespace memoir::engine
