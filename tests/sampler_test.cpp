#include "memoir/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "memoir/engine/request_fault.h"

namespace memoir::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TokenId sample_copy(Sampler& sampler, std::vector<float> logits) {
  return sampler.sample(logits);
}

std::vector<TokenId> draws(Sampler& sampler, const std::vector<float>& logits, int n_draws) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n_draws; ++i) tokens.push_back(sample_copy(sampler, logits));
  return tokens;
}

std::vector<TokenId> draws(const SamplerOptions& options, const std::vector<float>& logits, int n_draws) {
  Sampler sampler(options, static_cast<int>(logits.size()));
  return draws(sampler, logits, n_draws);
}

/// The tokens seen in 2,000 draws. Tests use it where the rarest token has a probability of 1 % or more, so that a
/// token is missed with a probability below 2e-9; the seed is fixed anyway.
std::set<TokenId> reachable(SamplerOptions options, const std::vector<float>& logits) {
  options.seed = 11;
  const auto tokens = draws(options, logits, 2000);
  return {tokens.begin(), tokens.end()};
}

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SamplerOptions at_temperature(double temperature, std::uint64_t seed = 1) {
  SamplerOptions options;
  options.temperature = temperature;
  options.seed = seed;
  return options;
}

TokenId greedy(const SamplerOptions& options, const std::vector<float>& logits, const std::vector<TokenId>& history) {
  Sampler sampler(options, static_cast<int>(logits.size()));
  sampler.prime(history);
  return sample_copy(sampler, logits);
}

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// make_logits of data/make_sampler_golden.py.
std::vector<float> make_logits(std::uint64_t n_vocab, std::uint64_t step, double spread, double quantum) {
  std::vector<float> logits;
  for (std::uint64_t token = 0; token < n_vocab; ++token) {
    const std::uint64_t hash = splitmix64(step * n_vocab + token);
    std::uint64_t total = 0;
    for (const int shift : {0, 16, 32, 48}) total += (hash >> shift) & 0xFFFF;
    double value = (static_cast<double>(total) / 65536.0 - 2.0) * spread;
    if (quantum > 0) value = std::floor(value / quantum) * quantum;
    logits.push_back(static_cast<float>(value));
  }
  return logits;
}

// The sequences come from data/make_sampler_golden.py: an independent sampler (and Mersenne Twister) in plain Python.
TEST(Sampler, GivesTheSequencesOfTheReference) {
  std::ifstream file(std::string(MEMOIR_TEST_DATA) + "/sampler_golden.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 15U);
  for (const auto& golden : cases) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    SamplerOptions options;
    options.temperature = golden["temperature"];
    options.top_p = golden["top_p"];
    options.min_p = golden["min_p"];
    options.top_k = golden["top_k"];
    options.repetition_penalty = golden["repetition_penalty"];
    options.presence_penalty = golden["presence_penalty"];
    options.frequency_penalty = golden["frequency_penalty"];
    options.penalty_window = golden["penalty_window"];
    for (const auto& entry : golden["logit_bias"]) options.logit_bias[entry[0]] = entry[1];
    options.seed = golden["seed"].get<std::uint64_t>();
    Sampler sampler(options, golden["n_vocab"]);
    sampler.prime(golden["prompt"].get<std::vector<TokenId>>());
    std::vector<TokenId> tokens;
    for (std::uint64_t step = 0; step < golden["n_steps"]; ++step) {
      auto logits = make_logits(golden["n_vocab"], step, golden["spread"], golden["quantum"]);
      tokens.push_back(sampler.sample(logits));
      sampler.accept(tokens.back());
    }
    EXPECT_EQ(tokens, golden["tokens"].get<std::vector<TokenId>>());
  }
}

// --- greedy ---------------------------------------------------------------------------------------------------------

TEST(Sampler, TemperatureZeroTakesTheLargestAndTheLowestIdAmongEquals) {
  const SamplerOptions options;
  EXPECT_EQ(greedy(options, {1, 3, 2}, {}), 1);
  EXPECT_EQ(greedy(options, {1, 3, 3, 3}, {}), 1);
  EXPECT_EQ(greedy(options, {-0.0F, 0.0F}, {}), 0);
  EXPECT_EQ(greedy(options, {5}, {}), 0);
  std::vector<float> logits(100, -5);  // longer than a block of the search for the maximum
  for (const int at : {0, 15, 16, 95, 96, 99}) {
    logits[static_cast<std::size_t>(at)] = 2;
    EXPECT_EQ(greedy(options, logits, {}), at);
    logits[static_cast<std::size_t>(at)] = -5;
  }
}

