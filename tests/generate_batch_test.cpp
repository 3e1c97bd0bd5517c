// generate_batch over the scheduler and its fake model, whose answers tests/fake_runner.h works out.

#include "memoir/engine/generate_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "tests/fake_runner.h"

namespace memoir::engine {
namespace {

using test::counted;
using test::fake_answer;
using test::kPoison;
using test::Tokens;

class GenerateBatch : public testing::Test {
 protected:
  std::unique_ptr<Service> service(ServiceOptions options = {}) {
    return make_service([this] { return std::make_unique<test::FakeRunner>(control_); }, std::nullopt, options);
  }

  static Request request(Tokens prompt, int max_tokens) {
    Request made;
    made.prompt = std::move(prompt);
    made.max_tokens = max_tokens;
    return made;
  }

  test::FakeControl control_;
};

TEST_F(GenerateBatch, EachRequestGetsItsAnswerOnceAndNoMoreThanAskedForAreOpen) {
  const auto made = service({.max_running = 3, .max_queued = 100});
  int n_given = 0;
  std::set<std::size_t> seen;
  const auto next = [&]() -> std::optional<Request> {
    EXPECT_LE(n_given - static_cast<int>(seen.size()), 4);
    if (n_given == 40) return std::nullopt;
    ++n_given;
    return request(counted(1 + n_given % 9, n_given), n_given % 7);
  };
  generate_batch(*made, 5, next, [&](const BatchResult& result) {
    const int i = static_cast<int>(result.index) + 1;
    EXPECT_TRUE(seen.insert(result.index).second);
    EXPECT_EQ(result.tokens, fake_answer(counted(1 + i % 9, i), i % 7));
    EXPECT_EQ(result.counts.prompt_tokens, 1 + i % 9);
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
    EXPECT_FALSE(result.error);
  });
  EXPECT_EQ(seen.size(), 40U);
}

TEST_F(GenerateBatch, WhatIsWrongOrFailsDisturbsNobody) {
  control_.fails_on_poison = true;
  const auto made = service();
  std::vector<Tokens> prompts = {counted(5), {}, {1, kPoison}, {test::kFakeVocab}, counted(9, 4), counted(2000)};
  std::size_t n_given = 0;
  std::map<std::size_t, BatchResult> results;
  generate_batch(
      *made, 8,
      [&]() -> std::optional<Request> {
        if (n_given == prompts.size()) return std::nullopt;
        return request(prompts[n_given++], 6);
      },
      [&](const BatchResult& result) { results[result.index] = result; });
  ASSERT_EQ(results.size(), prompts.size());
  for (const std::size_t good : {0U, 4U}) {
    EXPECT_FALSE(results[good].error);
    EXPECT_EQ(results[good].tokens, fake_answer(prompts[good], 6));
  }
  for (const std::size_t bad : {1U, 2U, 3U, 5U}) EXPECT_TRUE(results[bad].error) << bad;
  EXPECT_NE(results[1].error->find("empty"), std::string::npos);
  EXPECT_NE(results[3].error->find("vocabulary"), std::string::npos);
  EXPECT_NE(results[5].error->find("context"), std::string::npos);
}

TEST_F(GenerateBatch, ARefusalIsAResultWithAnError) {
  const auto made = service();
  made->drain(std::chrono::steady_clock::now());
  bool is_given = false;
  std::vector<BatchResult> results;
  generate_batch(
      *made, 2,
      [&]() -> std::optional<Request> {
        return std::exchange(is_given, true) ? std::nullopt : std::optional(request(counted(3), 2));
      },
      [&](const BatchResult& result) { results.push_back(result); });
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].error);
}

TEST_F(GenerateBatch, WhatACallbackThrowsPassesThroughAndTheRestIsCancelled) {
  control_.context = 1 << 30;
  const auto made = service({.max_running = 2});
  int n_given = 0;
  const auto next = [&]() -> std::optional<Request> {
    ++n_given;
    return request(counted(3, n_given), n_given == 1 ? 1 : 1 << 28);
  };
  EXPECT_THROW(generate_batch(*made, 4, next, [](const BatchResult&) { throw std::runtime_error("full disk"); }),
               std::runtime_error);
  made->drain(std::chrono::steady_clock::now() + std::chrono::minutes(1));
  EXPECT_EQ(made->stats().n_finished[FinishReason::kCancelled], static_cast<std::uint64_t>(n_given - 1));
}

TEST_F(GenerateBatch, NoneOpenIsRefused) {
  const auto made = service();
  EXPECT_THROW(generate_batch(
                   *made, 0, [] { return std::nullopt; }, [](const BatchResult&) {}),
               std::invalid_argument);
}

}  // namespace
}  // namespace memoir::engine
