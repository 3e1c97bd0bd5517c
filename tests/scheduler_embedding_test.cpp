// Embeddings from the scheduler over a fake model, beside requests that generate. Expected values come from the fake
// model's formula for states, pooled here.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "memoir/engine/scheduler.h"
#include "tests/fake_runner.h"

namespace memoir::engine {
namespace {

using test::counted;
using test::fake_answer;
using test::FakeControl;
using test::kPoison;
using test::Listener;
using test::request_for;
using test::Tokens;

std::vector<float> pooled(const Tokens& tokens, Pooling pooling) {
  std::vector<double> sum(test::kFakeStateSize);
  for (std::size_t n = pooling == Pooling::kMean ? 1 : tokens.size(); n <= tokens.size(); ++n) {
    const std::vector<float> state = test::state_after(std::span(tokens).first(n));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(state[i]);
  }
  double square = 0;
  for (const double value : sum) square += value * value;
  std::vector<float> unit;
  for (const double value : sum) unit.push_back(static_cast<float>(value / std::sqrt(square)));
  return unit;
}

class Embedding : public testing::Test {
 protected:
  ~Embedding() override {
    service_.reset();
    EXPECT_EQ(control_.n_broken_rules, 0);
  }

  void start(const ServiceOptions& options = {}) {
    service_ = make_service([this] { return std::make_unique<test::FakeRunner>(control_); }, std::nullopt, options);
  }

  std::shared_ptr<Listener> embed(const Tokens& tokens, Pooling pooling = Pooling::kMean) {
    const auto listener = std::make_shared<Listener>();
    Request request = request_for(tokens, 0, listener);
    request.embedding = pooling;
    last_id_ = std::get<RequestId>(service_->submit(std::move(request)));
    return listener;
  }

  std::shared_ptr<Listener> generate(const Tokens& tokens, int max_tokens) {
    const auto listener = std::make_shared<Listener>();
    service_->submit(request_for(tokens, max_tokens, listener));
    return listener;
  }

  FakeControl control_;
  std::unique_ptr<Service> service_;
  RequestId last_id_ = 0;
};

TEST_F(Embedding, IsTheMeanOrTheLastStateAtLengthOne) {
  start({.prefill_tokens_per_step = 4});
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    for (const int n_tokens : {1, 3, 4, 5, 23}) {
      const auto listener = embed(counted(n_tokens), pooling);
      listener->wait();
      EXPECT_EQ(listener->embedding, pooled(counted(n_tokens), pooling)) << n_tokens;
      ASSERT_TRUE(listener->finished);
      EXPECT_EQ(listener->finished->reason, FinishReason::kStop);
      EXPECT_EQ(listener->finished->counts.prompt_tokens, n_tokens);
      EXPECT_EQ(listener->finished->counts.completion_tokens, 0);
      EXPECT_TRUE(listener->tokens.empty());
      EXPECT_TRUE(listener->is_orderly());
    }
  }
}

TEST_F(Embedding, ALongTextIsComputedInSlicesAndNobodyWaitsForIt) {
  test::Gate gate;
  control_.before_run = [&] { gate.pass(); };
  start({.prefill_tokens_per_step = 8});
  const auto whole = embed(counted(900));
  const auto chat = std::make_shared<Listener>();
  int n_runs = 0;  // until the chat has ended
  Request request = request_for(counted(5), 40, chat);
  request.on_event = [&, chat](const Event& event) {
    n_runs = control_.n_runs;
    chat->add(event);
  };
  gate.await_arrival();
  service_->submit(std::move(request));
  gate.open();
  chat->wait();
  EXPECT_EQ(chat->tokens, fake_answer(counted(5), 40));
  whole->wait();
  EXPECT_LE(n_runs, 50);  // 900 tokens take 113 steps, the chat alone 40
  EXPECT_GE(control_.n_runs, 113);
  EXPECT_EQ(whole->embedding, pooled(counted(900), Pooling::kMean));
  EXPECT_LE(control_.max_tokens, 8);
}

TEST_F(Embedding, KeptCachesAreNeitherUsedNorMade) {
  control_.keeps_caches = true;
  start();
  generate(counted(30), 1)->wait();
  ASSERT_EQ(control_.n_retired, 1);
  const auto listener = embed(counted(30));
  listener->wait();
  EXPECT_EQ(listener->embedding, pooled(counted(30), Pooling::kMean));
  EXPECT_EQ(listener->finished->counts.cached_tokens, 0);
  EXPECT_EQ(control_.n_retired, 1);
}

TEST_F(Embedding, MakingRoomAndLostStepsChangeNoValue) {
  control_.fails_on_poison = true;
  control_.loses_caches = true;
  start({.max_running = 4, .prefill_tokens_per_step = 7, .max_cache_bytes = 120});
  std::mt19937 random(7);
  std::vector<std::pair<Tokens, std::shared_ptr<Listener>>> embeddings;
  std::vector<std::shared_ptr<Listener>> others;
  for (int i = 0; i < 24; ++i) {
    Tokens tokens = counted(std::uniform_int_distribution<int>(1, 50)(random), i);
    if (i % 3 == 0) {
      others.push_back(generate(tokens, 30));
    } else {
      if (i % 7 == 1) tokens.back() = kPoison;  // fails, and takes the others' caches along
      embeddings.emplace_back(tokens, embed(tokens, i % 2 == 0 ? Pooling::kMean : Pooling::kLast));
    }
  }
  int i = 0;
  for (const auto& [tokens, listener] : embeddings) {
    while (i % 3 == 0) ++i;
    listener->wait();
    if (tokens.back() == kPoison) {
      EXPECT_TRUE(listener->failed);
    } else {
      EXPECT_EQ(listener->embedding, pooled(tokens, i % 2 == 0 ? Pooling::kMean : Pooling::kLast));
    }
    ++i;
  }
  for (const auto& listener : others) {
    listener->wait();
    EXPECT_FALSE(listener->failed);
  }
}

TEST_F(Embedding, IsCancelledRefusedAndEndedLikeOthers) {
  test::Gate gate;
  control_.before_run = [&] { gate.pass(); };
  start({.max_running = 1, .max_queued = 1, .prefill_tokens_per_step = 4});
  const auto first = embed(counted(40));
  gate.await_arrival();
  const auto second = embed(counted(4));
  Request third = request_for(counted(4), 0, std::make_shared<Listener>());
  third.embedding = Pooling::kMean;
  EXPECT_EQ(std::get<Refusal>(service_->submit(std::move(third))), Refusal::kQueueFull);
  service_->cancel(last_id_ - 1);
  gate.open();
  first->wait();
  EXPECT_TRUE(first->is_cancelled());
  EXPECT_TRUE(first->embedding.empty());
  second->wait();
  EXPECT_EQ(second->embedding, pooled(counted(4), Pooling::kMean));
  Request empty = request_for({}, 0, std::make_shared<Listener>());
  empty.embedding = Pooling::kMean;
  EXPECT_THROW(service_->submit(std::move(empty)), std::invalid_argument);
}

TEST_F(Embedding, AListenerThatThrowsIsCancelled) {
  start();
  const auto listener = std::make_shared<Listener>();
  Request request = request_for(counted(4), 0, listener);
  request.embedding = Pooling::kMean;
  request.on_event = [listener](const Event& event) {
    listener->add(event);
    if (std::holds_alternative<EmbeddingEvent>(event)) throw std::runtime_error("no room for it");
  };
  service_->submit(std::move(request));
  listener->wait();
  EXPECT_TRUE(listener->is_cancelled());
}

}  // namespace
}  // namespace memoir::engine