TEST(Sampler, PlainArgmaxIsClaimedOnlyWhereNothingChangesTheLogits) {
  const auto claimed = [](const std::function<void(SamplerOptions&)>& change) {
    SamplerOptions options;
    change(options);
    return Sampler(options, 10).is_plain_argmax();
  };
  EXPECT_TRUE(claimed([](SamplerOptions&) {}));
  EXPECT_TRUE(claimed([](SamplerOptions& o) { o.top_k = 5; }));
  EXPECT_TRUE(claimed([](SamplerOptions& o) { o.presence_penalty = 1, o.penalty_window = 0; }));
  EXPECT_FALSE(claimed([](SamplerOptions& o) { o.temperature = 0.1; }));
  EXPECT_FALSE(claimed([](SamplerOptions& o) { o.logit_bias[3] = 1; }));
  EXPECT_FALSE(claimed([](SamplerOptions& o) { o.repetition_penalty = 1.1; }));
  EXPECT_FALSE(claimed([](SamplerOptions& o) { o.presence_penalty = 0.1; }));
  EXPECT_FALSE(claimed([](SamplerOptions& o) { o.frequency_penalty = 0.1; }));
}

// --- bias and penalties ---------------------------------------------------------------------------------------------

// Expected: logits [2, -1, 0.5, 3, 0] after history [0, 1, 1, 4] as changed by make_logits_processors of mlx-lm 0.32.2
// (mlx_lm/sample_utils.py). Equal logits draw equal tokens, so 500 draws with the penalties on the left must equal
// those without any on the right.
TEST(Sampler, PenaltiesAndBiasEqualMlxLm) {
  struct Case {
    double repetition, presence, frequency;
    std::map<TokenId, float> bias;
    std::vector<float> changed;
  };
  const std::vector<Case> cases = {
      {1.5, 0, 0, {}, {1.333333F, -1.5F, 0.5F, 3.0F, 0.0F}},
      {1, 0.75, 0, {}, {1.25F, -1.75F, 0.5F, 3.0F, -0.75F}},
      {1, 0, 0.5, {}, {1.5F, -2.0F, 0.5F, 3.0F, -0.5F}},
      {1.5, 0.75, 0.5, {{0, 0.5F}, {2, -1.0F}}, {0.416667F, -3.25F, -0.5F, 3.0F, -1.25F}},
  };
  for (const Case& c : cases) {
    SamplerOptions options = at_temperature(2);
    const auto expected = draws(options, c.changed, 500);
    options.repetition_penalty = c.repetition;
    options.presence_penalty = c.presence;
    options.frequency_penalty = c.frequency;
    options.logit_bias = c.bias;
    Sampler sampler(options, 5);
    sampler.prime(std::vector<TokenId>{0, 1, 1, 4});
    EXPECT_EQ(draws(sampler, {2, -1, 0.5, 3, 0}, 500), expected);
  }
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SamplerOptions options;
  options.repetition_penalty = 1.9;  // 2 / 1.9 = 1.05
  EXPECT_EQ(greedy(options, {2, 1}, {0}), 0);
  options.repetition_penalty = 2.1;  // 2 / 2.1 = 0.95
  EXPECT_EQ(greedy(options, {2, 1}, {0}), 1);
  EXPECT_EQ(greedy(options, {2, 1}, {0, 0, 0}), 1);  // however often
  options.repetition_penalty = 1.4;                  // -1.4 against -1.5
  EXPECT_EQ(greedy(options, {-1, -1.5}, {0}), 0);
  options.repetition_penalty = 1.6;  // -1.6
  EXPECT_EQ(greedy(options, {-1, -1.5}, {0}), 1);
}

