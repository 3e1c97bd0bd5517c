// The scheduler over real models: each request's tokens are those that engine::generate gives it alone, bit for bit of
// the logits that chose them, since every draw depends on them.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <atomic>

#include "memoir/engine/generate.h"
#include "memoir/engine/model_runner.h"
#include "memoir/engine/scheduler.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/fake_runner.h"
#include "tests/model_files.h"
#include "tests/service_cases.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using test::answers_alone;
using test::Case;
using test::Listener;
using test::mixed_cases;
using test::run_and_compare;
using test::Tokens;

class CountingRunner : public ModelRunner {
 public:
  CountingRunner(std::size_t n_kept, std::atomic<int>& n_created)
      : ModelRunner(model::load_model(test::data("llama")).model, {.max_bytes = n_kept}), n_created_(n_created) {}
  int create(const NewSequence& sequence) override {
    ++n_created_;
    return ModelRunner::create(sequence);
  }

 private:
  std::atomic<int>& n_created_;
};

TEST(SchedulerOnATinyModel, ThirtyTwoRequestsGetTheTokensTheyGetAlone) {
  const std::vector<Case> cases = mixed_cases(160, 200, 40);
  const std::vector<Tokens> expected = answers_alone(test::data("llama"), cases);
  const ServiceStats stats =
      run_and_compare(test::data("llama"), cases, expected, {.max_running = 8, .prefill_tokens_per_step = 48});
  EXPECT_EQ(stats.n_submitted, 32U);
  EXPECT_EQ(stats.n_cached_tokens, 0U);
  EXPECT_EQ(stats.cache_bytes, 0U);
}

// States that can't be rewound, in some layers and beside attention.
TEST(SchedulerOnATinyModel, RequestsToHybridModelsGetTheTokensTheyGetAlone) {
  const std::vector<Case> cases = mixed_cases(120, 100, 20);
  for (const std::string name : {"falcon_h1", "qwen3_next"}) {
    SCOPED_TRACE(name);
    const std::vector<Tokens> expected = answers_alone(test::data(name), cases);
    const ServiceStats stats =
        run_and_compare(test::data(name), cases, expected,
                        {.max_running = 8, .prefill_tokens_per_step = 48, .prefix_cache_bytes = std::size_t{1} << 24});
    EXPECT_EQ(stats.n_submitted, 32U);
  }
}

TEST(SchedulerOnATinyModel, ThePrefixCacheChangesNoToken) {
  const std::vector<Case> cases = mixed_cases(160, 200, 40);
  const std::vector<Tokens> expected = answers_alone(test::data("llama"), cases);
  const ServiceStats stats =
      run_and_compare(test::data("llama"), cases, expected,
                      {.max_running = 3, .prefill_tokens_per_step = 48, .prefix_cache_bytes = std::size_t{1} << 24});
  EXPECT_GT(stats.n_cached_tokens, 0U);
  EXPECT_GT(stats.prefix_cache.bytes, 0U);
  EXPECT_LE(stats.prefix_cache.bytes, std::size_t{1} << 24);
}

