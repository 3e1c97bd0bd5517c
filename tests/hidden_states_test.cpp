// States behind the final norm, and embeddings made of them, against transformers' last_hidden_state in float32
// (tests/README.md).

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>

#include "memoir/engine/scheduler.h"
#include "tests/fake_runner.h"
#include "tests/golden.h"

namespace mx = mlx::core;

namespace memoir {
namespace {

using test::expected_of;
using test::kTolerance;
using test::Listener;
using test::max_difference;
using test::request_for;
using test::tokens_of;

mx::array expected_states(const std::string& family) {
  return mx::load_safetensors((test::data(family) / "hidden_states.safetensors").string()).first.at("hidden_states");
}

std::vector<float> expected_embedding(const std::string& family, engine::Pooling pooling) {
  const mx::array states = expected_states(family);
  mx::array pooled = pooling == engine::Pooling::kMean ? mx::mean(states, 0) : mx::take(states, states.shape(0) - 1, 0);
  pooled = mx::divide(pooled, mx::sqrt(mx::sum(mx::square(pooled))));
  mx::eval(pooled);
  return {pooled.data<float>(), pooled.data<float>() + pooled.size()};
}

// Two of them end in an RMS norm, one in a layer norm, and one has recurrent layers.
const std::vector<std::string> kFamilies = {"llama", "gemma3", "cohere2", "mamba2"};

TEST(HiddenStates, AreTheReferencesAndLogitsAreMadeOfThem) {
  for (const std::string& family : kFamilies) {
    const model::LoadedModel loaded = model::load_model(test::data(family));
    const std::vector<TokenId> prompt = tokens_of(expected_of(family).at("prompt"));
    cache::ModelCache cache = loaded.model->make_cache();
    const std::vector<model::SequenceTokens> sequences = {{prompt, &cache, model::LogitRows::kAll}};
    const mx::array states = loaded.model->hidden_states(sequences);
    EXPECT_LT(max_difference(states, expected_states(family)), kTolerance) << family;
    EXPECT_LT(max_difference(loaded.model->logits_of(states), expected_of(family).at("logits")), kTolerance) << family;
  }
}

TEST(HiddenStates, RowsThatAreAskedForAreTheBitsOfAllRows) {
  const model::LoadedModel loaded = model::load_model(test::data("llama"));
  const std::vector<TokenId> prompt = tokens_of(expected_of("llama").at("prompt"));
  const auto states_of = [&](model::LogitRows rows) {
    cache::ModelCache cache = loaded.model->make_cache();
    const std::vector<model::SequenceTokens> sequences = {{prompt, &cache, rows}};
    return loaded.model->hidden_states(sequences);
  };
  const mx::array all = states_of(model::LogitRows::kAll);
  const mx::array last = states_of(model::LogitRows::kLast);
  ASSERT_EQ(last.shape(), (mx::Shape{1, all.shape(1)}));
  EXPECT_TRUE(mx::array_equal(last, mx::slice(all, {all.shape(0) - 1, 0}, all.shape())).item<bool>());
  EXPECT_EQ(states_of(model::LogitRows::kNone).shape(0), 0);
}

std::shared_ptr<Listener> embed(engine::Service& service, const std::vector<TokenId>& prompt, engine::Pooling pooling) {
  const auto listener = std::make_shared<Listener>();
  engine::Request request = request_for(prompt, 0, listener);
  request.embedding = pooling;
  service.submit(std::move(request));
  return listener;
}

TEST(Embeddings, AreTheReferencesPooledStates) {
  for (const std::string& family : kFamilies) {
    const std::vector<TokenId> prompt = tokens_of(expected_of(family).at("prompt"));
    const auto service = engine::make_service(model::load_model(test::data(family)), {.prefill_tokens_per_step = 16});
    for (const engine::Pooling pooling : {engine::Pooling::kMean, engine::Pooling::kLast}) {
      const auto listener = embed(*service, prompt, pooling);
      listener->wait();
      const std::vector<float> expected = expected_embedding(family, pooling);
      ASSERT_EQ(listener->embedding.size(), expected.size()) << family;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(listener->embedding[i], expected[i], 1e-4F) << family << " " << i;
      }
    }
  }
}

TEST(Embeddings, AreTheSameBitsHoweverTheyAreCutAndNextToWhomever) {
  const std::vector<TokenId> prompt = tokens_of(expected_of("llama").at("prompt"));
  const auto alone = engine::make_service(model::load_model(test::data("llama")), {.prefill_tokens_per_step = 512});
  const auto whole = embed(*alone, prompt, engine::Pooling::kMean);
  whole->wait();
  const auto generated = std::make_shared<Listener>();
  alone->submit(request_for(prompt, 30, generated));
  generated->wait();

  const auto shared = engine::make_service(model::load_model(test::data("llama")), {.prefill_tokens_per_step = 7});
  std::vector<std::shared_ptr<Listener>> embeddings;
  std::vector<std::shared_ptr<Listener>> chats;
  for (int i = 0; i < 6; ++i) {
    embeddings.push_back(embed(*shared, prompt, engine::Pooling::kMean));
    chats.push_back(std::make_shared<Listener>());
    shared->submit(request_for(prompt, 30, chats.back()));
  }
  for (const auto& listener : embeddings) {
    listener->wait();
    EXPECT_EQ(listener->embedding, whole->embedding);
  }
  for (const auto& listener : chats) {
    listener->wait();
    EXPECT_EQ(listener->tokens, generated->tokens);
  }
}

}  // namespace
}  // namespace memoir