TEST(Sampler, BiasComesBeforeTheRepetitionPenaltyAndThatBeforePresence) {
  SamplerOptions options;
  options.repetition_penalty = 2;
  options.logit_bias[0] = 1;
  EXPECT_EQ(greedy(options, {1, 1.2F}, {0}), 1);  // (1 + 1) / 2 = 1, where 1 / 2 + 1 = 1.5
  options.logit_bias.clear();
  options.presence_penalty = 1;
  EXPECT_EQ(greedy(options, {4, 1.2F}, {0}), 1);  // 4 / 2 - 1 = 1, where (4 - 1) / 2 = 1.5
}

TEST(Sampler, FrequencyCountsAndPresenceDoesNot) {
  SamplerOptions frequency;
  frequency.frequency_penalty = 0.4;
  EXPECT_EQ(greedy(frequency, {2, 1}, {0, 0}), 0);     // 2 - 0.8
  EXPECT_EQ(greedy(frequency, {2, 1}, {0, 0, 0}), 1);  // 2 - 1.2
  SamplerOptions presence;
  presence.presence_penalty = 0.4;
  EXPECT_EQ(greedy(presence, {2, 1}, std::vector<TokenId>(50, 0)), 0);
  presence.presence_penalty = 1.1;
  EXPECT_EQ(greedy(presence, {2, 1}, {0}), 1);
  presence.presence_penalty = -1.1;  // encourages
  EXPECT_EQ(greedy(presence, {2, 1}, {1}), 1);
}

TEST(Sampler, PenaltiesSeeTheLastTokensOfTheWindowOnly) {
  SamplerOptions options;
  options.frequency_penalty = 1;
  options.penalty_window = 2;
  EXPECT_EQ(greedy(options, {1.5, 1}, {0, 1}), 0);     // 0.5 against 0
  EXPECT_EQ(greedy(options, {1.5, 1}, {0, 0}), 1);     // -0.5 against 1
  EXPECT_EQ(greedy(options, {1.5, 1}, {0, 0, 1}), 0);  // the first left: 0.5 against 0
  EXPECT_EQ(greedy(options, {1.5, 1}, {0, 1, 1}), 0);
  options.penalty_window = -1;
  EXPECT_EQ(greedy(options, {1.5, 1}, {0, 0, 1}), 1);  // -0.5 against 0
  options.penalty_window = 0;
  EXPECT_EQ(greedy(options, {1.5, 1}, {0, 0}), 0);
  options.penalty_window = 64;
  std::vector<TokenId> history(65, 1);
  history[0] = 0;
  options.repetition_penalty = 1, options.frequency_penalty = 0, options.presence_penalty = 1;
  EXPECT_EQ(greedy(options, {1.5, 1, 0.8F}, history), 0);  // 0 left the window
  history[1] = 0;
  EXPECT_EQ(greedy(options, {1.5, 1, 0.8F}, history), 2);  // 0.5, 0, 0.8
}

TEST(Sampler, PenaltiesWithoutHistoryChangeNothing) {
  SamplerOptions options;
  options.repetition_penalty = 5, options.presence_penalty = 5, options.frequency_penalty = 5;
  EXPECT_EQ(greedy(options, {1, 3, 2}, {}), 1);
}

TEST(Sampler, PrimingEqualsAcceptingEachToken) {
  for (const int window : {-1, 0, 1, 5, 64}) {
    SamplerOptions options = at_temperature(1);
    options.frequency_penalty = 0.3;
    options.penalty_window = window;
    Sampler primed(options, 4);
    Sampler accepted(options, 4);
    const std::vector<TokenId> prompt = {3, 1, 1, 0, 3, 3, 1, 2};
    accepted.accept(2);
    primed.accept(2);
    primed.prime(prompt);
    for (const TokenId token : prompt) accepted.accept(token);
    EXPECT_EQ(draws(primed, {0, 0, 0, 0}, 200), draws(accepted, {0, 0, 0, 0}, 200));
  }
}

TEST(Sampler, ABiasBansOrForcesATokenAndABanHolds) {
  SamplerOptions options;
  options.logit_bias[1] = -kInf;
  EXPECT_EQ(greedy(options, {1, 3, 2}, {}), 2);
  EXPECT_EQ(greedy(options, {1, kInf, 2}, {}), 2);
  options.logit_bias[0] = kInf;
  EXPECT_EQ(greedy(options, {1, 3, 2}, {}), 0);
  options.temperature = 1;
  EXPECT_EQ(reachable(options, {1, 3, 2}), (std::set<TokenId>{0}));
  options.logit_bias = {{1, -kInf}};
  EXPECT_EQ(reachable(options, {1, 1, 1}), (std::set<TokenId>{0, 2}));
}

