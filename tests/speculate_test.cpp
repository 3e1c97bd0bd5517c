// Prompt lookup, with texts whose repetitions can be seen; and the rule by which drafts are judged, against the
// distribution that it must keep (Pearson's chi-squared test; critical values from the usual table).

#include "memoir/engine/speculate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace memoir::engine {
namespace {

using Tokens = std::vector<TokenId>;

// ---- Prompt lookup

Tokens letters(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string guess(NgramDrafter& drafter, const std::string& text, int n_max) {
  const Tokens drafts = drafter.propose(letters(text), n_max);
  return {drafts.begin(), drafts.end()};
}

std::string guess(const std::string& text, int n_max, const NgramOptions& options = {}) {
  NgramDrafter drafter(options);
  return guess(drafter, text, n_max);
}

TEST(NgramDrafter, ProposesWhatFollowedTheTextsEndBefore) {
  EXPECT_EQ(guess("the cat sat; the c", 4), "at s");
  EXPECT_EQ(guess("the cat sat; the c", 1), "a");
  EXPECT_EQ(guess("abcdefgh", 4), "");
  EXPECT_EQ(guess("", 4), "");
  EXPECT_EQ(guess("a", 4), "");
}

TEST(NgramDrafter, PrefersTheLongestEnd) {
  // "xab" was followed by 1, "ab" later by 2.
  EXPECT_EQ(guess("xab1 ab2 xab", 1), "1");
  EXPECT_EQ(guess("xab1 ab2 xab", 1, {.longest = 2, .shortest = 2}), "2");
}

TEST(NgramDrafter, TakesTheLastOfSeveralPlaces) {
  EXPECT_EQ(guess("ab1 ab2 ab3 ab", 2), "3 ");
}

TEST(NgramDrafter, LooksForNoEndShorterThanAsked) {
  EXPECT_EQ(guess("a1 b2 a", 1), "");
  EXPECT_EQ(guess("a1 b2 a", 1, {.longest = 4, .shortest = 1}), "1");
}

TEST(NgramDrafter, GoesOnWithTheDraftWhereTheTextEnds) {
  EXPECT_EQ(guess("ababab", 5), "ababa");
  EXPECT_EQ(guess("xyzzzz", 6), "zzzzzz");
}

TEST(NgramDrafter, FollowsATextThatGrowsAndOneThatIsAnother) {
  NgramDrafter drafter;
  const std::string text = "one two three, one two four, one t";
  std::string grown;
  for (const char letter : text) {
    grown += letter;
    EXPECT_EQ(guess(drafter, grown, 3), guess(grown, 3)) << grown;
  }
  EXPECT_EQ(guess(drafter, "one t", 3), "");  // shorter: nothing of the old text counts
  EXPECT_EQ(guess(drafter, "pqr pqr pq", 3), "r p");
}

TEST(NgramDrafter, RefusesLengthsOutOfOrder) {
  EXPECT_THROW(NgramDrafter({.longest = 1, .shortest = 2}), std::invalid_argument);
  EXPECT_THROW(NgramDrafter({.longest = 3, .shortest = 0}), std::invalid_argument);
  EXPECT_THROW(NgramDrafter({.longest = 9, .shortest = 2}), std::invalid_argument);
}

// ---- The rule

constexpr int kDraws = 20'000;
constexpr int kTokens = 6;
constexpr double kCritical5 = 20.515;  // 5 degrees of freedom, 0.1 %
constexpr double kCritical4 = 18.467;  // 4

std::vector<float> logits() {
  return {0.3F, -1.2F, 1.1F, 0.0F, -0.4F, 2.0F};
}

// softmax(l / temperature).
std::vector<double> distribution(std::vector<float> l, double temperature) {
  std::vector<double> p;
  for (const float one : l) p.push_back(std::exp(static_cast<double>(one) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& one : p) one /= sum;
  return p;
}

double chi_squared(const std::vector<int>& counts, const std::vector<double>& p) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) sum += (counts[i] - n * p[i]) * (counts[i] - n * p[i]) / (n * p[i]);
  }
  return sum;
}

