// The scheduler with the cache options that a user may choose: each request's tokens are those that engine::generate
// gives with the same options alone, however prompts are cut and whoever runs beside.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include "memoir/engine/generate.h"
#include "memoir/engine/model_runner.h"
#include "memoir/engine/scheduler.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/fake_runner.h"
#include "tests/model_files.h"

namespace memoir::engine {
namespace {

using test::Listener;
using test::Tokens;

std::vector<Tokens> prompts_of(int n_vocab, int n_longest) {
  std::vector<Tokens> prompts;
  for (int i = 0; i < 6; ++i) {
    Tokens tokens;
    for (int k = 0; k < 5 + (n_longest - 5) * i / 5; ++k) tokens.push_back((i * 31 + k * 17 + k * k) % n_vocab);
    prompts.push_back(std::move(tokens));
  }
  // Twice, so that some find what others have left.
  for (int i = 0; i < 6; ++i) prompts.push_back(Tokens(prompts[static_cast<std::size_t>(i)]));
  return prompts;
}

void expect_same_as_alone(const test::fs::path& path, const cache::CacheOptions& caches, int n_longest, int n_tokens) {
  const model::LoadedModel loaded = model::load_model(path);
  const std::vector<Tokens> prompts = prompts_of(loaded.model->config().vocab_size, n_longest);
  const auto service = make_service(
      model::load_model(path),
      {.max_running = 4, .prefill_tokens_per_step = 7, .prefix_cache_bytes = std::size_t{1} << 24}, caches);
  std::vector<std::shared_ptr<Listener>> listeners;
  for (const Tokens& prompt : prompts) {
    listeners.push_back(std::make_shared<Listener>());
    service->submit(test::request_for(prompt, n_tokens, listeners.back()));
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Session session(*loaded.model, caches);
    GenerateOptions options;
    options.max_tokens = n_tokens;
    const Tokens expected = generate(session, prompts[i], options, nullptr).tokens;
    listeners[i]->wait();
    EXPECT_EQ(listeners[i]->tokens, expected) << i;
  }
}

TEST(SchedulerWithCacheOptions, ARingAndHalfPrecisionGiveTheTokensOfARequestAlone) {
  expect_same_as_alone(test::data("llama"), {.max_size = 24}, 60, 30);
  expect_same_as_alone(test::data("llama"), {.dtype = mlx::core::float16}, 60, 30);
}

TEST(SchedulerWithCacheOptions, QuantizedRowsGiveTheTokensOfARequestAlone) {
  const test::fs::path smollm2 = MEMOIR_TEST_SMOLLM2;
  if (!test::fs::exists(smollm2)) GTEST_SKIP() << "no model";
  expect_same_as_alone(smollm2, {.quantization = cache::KVQuantization{8, 64}}, 40, 8);
}

TEST(SchedulerWithCacheOptions, ACacheIsCountedAsTheOptionsSay) {
  const auto cost_with = [](const cache::CacheOptions& caches) {
    return ModelRunner(model::load_model(test::data("llama")).model, {}, caches).cost();
  };
  const CacheCost dense = cost_with({});
  EXPECT_EQ(cost_with({.dtype = mlx::core::float16}).bytes_per_token * 2, dense.bytes_per_token);
}

}  // namespace
}  // namespace memoir::engine