// --- filters --------------------------------------------------------------------------------------------------------

// Expected sets: apply_top_p, apply_min_p and apply_top_k of mlx-lm 0.32.2 on ln [0.4, 0.3, 0.2, 0.1].
TEST(Sampler, EachFilterKeepsWhatMlxLmKeeps) {
  const auto logits = logs({0.4, 0.3, 0.2, 0.1});
  const auto first = [](int n) {
    std::set<TokenId> tokens;
    for (TokenId token = 0; token < n; ++token) tokens.insert(token);
    return tokens;
  };
  const std::vector<std::pair<double, int>> top_p = {{0.35, 1}, {0.45, 2}, {0.69, 2}, {0.71, 3},
                                                     {0.89, 3}, {0.91, 4}, {0.99, 4}};
  for (const auto& [value, n_kept] : top_p) {
    SamplerOptions options = at_temperature(1);
    options.top_p = value;
    EXPECT_EQ(reachable(options, logits), first(n_kept)) << "top_p " << value;
  }
  const std::vector<std::pair<double, int>> min_p = {{0.2, 4},  {0.26, 3}, {0.49, 3}, {0.51, 2},
                                                     {0.74, 2}, {0.76, 1}, {1.0, 1}};
  for (const auto& [value, n_kept] : min_p) {
    SamplerOptions options = at_temperature(1);
    options.min_p = value;
    EXPECT_EQ(reachable(options, logits), first(n_kept)) << "min_p " << value;
  }
  for (const int k : {1, 2, 3}) {
    SamplerOptions options = at_temperature(1);
    options.top_k = k;
    EXPECT_EQ(reachable(options, logits), first(k)) << "top_k " << k;
  }
}

// exp(l - max(l)) is 0.5 * (1 +- 1e-11) here: with the logits at 0 and at ln(0.5) in float32, 1.9e-9 too low, the rest
// of the difference is in the smaller logit's, whose float32 is as fine as that.
TEST(Sampler, MinPIsExactNearItsThreshold) {
  const double threshold = -0.6931471805599453;  // ln(0.5)
  const auto low = static_cast<float>(threshold);
  for (const double difference : {1e-11, -1e-11}) {
    const auto high = static_cast<float>(static_cast<double>(low) - (threshold + difference));
    SamplerOptions options = at_temperature(1);
    options.min_p = 0.5;
    const std::set<TokenId> expected = difference > 0 ? std::set<TokenId>{0, 1} : std::set<TokenId>{0};
    EXPECT_EQ(reachable(options, {high, low}), expected) << difference;
  }
}

// At temperature 5 the weights are p^0.2, about [0.29, 0.27, 0.25, 0.19]: 0.69 would keep three of them, not two.
TEST(Sampler, FiltersSeeProbabilitiesBeforeTemperature) {
  SamplerOptions options = at_temperature(5);
  options.top_p = 0.69;
  EXPECT_EQ(reachable(options, logs({0.4, 0.3, 0.2, 0.1})), (std::set<TokenId>{0, 1}));
  options.top_p = 1;
  options.min_p = 0.51;
  EXPECT_EQ(reachable(options, logs({0.4, 0.3, 0.2, 0.1})), (std::set<TokenId>{0, 1}));
}

// Of k = 2 the first has 0.4 / 0.7 = 0.571.
TEST(Sampler, TopPCountsProbabilitiesOverWhatTopKLeft) {
  SamplerOptions options = at_temperature(1);
  options.top_k = 2;
  options.top_p = 0.56;
  EXPECT_EQ(reachable(options, logs({0.4, 0.3, 0.2, 0.1})), (std::set<TokenId>{0}));
  options.top_p = 0.58;
  EXPECT_EQ(reachable(options, logs({0.4, 0.3, 0.2, 0.1})), (std::set<TokenId>{0, 1}));
}

