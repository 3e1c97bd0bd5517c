// How many drafts each request of a step gets. Expected numbers follow from the formula at the top of draft_shares.h,
// worked out by hand or by trying all there are.

#include "memoir/engine/draft_shares.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <stdexcept>

namespace memoir::engine {
namespace {

using Wishes = std::vector<DraftShares::Wish>;

// A machine on which a pass takes 10 and one more for each row. Nothing is drafted for nothing: making one takes
// `draft_s`.
double affine(int n_rows) {
  return 10 + n_rows;
}

void measure(DraftShares& shares, double (*seconds)(int), double draft_s = 0) {
  for (int n_rows = 1; n_rows <= 32; ++n_rows) {
    if (n_rows > 8 && n_rows % (n_rows > 16 ? 4 : 2) != 0) continue;  // they count as the next one
    for (int i = 0; i < 3; ++i) shares.observe_step(n_rows, n_rows / 2, seconds(n_rows), draft_s * (n_rows / 2));
  }
}

// Of n_rounds with two drafts every n-th has the first right, and never the second.
void learn(DraftShares& shares, RequestId id, int n_rounds, int every) {
  for (int i = 0; i < n_rounds; ++i) shares.observe(id, 2, i % every == 0 ? 2 : 1, i % every == 0 ? 1 : 0);
}

Wishes wishes_of(int n, int limit) {
  Wishes wishes;
  for (int i = 0; i < n; ++i) wishes.push_back({static_cast<RequestId>(i + 1), limit});
  return wishes;
}

int sum(const std::vector<int>& shares) {
  int n = 0;
  for (const int share : shares) n += share;
  return n;
}

TEST(RowSeconds, AreKnownFromTheSecondSampleOn) {
  RowSeconds seconds;
  EXPECT_THROW(seconds.at(1), std::invalid_argument);
  seconds.observe(2, 100);
  EXPECT_FALSE(seconds.is_known());
  seconds.observe(2, 3);
  EXPECT_EQ(seconds.at(2), 3);
  EXPECT_EQ(seconds.at(1), 3);
  EXPECT_EQ(seconds.at(50), 3);
}

TEST(RowSeconds, LieBetweenThoseThatAreKnownAndRiseBeyond) {
  RowSeconds seconds;
  for (int i = 0; i < 2; ++i) {
    seconds.observe(2, 4);
    seconds.observe(6, 12);
  }
  EXPECT_EQ(seconds.at(1), 4);
  EXPECT_EQ(seconds.at(3), 6);
  EXPECT_EQ(seconds.at(5), 10);
  EXPECT_EQ(seconds.at(8), 16);
  EXPECT_THROW(seconds.observe(0, 1), std::invalid_argument);
  EXPECT_THROW(seconds.observe(1, -1), std::invalid_argument);
}

TEST(RowSeconds, CountManyRowsInQuartersOfADoubling) {
  RowSeconds seconds;
  for (int i = 0; i < 2; ++i) {
    seconds.observe(8, 1);
    seconds.observe(28, 13);
  }
  seconds.observe(17, 5);
  EXPECT_EQ(seconds.at(18), 7);  // half way
  seconds.observe(20, 6);        // 17 to 20 are one
  EXPECT_EQ(seconds.at(20), 6);
  EXPECT_EQ(seconds.at(24), 9.5);
}

TEST(RowSeconds, OneStallDecidesNothing) {
  RowSeconds seconds;
  for (int i = 0; i < 2; ++i) seconds.observe(1, 10);
  seconds.observe(1, 1e6);
  EXPECT_LE(seconds.at(1), 11);
}

TEST(DraftShares, NothingIsDraftedBeforeAPassWasMeasured) {
  DraftShares shares;
  EXPECT_EQ(shares.choose(wishes_of(2, 8), 2), (std::vector<int>{0, 0}));
  for (int i = 0; i < 2; ++i) shares.observe_step(2, 0, 1, 0);
  EXPECT_EQ(shares.choose(wishes_of(2, 8), 2), (std::vector<int>{1, 1}));  // as far as is worth a try
  EXPECT_EQ(shares.choose(Wishes{{1, 0}, {2, 8}}, 2), (std::vector<int>{0, 1}));
}

TEST(DraftShares, GrowWhileAllDraftsAreRightAndRowsCostLittle) {
  DraftShares shares;
  measure(shares, [](int) { return 1.0; });
  int n_before = 0;
  for (int i = 0; i < 60; ++i) {
    const int n = shares.choose(wishes_of(1, 12), 1)[0];
    EXPECT_GE(n, n_before);
    EXPECT_LE(n, std::max(1, 2 * n_before + 1));
    shares.observe(1, n, n, n);
    n_before = n;
  }
  EXPECT_EQ(n_before, 12);
}

// A draft that is right once in two times pays beside N rows if (N + 1/2) / (10 + N + 1) > N / (10 + N): if N < 10.
TEST(DraftShares, FewRequestsDraftAndManyDoNot) {
  for (const int n_rows : {1, 4, 9, 10, 11, 20, 64}) {
    DraftShares shares;
    measure(shares, affine);
    learn(shares, 1, 60, 2);
    const int n = shares.choose(Wishes{{1, 1}}, n_rows)[0];
    if (n_rows == 10) continue;
    EXPECT_EQ(n, n_rows < 10 ? 1 : 0) << n_rows;
  }
}

// The same with drafts that take 4 each: (N + 1/2) / (15 + N) > N / (10 + N) if N < 10 / 9 ...
TEST(DraftShares, WhatMakingADraftTakesCounts) {
  for (const int n_rows : {1, 2, 4}) {
    DraftShares shares;
    measure(shares, affine, 4);
    learn(shares, 1, 60, 2);
    EXPECT_EQ(shares.choose(Wishes{{1, 1}}, n_rows)[0], n_rows == 1 ? 1 : 0) << n_rows;
  }
}

TEST(DraftShares, TheRequestWhoseDraftsAreRightGetsThem) {
  DraftShares shares;
  measure(shares, affine);
  learn(shares, 1, 60, 1);
  learn(shares, 2, 60, 30);
  EXPECT_EQ(shares.choose(wishes_of(2, 1), 12), (std::vector<int>{1, 0}));
}

TEST(DraftShares, ANewRequestIsTakenForOneLikeTheOthers) {
  DraftShares shares;
  measure(shares, affine);
  learn(shares, 1, 100, 50);
  EXPECT_EQ(shares.choose(Wishes{{7, 3}}, 12)[0], 0);
  for (int i = 0; i < 200; ++i) shares.observe(2, 3, 3, 3);
  EXPECT_EQ(shares.choose(Wishes{{8, 3}}, 12)[0], 3);
  shares.forget(2);
  EXPECT_EQ(shares.choose(Wishes{{2, 3}}, 12)[0], 3);
}

TEST(DraftShares, WhereNoDraftPaysOneIsTriedAtGrowingDistances) {
  DraftShares shares;
  measure(shares, affine);
  learn(shares, 1, 100, 1000);
  std::vector<int> tries;
  for (int step = 1; step <= 2600; ++step) {
    const int n = shares.choose(wishes_of(1, 4), 8)[0];
    ASSERT_LE(n, 1);
    if (n == 1) tries.push_back(step);
    shares.observe(1, n, n, 0);
  }
  EXPECT_EQ(tries, (std::vector<int>{4, 12, 28, 60, 124, 252, 508, 1020, 1532, 2044, 2556}));
}

TEST(DraftShares, AWrongCountIsRefused) {
  DraftShares shares;
  EXPECT_THROW(shares.observe(1, 2, 3, 1), std::invalid_argument);
  EXPECT_THROW(shares.observe(1, 2, 1, 2), std::invalid_argument);
  EXPECT_THROW(shares.observe(1, 16, 1, 1), std::invalid_argument);
}

// Of all ways to give three requests up to three drafts each, none has more tokens per second.
TEST(DraftShares, NoOtherWayGivesMoreTokensPerSecond) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto number = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    DraftShares shares;
    std::vector<double> seconds(20, number(1, 3));
    for (std::size_t i = 1; i < seconds.size(); ++i) seconds[i] = seconds[i - 1] + number(0, 0.6);
    const double draft_s = number(0.001, 0.3);
    for (int rows = 1; rows <= 16; ++rows) {
      if (rows > 8 && rows % 2 == 1) continue;  // they count as the next one
      for (int i = 0; i < 3; ++i) shares.observe_step(rows, 1, seconds[static_cast<std::size_t>(rows)], draft_s);
    }
    std::array<AcceptanceRates, 3> rates;
    for (int i = 0; i < 3; ++i) {
      for (int k = 0; k < 200; ++k) {
        int n_right = 0;
        while (n_right < 3 && number(0, 1) < 0.3 * (i + 1)) ++n_right;
        const int n_judged = std::min(3, n_right + 1);
        shares.observe(static_cast<RequestId>(i + 1), 3, n_judged, n_right);
        rates[static_cast<std::size_t>(i)].learn(n_judged, n_right);
      }
      if (rates[static_cast<std::size_t>(i)].frontier() < 3) GTEST_SKIP() << "too few samples";
    }
    const int n_rows = 3 + round % 3;
    const auto pass_s = [&](int n) {
      const auto at = [&](int i) { return seconds[static_cast<std::size_t>(i)]; };
      return n <= 8 || n % 2 == 0 ? at(n) : (at(n - 1) + at(n + 1)) / 2;
    };
    const auto value_of = [&](const std::vector<int>& numbers) {
      double tokens = n_rows;
      for (std::size_t i = 0; i < 3; ++i) {
        double chance = 1;
        for (int k = 0; k < numbers[i]; ++k) tokens += chance *= rates[i].at(k);
      }
      return tokens / (pass_s(n_rows + sum(numbers)) + sum(numbers) * draft_s);
    };
    const double chosen = value_of(shares.choose(wishes_of(3, 3), n_rows));
    for (int code = 0; code < 64; ++code) {
      const std::vector<int> other = {code % 4, code / 4 % 4, code / 16};
      EXPECT_LE(value_of(other), chosen * (1 + 1e-9));
    }
  }
}

}  // namespace
}  // namespace memoir::engine