// Rings, chunks, recurrent states and both sorts of layers at once; in plenty of room and in too little.
TEST(SchedulerOnTinyModels, ThePrefixCacheChangesNoTokenWhateverTheLayersKeep) {
  for (const char* const name : {"mistral", "gemma3", "llama4", "mamba2", "lfm2"}) {
    SCOPED_TRACE(name);
    const std::vector<Case> cases = mixed_cases(160, 200, 20);
    const std::vector<Tokens> expected = answers_alone(test::data(name), cases);
    for (const std::size_t n_kept : {std::size_t{1} << 26, std::size_t{300'000}}) {
      const ServiceStats stats =
          run_and_compare(test::data(name), cases, expected,
                          {.max_running = 4, .prefill_tokens_per_step = 64, .prefix_cache_bytes = n_kept});
      EXPECT_GT(stats.n_cached_tokens, 0U);
      EXPECT_LE(stats.prefix_cache.bytes, n_kept);
    }
  }
}

TEST(SchedulerOnATinyModel, MakingRoomChangesNoToken) {
  const std::vector<Case> cases = mixed_cases(160, 255, 200);
  const std::vector<Tokens> expected = answers_alone(test::data("llama"), cases);
  const CacheCost cost = ModelRunner(model::load_model(test::data("llama")).model).cost();
  ASSERT_GT(cost.bytes_per_token, 0U);
  for (const std::size_t n_kept : {std::size_t{0}, std::size_t{1} << 24}) {
    std::atomic<int> n_created = 0;
    const auto make_runner = [&] { return std::make_unique<CountingRunner>(n_kept, n_created); };
    const ServiceStats stats = run_and_compare(
        make_service(make_runner, std::nullopt, {.max_cache_bytes = 3 * cost.bytes(256)}), cases, expected);
    EXPECT_GT(n_created, 32) << "nobody was paged out";
    EXPECT_EQ(stats.n_finished.at(FinishReason::kLength) + stats.n_finished.at(FinishReason::kCancelled), 32U);
  }
}

TEST(SchedulerOnATinyModel, GreedyTokensAreTheReferences) {
  const test::Tensors golden = mx::load_safetensors((test::data("llama") / "expected.safetensors").string()).first;
  const auto tokens_of = [&](const char* name) {
    mx::array a = golden.at(name);
    mx::eval(a);
    return Tokens(a.data<std::int32_t>(), a.data<std::int32_t>() + a.size());
  };
  const auto service = make_service(model::load_model(test::data("llama")), {.prefill_tokens_per_step = 7});
  const auto listener = std::make_shared<Listener>();
  service->submit(test::request_for(tokens_of("prompt"), 48, listener));
  listener->wait();
  EXPECT_EQ(listener->tokens, tokens_of("greedy"));
}

class ModelRunnerTest : public testing::Test {
 protected:
  std::unique_ptr<ModelRunner> runner(std::size_t n_kept) const {
    return std::make_unique<ModelRunner>(model::load_model(test::data("llama")).model,
                                         prefix::StoreOptions{.max_bytes = n_kept});
  }
};

TEST_F(ModelRunnerTest, EstimatesWhatACacheTakes) {
  const auto runner_ = runner(0);
  const Tokens tokens(300, 5);
  for (const std::size_t n_tokens : {1U, 256U, 257U, 300U}) {
    runner_->create({1, tokens, 300});
    const StepRunner::Slice slice{1, std::span(tokens).first(n_tokens), false};
    runner_->run({&slice, 1});
    EXPECT_EQ(runner_->cache_bytes(1), runner_->cost().bytes(static_cast<int>(n_tokens)));
    runner_->drop(1);
  }
}

TEST_F(ModelRunnerTest, AStepThatCannotBeBuiltMovesNoSequence) {
  const auto runner_ = runner(0);
  const Tokens good(20, 5);
  const Tokens bad{1, 2, 99'999};
  runner_->create({1, good, 20});
  runner_->create({2, bad, 3});
  const StepRunner::Slice first{1, std::span(good).first(10), false};
  runner_->run({&first, 1});
  const std::vector<StepRunner::Slice> both{{1, std::span(good).subspan(10), true}, {2, bad, true}};
  EXPECT_THROW(runner_->run(both), std::invalid_argument);
  EXPECT_EQ(runner_->offset(1), 10);
  EXPECT_EQ(runner_->offset(2), 0);
  const std::vector<std::span<float>> rows = runner_->run({both.data(), 1});
  const std::vector<float> after_failure(rows[0].begin(), rows[0].end());
  runner_->create({3, good, 20});
  const StepRunner::Slice whole{3, good, true};
  const std::span<float> row = runner_->run({&whole, 1})[0];
  EXPECT_EQ(after_failure, std::vector<float>(row.begin(), row.end()));
  EXPECT_THROW(runner_->create({3, good, 20}), std::invalid_argument);
  EXPECT_THROW(runner_->offset(4), std::invalid_argument);
}

TEST_F(ModelRunnerTest, ACacheThatWouldBeTooLargeBeginsEmpty) {
  const auto runner_ = runner(std::size_t{1} << 30);
  const Tokens tokens(300, 5);
  runner_->create({1, tokens, 300});
  const StepRunner::Slice slice{1, tokens, false};
  runner_->run({&slice, 1});
  runner_->retire(1);
  const std::size_t n_needed = runner_->cost().bytes(200);
  EXPECT_EQ(runner_->create({2, std::span(tokens).first(200), 200, {}, n_needed - 1}), 0);
  EXPECT_EQ(runner_->create({3, std::span(tokens).first(200), 200, {}, n_needed}), 199);
  EXPECT_EQ(runner_->cache_bytes(3), n_needed);
}

TEST(SchedulerOnSmolLM2, ThirtyTwoRequestsGetTheTokensTheyGetAlone) {
  const std::vector<Case> cases = mixed_cases(49'152, 80, 10);
  const std::vector<Tokens> expected = answers_alone(MEMOIR_TEST_SMOLLM2, cases);
  run_and_compare(MEMOIR_TEST_SMOLLM2, cases, expected, {.max_running = 12, .prefill_tokens_per_step = 70});
  const ServiceStats stats =
      run_and_compare(MEMOIR_TEST_SMOLLM2, cases, expected,
                      {.max_running = 6, .prefill_tokens_per_step = 50, .prefix_cache_bytes = std::size_t{1} << 29});
  EXPECT_GT(stats.n_cached_tokens, 0U);
}

TEST(SchedulerOnSmolLM2, StreamsTextThatEndsBeforeAStopString) {
  model::LoadedModel loaded = model::load_model(MEMOIR_TEST_SMOLLM2);
  const Tokens prompt = loaded.tokenizer->encode("The capital of France is");
  const auto service = make_service(std::move(loaded), {});
  const auto listener = std::make_shared<Listener>();
  Request request = test::request_for(prompt, 16, listener);
  request.stop_strings = {"Par", "xyz"};
  service->submit(std::move(request));
  listener->wait();
  EXPECT_EQ(listener->text, " ");
  EXPECT_EQ(listener->finished->reason, FinishReason::kStop);
}

}  // namespace
}  // namespace memoir::engine