TEST(Sampler, FiltersAtTheirEnds) {
  const std::vector<float> ties = {1, 2, 0, 2, 2};
  const std::vector<float> two_by_two = {0, 1, 0, 1};
  SamplerOptions options = at_temperature(1);
  options.top_k = 1;
  EXPECT_EQ(reachable(options, ties), (std::set<TokenId>{1}));
  options.top_k = 2;
  EXPECT_EQ(reachable(options, ties), (std::set<TokenId>{1, 3}));
  options.top_k = 3;
  EXPECT_EQ(reachable(options, two_by_two), (std::set<TokenId>{0, 1, 3}));
  for (const int k : {5, 6, std::numeric_limits<int>::max()}) {
    options.top_k = k;
    EXPECT_EQ(draws(options, ties, 100), draws(at_temperature(1), ties, 100));
  }
  options = at_temperature(1);
  for (const double tiny : {1e-300, 1e-9, 0.1}) {
    options.top_p = tiny;
    EXPECT_EQ(reachable(options, ties), (std::set<TokenId>{1}));
  }
  options = at_temperature(1);
  options.min_p = 1;
  EXPECT_EQ(reachable(options, ties), (std::set<TokenId>{1, 3, 4}));
  options.top_k = 1, options.top_p = 0.5;
  EXPECT_EQ(draws(options, {0.25F}, 3), (std::vector<TokenId>{0, 0, 0}));
}

// All 2,000 logits equal: of exact quarters, top-p 0.25 keeps the 500 lowest ids, top-k 500 the same.
TEST(Sampler, FiltersRankEqualLogitsById) {
  const std::vector<float> logits(2000, 3);
  for (const bool by_k : {false, true}) {
    SamplerOptions options = at_temperature(1);
    if (by_k) options.top_k = 500;
    if (!by_k) options.top_p = 0.25;
    const auto tokens = draws(options, logits, 20000);
    const std::set<TokenId> seen(tokens.begin(), tokens.end());
    EXPECT_EQ(seen.size(), 500U);  // a token is missed with probability 500 * exp(-40)
    EXPECT_EQ(*seen.rbegin(), 499);
  }
}

// The worst orders for a bounded buffer of the best k: ascending logits fill it again and again.
TEST(Sampler, TopKDoesNotDependOnTheOrderOfLogits) {
  std::vector<float> ascending(5000);
  std::iota(ascending.begin(), ascending.end(), 0.0F);
  for (float& logit : ascending) logit *= 1e-4F;
  const std::vector<float> descending(ascending.rbegin(), ascending.rend());
  SamplerOptions options = at_temperature(1);
  options.top_k = 50;
  const auto high = draws(options, ascending, 5000);
  EXPECT_EQ(std::set<TokenId>(high.begin(), high.end()).size(), 50U);
  EXPECT_EQ(*std::min_element(high.begin(), high.end()), 4950);
  const auto low = draws(options, descending, 5000);
  EXPECT_EQ(std::set<TokenId>(low.begin(), low.end()).size(), 50U);
  EXPECT_EQ(*std::max_element(low.begin(), low.end()), 49);
}

// --- the draw -------------------------------------------------------------------------------------------------------

double chi_square(const std::vector<TokenId>& tokens, const std::vector<double>& probabilities) {
  std::vector<double> counts(probabilities.size());
  for (const TokenId token : tokens) ++counts[static_cast<std::size_t>(token)];
  double sum = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(tokens.size());
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

// The chi-square quantiles at 1 - 1e-6: 44.81 for 9 degrees of freedom, 30.66 for 3.
TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<double> p = {0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.005};
  EXPECT_LT(chi_square(draws(at_temperature(1, 42), logs(p), 200000), p), 44.81);
}

TEST(Sampler, DrawsFollowTheTemperedAndFilteredDistribution) {
  const std::vector<double> p = {0.05, 0.4, 0.02, 0.3, 0.13, 0.1};
  SamplerOptions options = at_temperature(2, 43);
  options.top_k = 4;
  const auto tokens = draws(options, logs(p), 200000);
  // At temperature 2 the weights are the square roots of the four largest.
  std::vector<TokenId> renumbered;
  const std::vector<TokenId> place = {-1, 0, -1, 1, 2, 3};
  for (const TokenId token : tokens) {
    ASSERT_GE(place[static_cast<std::size_t>(token)], 0);
    renumbered.push_back(place[static_cast<std::size_t>(token)]);
  }
  std::vector<double> expected = {std::sqrt(0.4), std::sqrt(0.3), std::sqrt(0.13), std::sqrt(0.1)};
  const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
  for (double& value : expected) value /= sum;
  EXPECT_LT(chi_square(renumbered, expected), 30.66);
}

