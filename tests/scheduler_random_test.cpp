// Random services and clients over a fake model, on several threads: what must hold whatever happens when.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

// Services with random options, and clients on several threads that send, cancel and leave as they like.
class RandomRun {
 public:
  explicit RandomRun(std::uint64_t seed) : random_(seed) {}

  void run() {
    control_.keeps_caches = number(0, 1) == 1;
    control_.shares_prompts = number(0, 1) == 1;
    control_.fails_on_poison = true;
    control_.fails_to_begin = number(0, 1) == 1;
    control_.loses_caches = number(0, 1) == 1;
    control_.cost = {0, 1, number(1, 8)};
    if (number(0, 1) == 1) {
      control_.max_drafts = number(1, 6);
      control_.fails_to_draft = number(0, 3) == 0;
      control_.is_draft_right = [every = static_cast<std::size_t>(number(1, 5))](std::size_t place) {
        return place % every != 0;
      };
    }
    control_.context = n_context_;
    ServiceOptions options;
    options.max_running = number(1, 5);
    options.max_queued = number(0, 20);
    options.prefill_tokens_per_step = number(1, 20);
    if (number(0, 1)) {
      options.max_cache_bytes = static_cast<std::size_t>(number(60, 200));
      n_context_ = std::min(n_context_, control_.cost.tokens_within(*options.max_cache_bytes));
    }
    service_ = make_service([this] { return std::make_unique<test::FakeRunner>(control_); }, std::nullopt, options);
    std::vector<std::thread> clients;
    for (int i = 0; i < 2; ++i) clients.emplace_back([this, seed = random_()] { client(seed); });
    for (std::thread& thread : clients) thread.join();
    const int how = number(0, 2);
    if (how == 0) service_->drain(Clock::now() + seconds(600));
    if (how == 1) service_->drain(Clock::now());
    const ServiceStats stats = service_->stats();
    if (how < 2) {
      EXPECT_EQ(stats.n_running + stats.n_queued, 0);
      EXPECT_EQ(stats.cache_bytes, 0U);
    }
    service_.reset();
    check(how == 0);
  }

 private:
  struct Sent {
    Tokens prompt;
    int max_tokens;
    bool is_cancelled;
    std::shared_ptr<Listener> listener;
  };

  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void client(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int i = 0; i < 8; ++i) {
      Sent sent{counted(draw(1, 50), draw(0, 5)), draw(0, 30), draw(0, 3) == 0, std::make_shared<Listener>()};
      if (draw(0, 9) == 0)
        sent.prompt[static_cast<std::size_t>(draw(0, static_cast<int>(sent.prompt.size()) - 1))] = kPoison;
      Request request = request_for(sent.prompt, sent.max_tokens, sent.listener);
      request.priority = draw(-1, 1);
      if (draw(0, 9) == 0) {
        request.deadline = Clock::now() + std::chrono::microseconds(draw(0, 500));
        sent.is_cancelled = true;
      }
      const auto outcome = service_->submit(std::move(request));
      if (std::holds_alternative<Refusal>(outcome)) continue;
      if (sent.is_cancelled && draw(0, 1)) std::this_thread::yield();
      if (sent.is_cancelled) service_->cancel(std::get<RequestId>(outcome));
      const std::lock_guard lock(mutex_);
      sent_.push_back(std::move(sent));
    }
  }

  void check(bool ran_to_the_end) {
    EXPECT_EQ(control_.n_broken_rules, 0);
    EXPECT_TRUE(control_.is_destroyed);
    for (const Sent& sent : sent_) {
      ASSERT_TRUE(sent.listener->has_ended());
      EXPECT_TRUE(sent.listener->is_orderly());
      const auto n_tokens = static_cast<int>(sent.listener->tokens.size());
      EXPECT_EQ(sent.listener->tokens, fake_answer(sent.prompt, n_tokens));
      const bool is_bad = std::find(sent.prompt.begin(), sent.prompt.end(), kPoison) != sent.prompt.end();
      const int n_expected = std::min(sent.max_tokens, n_context_ + 1 - static_cast<int>(sent.prompt.size()));
      if (!ran_to_the_end || sent.is_cancelled) {
        EXPECT_LE(n_tokens, n_expected);
      } else if (is_bad) {
        EXPECT_TRUE(sent.listener->failed);
      } else {
        EXPECT_EQ(n_tokens, n_expected);
        EXPECT_FALSE(sent.listener->failed) << sent.listener->failed->message;
      }
    }
  }

  std::mt19937_64 random_;
  int n_context_ = 60;  // what is left of the fake's with the bytes there are
  FakeControl control_;
  std::unique_ptr<Service> service_;
  std::mutex mutex_;
  std::vector<Sent> sent_;
};

TEST(SchedulerAtRandom, EveryRequestEndsOnceWithTheTokensItGetsAlone) {
  const std::uint64_t base = std::random_device{}();
  for (std::uint64_t i = 0; i < 1000; ++i) {
    RandomRun(base + i).run();
    if (testing::Test::HasFailure()) FAIL() << "seed " << base + i;
  }
  std::printf("seeds %llu and the 999 after it\n", static_cast<unsigned long long>(base));
}

}  // namespace
}  // namespace memoir::engine
