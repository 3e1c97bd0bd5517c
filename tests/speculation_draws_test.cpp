// The distribution of sampled tokens with a draft model, through whole models: prompt, drafts, one pass over them, the
// rule. The target is a tiny model of the tests; its draft model is that model with noise on its weights, so that it is
// often right and often wrong. What must come out is the softmax of the target's own logits, as plain passes give them:
// Pearson's chi-squared test, whose bound is worked out from the degrees of freedom.
// (speculate_test.cpp has the rule alone, for every draft.)

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "memoir/engine/draft_model.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kRuns = 10'000;
constexpr int kTokens = 3;  // of a run: one behind the prompt, one that was drafted, one behind that
constexpr int kChoices = 3;
constexpr double kTemperature = 1.5;
const Tokens kPrompt = {5, 17, 42, 99, 7, 17, 42};

// The value that a chi-squared variable exceeds once in 1000 times: Wilson and Hilferty's formula (1931).
double chi_squared_bound(int n_degrees) {
  constexpr double kNormal = 3.0902;
  const double v = 2.0 / (9.0 * n_degrees);
  return n_degrees * std::pow(1 - v + kNormal * std::sqrt(v), 3);
}

TEST(SpeculationDraws, TheBoundIsThatOfTheTables) {
  EXPECT_NEAR(chi_squared_bound(5), 20.515, 0.3);
  EXPECT_NEAR(chi_squared_bound(26), 54.052, 0.2);
}

class SpeculationDraws : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    mx::set_default_device(mx::Device::cpu);
    target_ = model::load_model(test::data(GetParam()));
    draft_ = model::load_model(noisy_copy());
  }

  // The target's folder with noise of a tenth on every weight.
  test::fs::path noisy_copy() const {
    const test::fs::path path = test::copied_model(folder_, GetParam());
    test::edit_tensors(path, [](test::Tensors& tensors) {
      const std::map<std::string, mx::array> in_order(tensors.begin(), tensors.end());
      std::uint64_t seed = 0;
      for (const auto& [name, weights] : in_order) {
        const mx::array noise = mx::random::normal(weights.shape(), mx::float32, mx::random::key(++seed));
        const mx::array factors = mx::add(mx::array(1.0F), mx::multiply(mx::array(0.1F), noise));
        tensors.at(name) = mx::astype(mx::multiply(weights, factors), weights.dtype());
      }
    });
    return path;
  }

  static GenerateOptions sampled(std::uint64_t seed, Drafter& drafter) {
    GenerateOptions options;
    options.max_tokens = kTokens;
    options.sampler.temperature = kTemperature;
    options.sampler.top_k = kChoices;
    options.sampler.seed = seed;
    options.drafter = &drafter;
    options.max_drafts = 1;
    options.adapts_drafts = false;
    return options;
  }

  // softmax(logits / temperature) of the kChoices likeliest tokens behind the text.
  std::map<TokenId, double> distribution_behind(const Tokens& text) const {
    cache::ModelCache cache = target_.model->make_cache();
    mx::array logits =
        mx::reshape(mx::astype(target_.model->forward(text, cache, model::LogitRows::kLast), mx::float32), {-1});
    mx::eval(logits);
    std::vector<TokenId> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto* row = logits.data<float>();
    std::sort(ids.begin(), ids.end(), [row](TokenId a, TokenId b) { return row[a] > row[b]; });
    ids.resize(kChoices);
    std::map<TokenId, double> result;
    double sum = 0;
    for (const TokenId id : ids) sum += result[id] = std::exp(row[id] / kTemperature);
    for (auto& [id, p] : result) p /= sum;
    return result;
  }

  void count(const Completion& completion) {
    n_accepted_ += completion.drafts.n_accepted;
    n_drafted_ += completion.drafts.n_drafted;
    const Tokens& tokens = completion.tokens;
    for (auto at = tokens.begin(); at != tokens.end(); ++at) ++counts_[Tokens(tokens.begin(), at)][*at];
  }

  // Behind each beginning, added up.
  void expect_target_distribution() const {
    double chi_squared = 0;
    int n_degrees = 0;
    for (const auto& [beginning, tokens] : counts_) {
      const std::map<TokenId, double> p = distribution_behind(text_with(beginning));
      const int n = n_behind(beginning);
      for (const auto& [token, n_times] : tokens) ASSERT_TRUE(p.contains(token)) << token << ", " << n_times;
      for (const auto& [token, share] : p) {
        ASSERT_GE(n * share, 5) << "too few for the test";
        const auto found = tokens.find(token);
        const double difference = (found == tokens.end() ? 0 : found->second) - n * share;
        chi_squared += difference * difference / (n * share);
      }
      n_degrees += kChoices - 1;
    }
    EXPECT_EQ(n_degrees, (1 + kChoices + kChoices * kChoices) * (kChoices - 1));
    EXPECT_LT(chi_squared, chi_squared_bound(n_degrees));
  }

  // What is drafted behind the first token is accepted as often as the target says it.
  void expect_target_acceptance() const {
    double expected = 0;
    double variance = 0;
    for (const auto& [beginning, tokens] : counts_) {
      if (beginning.size() != 1) continue;
      const Tokens text = text_with(beginning);
      const TokenId draft = DraftModel(*draft_.model, target_.model->config().vocab_size).propose(text, 1).at(0);
      const std::map<TokenId, double> p = distribution_behind(text);
      const double share = p.contains(draft) ? p.at(draft) : 0;
      expected += n_behind(beginning) * share;
      variance += n_behind(beginning) * share * (1 - share);
    }
    EXPECT_NEAR(n_accepted_, expected, 4 * std::sqrt(variance));
    EXPECT_GT(n_accepted_, kRuns / 10);
    EXPECT_LT(n_accepted_, kRuns * 9 / 10);
  }

  static Tokens text_with(const Tokens& beginning) {
    Tokens text = kPrompt;
    text.insert(text.end(), beginning.begin(), beginning.end());
    return text;
  }

  int n_behind(const Tokens& beginning) const {
    int n = 0;
    for (const auto& [token, n_times] : counts_.at(beginning)) n += n_times;
    return n;
  }

  test::TemporaryFolder folder_;
  model::LoadedModel target_;
  model::LoadedModel draft_;
  std::map<Tokens, std::map<TokenId, int>> counts_;  // behind each beginning, that of no token included
  int n_accepted_ = 0;
  int n_drafted_ = 0;
};

TEST_P(SpeculationDraws, TokensComeWithTheTargetsProbabilities) {
  DraftModel drafter(*draft_.model, target_.model->config().vocab_size);
  Session session(*target_.model);
  for (int run = 0; run < kRuns; ++run) {
    const Completion completion =
        generate(session, kPrompt, sampled(static_cast<std::uint64_t>(run), drafter), nullptr);
    ASSERT_EQ(completion.tokens.size(), static_cast<std::size_t>(kTokens));
    count(completion);
  }
  EXPECT_EQ(n_drafted_, kRuns);
  ASSERT_NO_FATAL_FAILURE(expect_target_distribution());
  ASSERT_NO_FATAL_FAILURE(expect_target_acceptance());
}

INSTANTIATE_TEST_SUITE_P(Models, SpeculationDraws, testing::Values("llama", "mamba2"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace memoir::engine