TEST(Sampler, ASeedFixesTheSequence) {
  const std::vector<float> logits(1000, 0);
  EXPECT_EQ(draws(at_temperature(1, 7), logits, 100), draws(at_temperature(1, 7), logits, 100));
  EXPECT_NE(draws(at_temperature(1, 7), logits, 100), draws(at_temperature(1, 8), logits, 100));
  EXPECT_NE(draws(at_temperature(1, 7), logits, 100),
            draws(at_temperature(1, 7 + (std::uint64_t{1} << 32)), logits, 100));
}

TEST(Sampler, WithoutASeedOneIsTakenAndCanBeRead) {
  const std::vector<float> logits(1000, 0);
  SamplerOptions options = at_temperature(1);
  options.seed.reset();
  Sampler first(options, 1000);
  Sampler second(options, 1000);
  EXPECT_NE(first.seed(), second.seed());
  EXPECT_EQ(draws(first, logits, 50), draws(at_temperature(1, first.seed()), logits, 50));
}

TEST(Sampler, ResetStartsOverAndACopyGoesOn) {
  SamplerOptions options = at_temperature(1, 5);
  options.presence_penalty = 2;
  options.penalty_window = -1;
  const std::vector<float> logits(50, 0);
  Sampler sampler(options, 50);
  const auto run = [&logits](Sampler& it) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < 40; ++i) {
      tokens.push_back(sample_copy(it, logits));
      it.accept(tokens.back());
    }
    return tokens;
  };
  const auto first = run(sampler);
  Sampler copy = sampler;
  const auto second = run(sampler);
  EXPECT_NE(first, second);
  EXPECT_EQ(run(copy), second);
  sampler.reset();
  EXPECT_EQ(run(sampler), first);
}

TEST(Sampler, EveryTokenTakesOneDrawAlsoWhereNoneIsNeeded) {
  const std::vector<float> flat(1000, 0);
  std::vector<float> certain(1000, -kInf);
  certain[3] = 0;
  Sampler sampler(at_temperature(1, 9), 1000);
  Sampler other(at_temperature(1, 9), 1000);
  EXPECT_EQ(sample_copy(sampler, certain), 3);
  sample_copy(other, flat);
  EXPECT_EQ(draws(sampler, flat, 20), draws(other, flat, 20));
}

// --- numbers that are not -------------------------------------------------------------------------------------------

TEST(Sampler, NanAndMinusInfinityAreNeverChosen) {
  EXPECT_EQ(greedy({}, {kNan, 1, kNan}, {}), 1);
  EXPECT_EQ(greedy({}, {-kInf, kNan, -1e30F}, {}), 2);
  for (const double top_p : {1.0, 0.9}) {
    for (const int top_k : {0, 3}) {
      SamplerOptions options = at_temperature(1);
      options.top_p = top_p, options.top_k = top_k;
      EXPECT_EQ(reachable(options, {kNan, 0, -kInf, 0, kNan}), (std::set<TokenId>{1, 3}));
      options.min_p = 0.1;
      EXPECT_EQ(reachable(options, {kNan, 0, -kInf, 0, kNan}), (std::set<TokenId>{1, 3}));
    }
  }
}

TEST(Sampler, PlusInfinityWins) {
  EXPECT_EQ(greedy({}, {1, kInf, 3e38F, kInf}, {}), 1);
  for (const double temperature : {1e-320, 0.5, 1e300}) {
    for (const double top_p : {1.0, 0.9}) {
      for (const double min_p : {0.0, 0.1}) {
        SamplerOptions options = at_temperature(temperature);
        options.top_p = top_p, options.min_p = min_p;
        EXPECT_EQ(reachable(options, {1, kInf, 3e38F, kInf}), (std::set<TokenId>{1, 3}));
      }
    }
  }
}

