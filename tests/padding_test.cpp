// Models with more rows of logits than their tokenizer has texts: the padding is never chosen.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "memoir/engine/generate.h"
#include "memoir/engine/sampler.h"
#include "memoir/engine/scheduler.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/fake_runner.h"
#include "tests/model_files.h"

namespace memoir::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<SamplerOptions> every_way() {
  std::vector<SamplerOptions> ways(5);
  for (std::size_t i = 1; i < ways.size(); ++i) ways[i].temperature = 1;
  ways[2].top_k = 4;
  ways[3].top_p = 0.9;
  ways[4].min_p = 0.1;
  for (SamplerOptions& way : ways) way.seed = 1;
  return ways;
}

TEST(Padding, IsNeverSampledWhateverItsLogits) {
  for (SamplerOptions options : every_way()) {
    options.n_choosable = 3;
    options.logit_bias = {{4, kInfinity}};
    Sampler sampler(options, 6);
    EXPECT_FALSE(sampler.is_plain_argmax());
    for (int i = 0; i < 50; ++i) {
      std::vector<float> logits = {0, 1, 0.5F, 50, 0, kInfinity};
      EXPECT_LT(sampler.sample(logits), 3);
    }
    std::vector<float> logits = {-kInfinity, -kInfinity, -kInfinity, 1, 1, 1};
    EXPECT_THROW(sampler.sample(logits), std::runtime_error);
  }
}

TEST(Padding, LeavesTheExceptions) {
  for (SamplerOptions options : every_way()) {
    options.n_choosable = 3;
    options.choosable_beyond = {1, 4, 99};
    Sampler sampler(options, 6);
    std::vector<float> logits = {0, 1, 0.5F, 90, 80, 90};
    EXPECT_EQ(sampler.sample(logits), 4);
  }
}

TEST(Padding, NoneOrAllOfTheVocabularyIsNoLimit) {
  for (const int n_choosable : {0, 6, 1000}) {
    SamplerOptions options;
    options.n_choosable = n_choosable;
    Sampler sampler(options, 6);
    EXPECT_TRUE(sampler.is_plain_argmax());
    std::vector<float> logits = {0, 1, 0.5F, 50, 0, 60};
    EXPECT_EQ(sampler.sample(logits), 5);
  }
  SamplerOptions options;
  options.n_choosable = -1;
  EXPECT_THROW(options.validate(), std::invalid_argument);
}

text::Tokenizer small_tokenizer() {
  return text::Tokenizer::from_json(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})",
                                    "tokenizer.json");
}

class PaddedModel : public testing::Test {
 protected:
  // A model of 160 tokens, a tokenizer of 2, and a wish for one that only the model has.
  Completion run(const std::vector<TokenId>& stop_tokens, const text::Tokenizer* tokenizer) const {
    GenerateOptions options;
    options.max_tokens = 8;
    options.stop_tokens = stop_tokens;
    options.sampler.logit_bias = {{159, kInfinity}};
    Session session(*loaded_.model);
    const std::vector<TokenId> prompt = {0, 1, 100};
    return generate(session, prompt, options, tokenizer);
  }

  const model::LoadedModel loaded_ = model::load_model(test::data("llama"));
  const text::Tokenizer tokenizer_ = small_tokenizer();
};

TEST_F(PaddedModel, SaysOnlyWhatItsTokenizerKnows) {
  const Completion completion = run({}, &tokenizer_);
  ASSERT_EQ(completion.tokens.size(), 8U);
  for (const TokenId token : completion.tokens) EXPECT_LT(token, 2);
  EXPECT_FALSE(completion.text.empty());
  EXPECT_EQ(completion.text.find_first_not_of("ab "), std::string::npos) << completion.text;
}

TEST_F(PaddedModel, MayEndWithATokenThatItsTokenizerLacks) {
  const Completion completion = run({159}, &tokenizer_);
  EXPECT_TRUE(completion.tokens.empty());
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
}

// The same for a request among many.
TEST(ServedPaddedModel, SaysOnlyWhatItsTokenizerKnows) {
  model::LoadedModel loaded = model::load_model(test::data("llama"));
  loaded.tokenizer = small_tokenizer();
  const std::unique_ptr<Service> service = make_service(std::move(loaded), {});
  const auto listener = std::make_shared<test::Listener>();
  Request request = test::request_for({0, 1, 100}, 8, listener);
  request.sampler.logit_bias = {{159, kInfinity}};
  ASSERT_TRUE(std::holds_alternative<RequestId>(service->submit(std::move(request))));
  listener->wait();
  ASSERT_EQ(listener->tokens.size(), 8U);
  for (const TokenId token : listener->tokens) EXPECT_LT(token, 2);
}

TEST_F(PaddedModel, ChoosesFreelyWithoutATokenizer) {
  EXPECT_EQ(run({}, nullptr).tokens, std::vector<TokenId>(8, 159));
}

}  // namespace
}  // namespace memoir::engine