SamplerOptions sampled(double temperature, std::uint64_t seed) {
  SamplerOptions options;
  options.temperature = temperature;
  options.seed = seed;
  return options;
}

struct Outcome {
  std::vector<int> tokens = std::vector<int>(kTokens);
  std::vector<int> instead = std::vector<int>(kTokens);  // of the rejected draft
  int n_accepted = 0;
};

Outcome judge_many(Sampler& sampler, TokenId draft) {
  Outcome outcome;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> row = logits();
    const Verdict verdict = judge(sampler, row, draft);
    EXPECT_EQ(verdict.is_accepted, verdict.token == draft);
    ++outcome.tokens[static_cast<std::size_t>(verdict.token)];
    if (verdict.is_accepted) {
      ++outcome.n_accepted;
    } else {
      ++outcome.instead[static_cast<std::size_t>(verdict.token)];
    }
  }
  return outcome;
}

// Whatever is drafted: tokens come with p; the draft is accepted p(d) of the time; what comes instead of it is p
// without d, in proportion.
void expect_keeps(Sampler& sampler, TokenId draft, const std::vector<double>& p) {
  const Outcome outcome = judge_many(sampler, draft);
  EXPECT_LT(chi_squared(outcome.tokens, p), kCritical5) << draft;
  const double p_draft = p[static_cast<std::size_t>(draft)];
  const double deviation = std::sqrt(kDraws * p_draft * (1 - p_draft));
  EXPECT_NEAR(outcome.n_accepted, kDraws * p_draft, 4 * deviation) << draft;
  std::vector<double> rest = p;
  rest[static_cast<std::size_t>(draft)] = 0;
  for (double& one : rest) one /= 1 - p_draft;
  EXPECT_EQ(outcome.instead[static_cast<std::size_t>(draft)], 0);
  EXPECT_LT(chi_squared(outcome.instead, rest), kCritical4) << draft;
}

TEST(Judge, KeepsTheDistributionWhateverIsDrafted) {
  for (const double temperature : {1.0, 0.6}) {
    for (TokenId draft = 0; draft < kTokens; ++draft) {
      Sampler sampler(sampled(temperature, 1234 + static_cast<std::uint64_t>(draft)), kTokens);
      expect_keeps(sampler, draft, distribution(logits(), temperature));
    }
  }
}

TEST(Judge, SeesBiasAndThePenaltiesOfTheDraftsBefore) {
  SamplerOptions options = sampled(1, 99);
  options.presence_penalty = 0.5;
  options.frequency_penalty = 0.25;
  options.logit_bias[4] = 1.5F;
  Sampler sampler(options, kTokens);
  for (const TokenId accepted : {2, 2, 5}) sampler.accept(accepted);
  std::vector<float> l = logits();
  l[4] += 1.5F;
  l[2] -= 2 * 0.25F + 0.5F;
  l[5] -= 0.25F + 0.5F;
  expect_keeps(sampler, 2, distribution(l, 1));
}

TEST(Judge, ADraftThatTheFiltersRemoveIsNeverAccepted) {
  SamplerOptions options = sampled(1, 5);
  options.top_k = 2;
  Sampler sampler(options, kTokens);
  EXPECT_EQ(judge_many(sampler, 0).n_accepted, 0);
}

TEST(Judge, TakesTheArgmaxAtTemperatureZero) {
  Sampler sampler({}, kTokens);
  std::vector<float> row = logits();
  EXPECT_TRUE(judge(sampler, row, 5).is_accepted);
  row = logits();
  const Verdict verdict = judge(sampler, row, 2);
  EXPECT_FALSE(verdict.is_accepted);
  EXPECT_EQ(verdict.token, 5);
}

// The same draws as without drafts.
TEST(Judge, TheSameSeedGivesTheSameTokensWithAndWithoutDrafts) {
  Sampler plain(sampled(1, 7), kTokens);
  Sampler drafted(sampled(1, 7), kTokens);
  for (int i = 0; i < 1000; ++i) {
    std::vector<float> row = logits();
    const TokenId expected = plain.sample(row);
    row = logits();
    ASSERT_EQ(judge(drafted, row, i % kTokens).token, expected) << i;
  }
}

}  // namespace
}  // namespace memoir::engine