TEST(Sampler, ExtremeTemperaturesEndInArgmaxAndInUniform) {
  EXPECT_EQ(reachable(at_temperature(1e-320), {1, 2, 2, 1.9F}), (std::set<TokenId>{1, 2}));
  EXPECT_EQ(reachable(at_temperature(1e-3), {1, 2, 0, 1}), (std::set<TokenId>{1}));
  const std::vector<double> uniform(4, 0.25);
  EXPECT_LT(chi_square(draws(at_temperature(1e300, 44), {1, 2000, 0, -5}, 20000), uniform), 30.66);
}

TEST(Sampler, AllLogitsImpossibleIsAnErrorThatTakesNoDraw) {
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler(at_temperature(temperature), 2);
    EXPECT_THROW(sample_copy(sampler, {kNan, -kInf}), std::runtime_error);
    EXPECT_THROW(sample_copy(sampler, {-kInf, -kInf}), std::runtime_error);
    EXPECT_EQ(draws(sampler, {0, 0}, 50), draws(at_temperature(temperature), {0, 0}, 50));
  }
  SamplerOptions banned;
  banned.logit_bias = {{0, -kInf}, {1, -kInf}};
  EXPECT_THROW(greedy(banned, {1, 2}, {}), RequestFault);
  // A ban is to blame only where it takes what could be chosen.
  EXPECT_THROW(greedy(banned, {1, -kInf}, {}), RequestFault);
  const auto blames_ban = [](const SamplerOptions& options, const std::vector<float>& logits) {
    try {
      greedy(options, logits, {});
    } catch (const RequestFault& fault) {
      return fault.field() == "logit_bias";
    } catch (const std::runtime_error&) {
    }
    return false;
  };
  EXPECT_TRUE(blames_ban(banned, {1, kNan}));
  EXPECT_FALSE(blames_ban(banned, {-kInf, kNan}));
  banned.n_choosable = 1;
  EXPECT_FALSE(blames_ban(banned, {-kInf, 1}));
  banned.choosable_beyond = {1};
  EXPECT_TRUE(blames_ban(banned, {-kInf, 1}));
}

// --- the caller's mistakes ------------------------------------------------------------------------------------------

TEST(Sampler, OptionsOutOfRangeAreRefusedByName) {
  using Change = std::function<void(SamplerOptions&)>;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<std::string, Change>> cases = {
      {"temperature is -0.1", [](SamplerOptions& o) { o.temperature = -0.1; }},
      {"temperature is nan", [&](SamplerOptions& o) { o.temperature = nan; }},
      {"temperature is inf", [&](SamplerOptions& o) { o.temperature = inf; }},
      {"top_p is 0", [](SamplerOptions& o) { o.top_p = 0; }},
      {"top_p is 1.01", [](SamplerOptions& o) { o.top_p = 1.01; }},
      {"top_p is nan", [&](SamplerOptions& o) { o.top_p = nan; }},
      {"min_p is -0.01", [](SamplerOptions& o) { o.min_p = -0.01; }},
      {"min_p is 1.01", [](SamplerOptions& o) { o.min_p = 1.01; }},
      {"min_p is nan", [&](SamplerOptions& o) { o.min_p = nan; }},
      {"top_k is -1", [](SamplerOptions& o) { o.top_k = -1; }},
      {"repetition_penalty is 0", [](SamplerOptions& o) { o.repetition_penalty = 0; }},
      {"repetition_penalty is inf", [&](SamplerOptions& o) { o.repetition_penalty = inf; }},
      {"presence_penalty is nan", [&](SamplerOptions& o) { o.presence_penalty = nan; }},
      {"frequency_penalty is -inf", [&](SamplerOptions& o) { o.frequency_penalty = -inf; }},
      {"penalty_window is -2", [](SamplerOptions& o) { o.penalty_window = -2; }},
      {"logit_bias is -1", [](SamplerOptions& o) { o.logit_bias[-1] = 0; }},
      {"logit_bias is nan", [](SamplerOptions& o) { o.logit_bias[1] = kNan; }},
      {"logit_bias] token 10 is outside", [](SamplerOptions& o) { o.logit_bias[10] = 0; }},
  };
  for (const auto& [message, change] : cases) {
    SamplerOptions options;
    change(options);
    try {
      const Sampler sampler(options, 10);
      ADD_FAILURE() << "accepted: " << message;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(Sampler({}, 0), std::invalid_argument);
  EXPECT_THROW(Sampler({}, -5), std::invalid_argument);
  EXPECT_THROW(Sampler({}, 4194305), std::invalid_argument);
}

TEST(Sampler, TokensAndLogitsThatDoNotFitTheVocabularyAreRefused) {
  SamplerOptions options;
  options.presence_penalty = 10;
  Sampler sampler(options, 3);
  EXPECT_THROW(sampler.accept(3), std::invalid_argument);
  EXPECT_THROW(sampler.accept(-1), std::invalid_argument);
  EXPECT_THROW(sampler.prime(std::vector<TokenId>{1, 3}), std::invalid_argument);
  EXPECT_EQ(sample_copy(sampler, {0, 5, 0}), 1);  // the 1 before the bad token was not accepted
  EXPECT_THROW(sample_copy(sampler, {0, 5}), std::invalid_argument);
  EXPECT_THROW(sample_copy(sampler, {0, 5, 0, 0}), std::invalid_argument);
  EXPECT_THROW(sample_copy(sampler, {}), std::invalid_argument);
}

// --- probabilities --------------------------------------------------------------------------------------------------

TEST(Softmax, AgreesWithTheFormulaInLongDouble) {
  std::vector<float> logits = make_logits(3000, 1, 300, 0);  // differences up to about 1,100
  for (const double temperature : {0.25, 1.0, 7.0}) {
    std::vector<double> probabilities(logits.size());
    softmax(logits, temperature, probabilities);
    const auto top = static_cast<long double>(*std::max_element(logits.begin(), logits.end()));
    long double sum = 0;
    for (const float logit : logits) sum += std::exp((static_cast<long double>(logit) - top) / temperature);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto x = (static_cast<long double>(logits[i]) - top) / temperature;
      const auto expected = static_cast<double>(std::exp(x) / sum);
      // Relative 1e-12; x itself is rounded to double, which costs up to 700 * 2^-53.
      EXPECT_NEAR(probabilities[i], expected, 1e-12 * expected + 1e-300) << "x = " << x;
    }
  }
}

TEST(Softmax, HandlesInfinitiesNanAndMistakes) {
  std::vector<double> p(4);
  softmax(std::vector<float>{kNan, 0, -kInf, 0}, 1, p);
  EXPECT_EQ(p, (std::vector<double>{0, 0.5, 0, 0.5}));
  softmax(std::vector<float>{1, kInf, 1, 1}, 1, p);
  EXPECT_EQ(p, (std::vector<double>{0, 1, 0, 0}));
  const std::vector<float> three = {1, 2, 3};
  EXPECT_THROW(softmax(three, 1, p), std::invalid_argument);
  p.resize(3);
  EXPECT_THROW(softmax(three, 0, p), std::invalid_argument);
  EXPECT_THROW(softmax(std::vector<float>(3, kNan), 1, p), std::runtime_error);
}

// ln softmax([1, 2, 3]) = [-2.407606, -1.407606, -0.407606], by l - ln(e + e^2 + e^3).
TEST(LogProbability, AgreesWithTheFormula) {
  const std::vector<float> logits = {1, 2, 3};
  for (const TokenId token : {0, 1, 2}) {
    const double expected = token + 1 - std::log(std::exp(1) + std::exp(2) + std::exp(3));
    EXPECT_NEAR(log_probability(logits, token), expected, 1e-6);
  }
  EXPECT_EQ(log_probability(std::vector<float>{kNan, 1}, 0), -kInf);
  EXPECT_EQ(log_probability(std::vector<float>{kNan, 1}, 1), 0);
  EXPECT_EQ(log_probability(std::vector<float>{kInf, 1}, 0), 0);
  EXPECT_EQ(log_probability(std::vector<float>{kInf, 1}, 1), -kInf);
  EXPECT_NEAR(log_probability(std::vector<float>{0, -5000}, 1), -5000, 1e-3);
  EXPECT_THROW(log_probability(logits, 3), std::invalid_argument);
  EXPECT_THROW(log_probability(logits, -1), std::invalid_argument);
  EXPECT_THROW(log_probability(std::vector<float>{kNan}, 0), std::runtime_error);
}

}  // namespace
}  // namespace memoir::engine
