#include "memoir/prefix/eviction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memoir/prefix/report.h"
#include "prefix_fakes.h"

namespace memoir::prefix {
namespace {

constexpr Needs kRowsOnly = {true, false};
constexpr Needs kHybrid = {true, true};
constexpr Needs kRecurrent = {false, true};

// Sizes beside which a node's own bytes don't count.
constexpr std::size_t kBig = std::size_t{1} << 30;

class PrefixEviction : public testing::Test {
 protected:
  PrefixEviction() {
    world_.row_bytes = kBig;
    world_.checkpoint_bytes = kBig;
  }

  Position put(const Keys& keys, int rows_from, bool checkpoint, CheckpointRule rule = CheckpointRule::kBranch) {
    Insertion insertion{.keys = keys, .rule = rule};
    if (rows_from >= 0) insertion.rows = std::make_unique<FakeRows>(world_, keys, rows_from);
    if (checkpoint) insertion.checkpoint = std::make_unique<FakeCheckpoint>(world_, keys);
    const auto position = trie_.insert(std::move(insertion));
    EXPECT_TRUE(position.has_value());
    return position.value_or(Position{});
  }

  void put_answer(const Keys& keys, int rows_from) {
    Insertion insertion{.keys = keys, .is_answer = true};
    insertion.rows = std::make_unique<FakeRows>(world_, keys, rows_from);
    ASSERT_TRUE(trie_.insert(std::move(insertion)));
  }

  // A budget of that many rows or checkpoints, and what nodes and keys take.
  std::size_t budget(std::size_t n) const { return n * kBig + kBig / 2; }

  int restorable(const Keys& keys, Needs needs) { return trie_.lookup(keys, needs, {.n_left = 0}).restorable.offset; }

  void use(const Keys& keys, Needs needs) {
    trie_.use(trie_.lookup(keys, needs, {.n_left = 0}), static_cast<int>(keys.size()));
  }

  double score_of(const Eviction& eviction, const Keys& keys) {
    return eviction.candidate(trie_, *trie_.lookup(keys, kRowsOnly).path.back())->score;
  }

  FakeWorld world_;
  Trie trie_;
};

TEST(RecomputeCostOf, AddsTokensAndPairs) {
  const RecomputeCost cost = {.per_token = 2, .per_pair = 1};
  EXPECT_EQ(cost(3, 5), 2 * 2 + (25 - 9) / 2.0);
  EXPECT_EQ(cost(0, 5), cost(0, 3) + cost(3, 5));
  EXPECT_EQ(RecomputeCost{}(10, 30), 20);
}

TEST_F(PrefixEviction, RefusesNegativeCosts) {
  EXPECT_THROW(Eviction({.cost = {.per_token = -1}}), std::invalid_argument);
  EXPECT_THROW(Eviction({.cost = {.per_token = std::nan("")}}), std::invalid_argument);
  EXPECT_THROW(Eviction({.prior = {0, 0, -1, 0, 0, 0, 0}}), std::invalid_argument);
  EXPECT_THROW(Eviction({.hit_weight = -1}), std::invalid_argument);
}

TEST_F(PrefixEviction, NothingGoesWithinTheBudget) {
  put({1, 2, 3}, 0, true);
  Eviction eviction({.needs = kHybrid});
  EXPECT_TRUE(eviction.make_room(trie_, trie_.size_bytes()));
  EXPECT_EQ(trie_.n_nodes(), 1U);
  EXPECT_TRUE(eviction.make_room(trie_, trie_.size_bytes() + 5, 5));
  EXPECT_EQ(trie_.n_nodes(), 1U);
  EXPECT_FALSE(eviction.make_room(trie_, 5, 6)) << "more than there will ever be";
  EXPECT_EQ(trie_.n_nodes(), 0U);
}

// GreedyDual-Size-Frequency by hand. Four states of one size, all of one rule: the score is clock + cost / size up to
// one factor. A 10, B 20, C 30 are there; A goes and the clock shows 10; D comes, 10 + 15; so B, D, C follow.
TEST_F(PrefixEviction, AgesByTheClockOfWhatWasEvicted) {
  const Keys a = range_keys(1000, 1010);
  const Keys b = range_keys(2000, 2020);
  const Keys c = range_keys(3000, 3030);
  const Keys d = range_keys(4000, 4015);
  for (const Keys& keys : {c, a, b}) put(keys, -1, true);
  Eviction eviction({.needs = kRecurrent});
  const double unit = score_of(eviction, a) / 10;
  EXPECT_NEAR(score_of(eviction, c) / unit, 30, 1e-4);
  EXPECT_TRUE(eviction.make_room(trie_, budget(2)));
  EXPECT_EQ(restorable(a, kRecurrent), 0);
  EXPECT_NEAR(trie_.clock() / unit, 10, 1e-4);
  put(d, -1, true);
  EXPECT_TRUE(eviction.make_room(trie_, budget(2)));
  EXPECT_EQ(restorable(b, kRecurrent), 0);
  EXPECT_TRUE(eviction.make_room(trie_, budget(1)));
  EXPECT_EQ(restorable(d, kRecurrent), 0);
  EXPECT_EQ(restorable(c, kRecurrent), 30);
  EXPECT_EQ(trie_.check(), "");
}

// A state of 16 tokens and one of 1: 16 times the worth, 16 ^ 0.6 times where hits come long before things go.
TEST_F(PrefixEviction, WithRoomEnoughWorthGrowsSlowerThanCost) {
  const Keys large = range_keys(0, 16);
  const Keys small = range_keys(100, 101);
  put(large, -1, true);
  put(small, -1, true);
  Eviction eviction({.needs = kRecurrent, .hit_weight = 0});
  const auto value = [&](const Keys& keys) {
    return eviction.candidate(trie_, *trie_.lookup(keys, kRecurrent, {.n_left = 0}).path.back())->value;
  };
  EXPECT_NEAR(value(large) / value(small), 16, 1e-4);
  const auto live = [&](int i, double age) {
    const Keys keys = range_keys(1000 * i, 1000 * i + 10);
    put(keys, -1, true);
    trie_.advance_clock(trie_.clock() + age);
    use(keys, kRecurrent);
    Pin large_pin = trie_.pin(trie_.lookup(large, kRecurrent, {.n_left = 0}).restorable);
    Pin small_pin = trie_.pin(trie_.lookup(small, kRecurrent, {.n_left = 0}).restorable);
    EXPECT_TRUE(eviction.make_room(trie_, budget(2)));
  };
  for (int i = 1; i <= 20; ++i) live(i, 0);
  eviction.adapt(trie_);
  EXPECT_NEAR(value(large) / value(small), std::pow(16, 0.6), 1e-4);
  const double lived = value(range_keys(0, 16));
  for (int i = 21; i <= 40; ++i) live(i, 10 * lived);
  eviction.adapt(trie_);
  EXPECT_NEAR(value(large) / value(small), 16, 1e-4);
  EXPECT_EQ(trie_.check(), "");
}

TEST_F(PrefixEviction, EachHitAddsToTheWeight) {
  const Keys a = range_keys(1000, 1010);
  const Keys b = range_keys(2000, 2020);
  put(a, -1, true);
  put(b, -1, true);
  use(a, kRecurrent);
  Eviction eviction({.needs = kRecurrent, .hit_weight = 1});
  // Two placed, one used, prior 1/2 counted 8 times: a first hit is as likely as 5 in 10.
  EXPECT_NEAR(score_of(eviction, a) / score_of(eviction, b), (1 + 0.5) * 10 / (0.5 * 20), 1e-6);
  EXPECT_TRUE(eviction.make_room(trie_, budget(1)));
  EXPECT_EQ(restorable(a, kRecurrent), 10);
  EXPECT_NEAR(score_of(Eviction({.needs = kRecurrent, .hit_weight = 0.25}), a) / score_of(eviction, a),
              (0.25 + 0.5) / (1 + 0.5), 1e-6);
}

// Each takes a tenth of the budget and is worth one and the same, v. So the clock goes on by v / 10 with each, and
// stands still from the first eviction on, when evictions move it.
TEST_F(PrefixEviction, WhatIsStoredInAnEmptyCacheAgesToo) {
  Eviction eviction({.needs = kRecurrent});
  const std::size_t budget = 10 * kBig;
  const Keys first = range_keys(1000, 1010);
  put(first, -1, true);
  const double v = score_of(eviction, first);
  for (int i = 0; i < 5; ++i) {
    const Position position = put(range_keys(2000 + 100 * i, 2010 + 100 * i), -1, true);
    eviction.grew(trie_, *position.node, kBig, budget);
  }
  // One less is likely to be used with each that was placed and not used: (8 / 2) / (8 + n) of n = 2 to 6, to 4 / 9.
  double expected = 0;
  for (int n = 2; n <= 6; ++n) expected += v * (4.0 / (8 + n)) / (4.0 / 9) / 10;
  EXPECT_NEAR(trie_.clock() / expected, 1, 1e-6);
  EXPECT_TRUE(eviction.make_room(trie_, this->budget(5)));
  EXPECT_EQ(restorable(first, kRecurrent), 0) << "the eldest";
  const double clock = trie_.clock();
  const Position position = put(range_keys(9000, 9010), -1, true);
  eviction.grew(trie_, *position.node, kBig, budget);
  EXPECT_EQ(trie_.clock(), clock);
}

TEST_F(PrefixEviction, KeysWithoutRowsAgeNothing) {
  const Eviction eviction({.needs = kRowsOnly});
  const Keys keys = range_keys(0, 10);
  const std::optional<Position> position = trie_.insert({.keys = keys});
  ASSERT_TRUE(position);
  eviction.grew(trie_, *position->node, kBig, 10 * kBig);
  EXPECT_EQ(trie_.clock(), 0);
}

// Three states worth 10, 20 and 30 tokens. One that is worth 15 takes the first one's place, and none of the others'.
TEST_F(PrefixEviction, ANewcomerTakesThePlaceOfWhatIsWorthLess) {
  for (const int n : {10, 20, 30}) put(range_keys(1000 * n, 1000 * n + n), -1, true);
  Eviction eviction({.needs = kRecurrent});
  const Newcomer newcomer = {CheckpointRule::kBranch, 100, 115, kBig};
  EXPECT_TRUE(eviction.make_room(trie_, budget(3), kBig, newcomer));
  EXPECT_EQ(restorable(range_keys(10000, 10010), kRecurrent), 0);
  put(range_keys(0, 115), -1, true);
  const double clock = trie_.clock();
  EXPECT_FALSE(eviction.make_room(trie_, budget(1), kBig, {CheckpointRule::kSpacing, 100, 115, kBig}));
  EXPECT_EQ(restorable(range_keys(20000, 20020), kRecurrent), 20);
  EXPECT_EQ(restorable(range_keys(30000, 30030), kRecurrent), 30);
  EXPECT_EQ(restorable(range_keys(0, 115), kRecurrent), 115);
  // None of the rule was placed, so it is as good as its prior, 1/10.
  EXPECT_NEAR((trie_.clock() - clock) * static_cast<double>(kBig), 0.1 * 15, 1e-6);
  EXPECT_FALSE(eviction.make_room(trie_, budget(1), 2 * kBig, newcomer)) << "more than there will ever be";
  EXPECT_EQ(trie_.n_nodes(), 3U);
}

// Tapers go first though they are the newest, take nothing of what the checkpoint behind them is worth, and age
// nothing.
TEST_F(PrefixEviction, TapersGoFirstAndLeaveTheOthersTheirWorth) {
  const Keys keys = range_keys(0, 1000);
  Eviction eviction({.needs = kRecurrent});
  put(keys, -1, true, CheckpointRule::kPromptEnd);
  const double alone = score_of(eviction, keys);
  for (const int to : {900, 950}) {
    const Position taper = put(first_of(keys, to), -1, true, CheckpointRule::kTaper);
    eviction.grew(trie_, *taper.node, kBig, 3 * kBig);
    EXPECT_EQ(score_of(eviction, first_of(keys, to)), -std::numeric_limits<double>::infinity());
  }
  EXPECT_NEAR(score_of(eviction, keys) / alone, 1, 1e-3);
  EXPECT_TRUE(eviction.make_room(trie_, budget(1)));
  EXPECT_EQ(restorable(first_of(keys, 950), kRecurrent), 0);
  EXPECT_EQ(restorable(keys, kRecurrent), 1000);
  EXPECT_EQ(trie_.clock(), 0);
  const Position other = put(range_keys(5000, 5100), -1, true);
  eviction.grew(trie_, *other.node, kBig, 3 * kBig);
  EXPECT_GT(trie_.clock(), 0) << "nothing but tapers has gone";
}

// What is refused ages the rest: in the end the newcomer is worth more than what nobody asks for.
TEST_F(PrefixEviction, ANewcomerThatComesAgainAndAgainIsTakenIn) {
  put(range_keys(0, 1000), -1, true);
  Eviction eviction({.needs = kRecurrent});
  const Newcomer newcomer = {CheckpointRule::kSpacing, 0, 100, kBig};
  int n_refused = 0;
  while (!eviction.make_room(trie_, budget(1), kBig, newcomer)) ASSERT_LT(++n_refused, 100);
  // Worth 4/9 * 1000 against 0.1 * 100 each time.
  EXPECT_EQ(n_refused, 44);
}

TEST_F(PrefixEviction, OfEqualScoresTheOneUsedLongerAgoGoes) {
  const Keys a = range_keys(1000, 1010);
  const Keys b = range_keys(2000, 2010);
  const Keys c = range_keys(3000, 3010);
  for (const Keys& keys : {a, b, c}) put(keys, -1, true);
  Eviction eviction({.needs = kRecurrent});
  eviction.make_room(trie_, budget(2));
  EXPECT_EQ(restorable(a, kRecurrent), 0);
  put(a, -1, true);
  eviction.make_room(trie_, budget(2));
  EXPECT_EQ(restorable(b, kRecurrent), 0);
}

// Checkpoints of a rule that proves useless go before those of one that is used.
TEST_F(PrefixEviction, LearnsWhichRulesCheckpointsAreUsed) {
  for (int i = 0; i < 50; ++i) {
    const auto key = static_cast<Key>(1000 * i);
    put(range_keys(static_cast<int>(key), static_cast<int>(key) + 10), -1, true, CheckpointRule::kSpacing);
    const Keys turn = range_keys(static_cast<int>(key) + 500, static_cast<int>(key) + 510);
    put(turn, -1, true, CheckpointRule::kTurnEnd);
    if (i < 40) use(turn, kRecurrent);
  }
  const Eviction eviction({.needs = kRecurrent});
  // Neither of these two was used: (0 + 8 * 0.1) / (50 + 8) against (40 + 8 * 0.3) / (50 + 8).
  EXPECT_NEAR(score_of(eviction, range_keys(49500, 49510)) / score_of(eviction, range_keys(49000, 49010)), 42.4 / 0.8,
              1e-6);
}

// ---- What goes

TEST_F(PrefixEviction, ACheckpointWithinAChainGoesAndItsRowsStay) {
  const Keys keys = range_keys(0, 40);
  put(first_of(keys, 4), 0, true, CheckpointRule::kSpacing);
  put(keys, 4, true);
  Eviction eviction({.needs = kHybrid});
  EXPECT_TRUE(eviction.make_room(trie_, budget(41)));
  EXPECT_EQ(restorable(keys, kHybrid), 40);
  EXPECT_EQ(restorable(first_of(keys, 4), kHybrid), 0);
  EXPECT_EQ(trie_.n_nodes(), 1U) << "the chain is joined";
  EXPECT_EQ(trie_.rows_bytes(), 40 * kBig);
  EXPECT_EQ(eviction.counters().n_checkpoints, 1U);
  EXPECT_EQ(eviction.counters().n_leaves, 0U);
  EXPECT_EQ(trie_.check(), "");
}

TEST_F(PrefixEviction, ALeafThatNothingIsRestoredFromGoesFirst) {
  put(range_keys(0, 4), 0, true);
  put(range_keys(0, 10), 4, false);  // rows behind the last checkpoint
  put(range_keys(500, 501), 0, true);
  Eviction eviction({.needs = kHybrid});
  EXPECT_TRUE(eviction.make_room(trie_, budget(12)));
  EXPECT_EQ(restorable(range_keys(0, 10), kHybrid), 4);
  EXPECT_EQ(restorable(range_keys(500, 501), kHybrid), 1);
  EXPECT_EQ(trie_.clock(), 0) << "what had no worth ages nobody";
}

TEST_F(PrefixEviction, RowsAreTrimmedFromTheEnd) {
  const Keys keys = range_keys(0, 1000);
  put(keys, 0, false);
  Eviction eviction({.needs = kRowsOnly});
  EXPECT_TRUE(eviction.make_room(trie_, budget(990)));
  EXPECT_EQ(restorable(keys, kRowsOnly), 990);
  EXPECT_EQ(eviction.counters().n_trims, 1U) << "all that has to go at once";
  EXPECT_TRUE(eviction.make_room(trie_, budget(300)));
  EXPECT_EQ(restorable(keys, kRowsOnly), 300);
  EXPECT_EQ(eviction.counters().n_leaves, 0U);
  EXPECT_TRUE(eviction.make_room(trie_, 0));
  EXPECT_EQ(trie_.n_nodes(), 0U);
  EXPECT_EQ(world_.n_live, 0);
  EXPECT_EQ(trie_.size_bytes(), 0U);
}

// A chat that goes on ends a hit in each of its places once.
TEST_F(PrefixEviction, RowsThatTwoHitsEndedInWeighMore) {
  const Keys a = range_keys(0, 100);
  put(a, 0, false);
  const Eviction eviction({.needs = kRowsOnly});
  const double unused = score_of(eviction, a);
  use(a, kRowsOnly);
  EXPECT_DOUBLE_EQ(score_of(eviction, a), unused);
  use(a, kRowsOnly);
  EXPECT_DOUBLE_EQ(score_of(eviction, a) / unused, 1.2);  // (0.5 + 0.1) / 0.5
  use(a, kRowsOnly);
  EXPECT_DOUBLE_EQ(score_of(eviction, a) / unused, 1.2);
}

TEST_F(PrefixEviction, SharedRowsOutliveTheBranchesThatWereUsedLongerAgo) {
  world_.splits_share = false;
  const Keys shared = range_keys(0, 100);
  for (int i = 1; i <= 5; ++i) put(joined(shared, range_keys(1000 * i, 1000 * i + 50)), i == 1 ? 0 : 100, false);
  use(joined(shared, range_keys(1000, 1050)), kRowsOnly);
  Eviction eviction({.needs = kRowsOnly});
  EXPECT_TRUE(eviction.make_room(trie_, budget(160)));
  EXPECT_EQ(restorable(joined(shared, range_keys(1000, 1050)), kRowsOnly), 150);
  EXPECT_EQ(trie_.n_keys(), 160U);
  EXPECT_EQ(trie_.check(), "");
}

TEST_F(PrefixEviction, APinnedPathStaysWhateverTheBudget) {
  const Keys keys = range_keys(0, 40);
  put(first_of(keys, 10), 0, true);
  put(first_of(keys, 30), 10, true);
  put(keys, 30, true);
  put(joined(first_of(keys, 10), range_keys(100, 110)), 10, true);
  Pin pin = trie_.pin(trie_.lookup(first_of(keys, 30), kHybrid, {.n_left = 0}).restorable);
  Eviction eviction({.needs = kHybrid});
  EXPECT_FALSE(eviction.make_room(trie_, 0));
  EXPECT_EQ(restorable(keys, kHybrid), 30);
  EXPECT_EQ(restorable(first_of(keys, 10), kHybrid), 10);
  EXPECT_EQ(trie_.n_keys(), 30U);
  EXPECT_EQ(trie_.check(), "");
  pin.release();
  EXPECT_TRUE(eviction.make_room(trie_, 0));
  EXPECT_EQ(trie_.n_keys(), 0U);
}

// ollama's EvictionPreservesActiveConversations: five chats that share five tokens, each state 2 GiB, 8 GiB allowed.
TEST_F(PrefixEviction, RunningChatsKeepTheirStateAndTheSharedBeginning) {
  world_.checkpoint_bytes = 2 * kBig;
  world_.row_bytes = 0;
  const Keys shared = range_keys(1, 6);
  put(shared, 0, true);
  Position last;
  for (int i = 1; i <= 5; ++i) last = put(joined(shared, range_keys(100 * i, 100 * i + 5)), 5, true);
  const Pin pin = trie_.pin(last);
  Eviction eviction({.needs = kHybrid});
  EXPECT_TRUE(eviction.make_room(trie_, 8 * kBig));
  EXPECT_EQ(restorable(joined(shared, range_keys(500, 505)), kHybrid), 10);
  EXPECT_EQ(restorable(joined(shared, {9999}), kHybrid), 5);
}

// ---- Rows of answers

TEST_F(PrefixEviction, UseRefreshesTheRowsOnTheWay) {
  put({1, 2}, 0, false);
  put({1, 2, 3, 4}, 2, false);
  put({1, 2, 9}, 2, false);
  trie_.advance_clock(5);
  use({1, 2, 3, 4, 5}, kRowsOnly);
  const std::vector<Node*> path = trie_.lookup(Keys{1, 2, 3, 4}, kRowsOnly).path;
  ASSERT_EQ(path.size(), 2U);
  EXPECT_EQ(path[0]->clock(), 5);
  EXPECT_EQ(path[1]->clock(), 5);
  EXPECT_EQ(path[0]->n_hits(), 0U);
  EXPECT_EQ(trie_.lookup(Keys{1, 2, 9}, kRowsOnly).path[1]->clock(), 0);
}

TEST_F(PrefixEviction, AnAnswerIsOneUntilAPromptGoesOnBehindIt) {
  const Keys answered = range_keys(0, 20);
  const auto path = [&](const Keys& keys) { return trie_.lookup(keys, kRowsOnly).path; };
  put(first_of(answered, 10), 0, false);
  put_answer(first_of(answered, 15), 10);
  put_answer(answered, 15);
  ASSERT_EQ(path(answered).size(), 2U) << "parts of one answer are joined, a prompt and its answer are not";
  EXPECT_FALSE(path(answered)[0]->is_answer());
  EXPECT_TRUE(path(answered)[1]->is_answer());
  EXPECT_EQ(trie_.counters().n_answer_keys, 10U);

  const Keys other = joined(first_of(answered, 12), {100});
  put(other, 12, false);
  EXPECT_EQ(trie_.counters().n_answer_keys_used, 2U);
  for (const Node* const node : path(other)) EXPECT_FALSE(node->is_answer());
  EXPECT_TRUE(path(answered).back()->is_answer());

  put(joined(answered, {101}), 20, false);
  EXPECT_EQ(trie_.counters().n_answer_keys_used, 10U);
  for (const Node* const node : path(joined(answered, {101}))) EXPECT_FALSE(node->is_answer());
  EXPECT_EQ(trie_.counters().n_answer_keys, 10U);
  EXPECT_EQ(trie_.check(), "");
}

// Four answers of 2000 keys; prompts went on behind n_used of them. From a quarter on they are worth what prompts are.
TEST_F(PrefixEviction, AnswersAreWorthWhatPromptsMakeOfThem) {
  for (const int n_used : {0, 1, 3}) {
    Trie trie;
    const auto put_rows = [&](const Keys& keys, int from, bool is_answer) {
      Insertion insertion{.keys = keys, .is_answer = is_answer};
      insertion.rows = std::make_unique<FakeRows>(world_, keys, from);
      ASSERT_TRUE(trie.insert(std::move(insertion)));
    };
    for (int chat = 1; chat <= 4; ++chat) {
      const Keys answered = range_keys(10000 * chat, 10000 * chat + 2500);
      put_rows(first_of(answered, 500), 0, false);
      put_rows(answered, 500, true);
      if (chat <= n_used) put_rows(joined(answered, range_keys(1, 501)), 2500, false);
    }
    put_rows(range_keys(90000, 92500), 0, false);
    const Eviction eviction({.needs = kRowsOnly});
    const auto value = [&](const Keys& keys) {
      return eviction.candidate(trie, *trie.lookup(keys, kRowsOnly).path.back())->value;
    };
    const double used = (n_used * 2000 + 2048.0) / (4 * 2000 + 2048.0);
    EXPECT_NEAR(value(range_keys(40000, 42500)) / value(range_keys(90000, 92500)), std::min(1.0, 6 * used), 1e-6);
    EXPECT_EQ(trie.check(), "");
  }
}

// The prompt was used longer ago than the answer, and stays.
TEST_F(PrefixEviction, WhereNoPromptGoesOnBehindAnswersTheyGoFirst) {
  const Keys old = range_keys(0, 500);
  put(old, 0, false);
  Eviction eviction({.needs = kRowsOnly});
  for (int i = 1; i <= 40; ++i) {
    const Keys answered = range_keys(10000 * i, 10000 * i + 1500);
    put(first_of(answered, 500), 0, false);
    put_answer(answered, 500);
  }
  EXPECT_TRUE(eviction.make_room(trie_, budget(41 * 500)));
  EXPECT_EQ(restorable(old, kRowsOnly), 500);
  for (int i = 1; i <= 40; ++i) EXPECT_EQ(restorable(range_keys(10000 * i, 10000 * i + 1500), kRowsOnly), 500);
}

// ---- Long prompts

// sglang#36935: a long prompt's many interior states fill the cache, its end is evicted, and a hit of 40k becomes none.
TEST_F(PrefixEviction, ManySpacedCheckpointsDontCrowdOutTheEnd) {
  world_.row_bytes = 0;
  const Keys keys = range_keys(0, 40000);
  for (int to = 512; to < 40000; to += 512) put(first_of(keys, to), to - 512, true, CheckpointRule::kSpacing);
  put(keys, 39936, true, CheckpointRule::kPromptEnd);
  Eviction eviction({.needs = kHybrid});
  EXPECT_TRUE(eviction.make_room(trie_, budget(10)));
  EXPECT_EQ(restorable(keys, kHybrid), 40000);
  // Those that stay lie apart: as one goes, the next one below is worth more.
  int last = 0;
  int n_left = 0;
  int widest = 0;
  trie_.visit([&](Node& node) {
    if (node.checkpoint() == nullptr) return;
    widest = std::max(widest, node.to() - last);
    last = node.to();
    ++n_left;
  });
  EXPECT_EQ(n_left, 10);
  EXPECT_LE(widest, 3 * 40000 / 10);
  EXPECT_EQ(trie_.check(), "");
}

// The rows above a leaf that has the only child's place are of no use without it.
TEST_F(PrefixEviction, ALeafIsPricedWithTheRowsThatOnlyItNeeds) {
  put(range_keys(0, 5), 0, true);
  put(range_keys(0, 15), 5, false);
  put(range_keys(0, 19), 15, true);  // shorter than the edge above, so not joined
  const Eviction eviction({.needs = kHybrid});
  const Match match = trie_.lookup(range_keys(0, 19), kHybrid);
  ASSERT_EQ(match.path.size(), 3U);
  const Candidate leaf = *eviction.candidate(trie_, *match.path[2]);
  EXPECT_EQ(leaf.bytes, 15 * kBig + 2 * Node::kBytes + 14 * sizeof(Key));  // 14 rows and the checkpoint
  // From the checkpoint at 5; of two placed none was used: (0 + 8 / 2) / (2 + 8).
  EXPECT_DOUBLE_EQ(leaf.value, 0.4 * 14 / static_cast<double>(leaf.bytes));
}

TEST_F(PrefixEviction, AStateInASharedStorageCountsByItsPart) {
  const Keys a = range_keys(0, 20);
  Insertion insertion{.keys = a};
  insertion.checkpoint = std::make_unique<FakeCheckpoint>(world_, a, 4);
  trie_.insert(std::move(insertion));
  put(joined(range_keys(0, 18), range_keys(100, 110)), -1, true);
  EXPECT_EQ(trie_.checkpoint_bytes(), 2 * kBig);
  const Eviction eviction({.needs = kRecurrent});
  const Match match = trie_.lookup(a, kRecurrent);
  ASSERT_EQ(match.path.size(), 2U);
  EXPECT_EQ(eviction.candidate(trie_, *match.path[0])->bytes, kBig / 2);
  Eviction all({.needs = kRecurrent});
  EXPECT_TRUE(all.make_room(trie_, 0));
  EXPECT_EQ(trie_.size_bytes(), 0U);
}

TEST_F(PrefixEviction, ALazyCheckpointWithinAChainFreesNothingAndStays) {
  world_.checkpoint_bytes = 0;
  put(range_keys(0, 10), 0, true);
  put(range_keys(0, 20), 10, true);
  const Eviction eviction({.needs = kHybrid});
  const Match match = trie_.lookup(range_keys(0, 20), kHybrid);
  EXPECT_FALSE(eviction.candidate(trie_, *match.path[0]).has_value());
  EXPECT_TRUE(eviction.candidate(trie_, *match.path[1]).has_value());
}

// ---- The queue against plain scans

// One after the other by looking at all candidates each time must give what make_room's queue gives.
TEST_F(PrefixEviction, TheQueueTakesWhatAScanOfAllWouldTake) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Needs needs = seed % 3 == 0 ? kRowsOnly : seed % 3 == 1 ? kHybrid : kRecurrent;
    nlohmann::json results[2];
    EvictionCounters counters[2];
    for (int way = 0; way < 2; ++way) {
      std::mt19937_64 random(seed);
      FakeWorld world;
      world.splits_share = false;
      world.row_bytes = 1000;
      world.checkpoint_bytes = 20000;
      Trie trie;
      std::vector<Pin> pins;
      Eviction eviction({.needs = needs, .cost = {.per_token = 1, .per_pair = 0.01}});
      for (int i = 0; i < 160; ++i) {
        Keys keys;
        for (std::uint64_t n = 1 + random() % 120; n > 0; --n) keys.push_back(random() % 12 == 0 ? random() % 3 : 7);
        Insertion insertion{.keys = keys, .rule = static_cast<CheckpointRule>(random() % kCheckpointRules)};
        if (needs.rows) insertion.rows = std::make_unique<FakeRows>(world, keys, 0);
        if (needs.checkpoint && random() % 4 > 0) insertion.checkpoint = std::make_unique<FakeCheckpoint>(world, keys);
        const auto position = trie.insert(std::move(insertion));
        if (random() % 20 == 0) pins.push_back(trie.pin(*position));
        trie.use(trie.lookup(keys, needs), static_cast<int>(keys.size()));
        if (i % 40 != 39) continue;
        const std::size_t budget = trie.size_bytes() / 3;
        if (way == 0) {
          eviction.make_room(trie, budget);
        } else {
          eviction.adapt(trie);
          while (trie.size_bytes() > budget && eviction.evict_one(trie, trie.size_bytes() - budget)) {
          }
          trie.join_chains();
        }
        ASSERT_EQ(trie.check(), "");
      }
      results[way] = report_nodes(trie, eviction, {.max_keys = 200});
      counters[way] = eviction.counters();
    }
    ASSERT_EQ(results[0], results[1]);
    ASSERT_EQ(counters[0].n_bytes, counters[1].n_bytes);
  }
}

// ---- A long run

TEST(PrefixEvictionSoak, TenThousandRequestsAtATenthOfTheNeed) {
  for (const Needs needs : {kRowsOnly, kHybrid, kRecurrent}) {
    FakeEngine engine(needs);
    engine.policy = {};
    engine.world.checkpoint_bytes = 20000;
    engine.world.row_bytes = 1000;
    Eviction eviction({.needs = needs});
    std::mt19937_64 random(7);
    std::size_t budget = std::numeric_limits<std::size_t>::max();
    for (int i = 0; i < 10000; ++i) {
      const int chat = static_cast<int>(random() % 200);
      const int turn = static_cast<int>(random() % 8);
      const Keys shared = range_keys(0, 60);
      const Keys prompt = joined(shared, range_keys(1000 * chat + 1000, 1000 * chat + 1040 + turn * 40));
      engine.run(prompt, range_keys(900000, 900030), {60});
      if (i == 1500) budget = engine.trie.size_bytes() / 10;
      ASSERT_TRUE(eviction.make_room(engine.trie, budget));
      ASSERT_EQ(engine.trie.check(), "");
    }
    EXPECT_LE(engine.trie.size_bytes(), budget);
    EXPECT_GT(engine.trie.counters().n_hits, 5000U) << "the shared beginning at least";
    std::size_t n_payloads = 0;
    engine.trie.visit([&](Node& node) { n_payloads += (node.rows() != nullptr) + (node.checkpoint() != nullptr); });
    EXPECT_EQ(static_cast<std::size_t>(engine.world.n_live), n_payloads);
  }
}

// ---- The report

TEST_F(PrefixEviction, ReportsTotalsAndNodes) {
  world_.row_bytes = 10;
  world_.checkpoint_bytes = 100;
  put(range_keys(0, 10), 0, true, CheckpointRule::kTurnEnd);
  put(range_keys(0, 15), 10, false);
  const Pin pin = trie_.pin(trie_.lookup(range_keys(0, 10), kHybrid, {.n_left = 0}).restorable);
  use(range_keys(0, 12), kHybrid);
  const Eviction eviction({.needs = kHybrid});
  const nlohmann::json totals = report_totals(trie_, eviction);
  EXPECT_EQ(totals["lookups"], 1);
  EXPECT_EQ(totals["hits"], 1);
  EXPECT_EQ(totals["tokens_reused"], 10);
  EXPECT_EQ(totals["tokens_evaluated"], 2);
  EXPECT_EQ(totals["bytes"]["rows"], 150);
  EXPECT_EQ(totals["bytes"]["checkpoints"], 100);
  EXPECT_EQ(totals["bytes"]["keys"], 2 * Node::kBytes + 15 * 8);
  EXPECT_EQ(totals["bytes"]["total"], 250 + 2 * Node::kBytes + 15 * 8);
  EXPECT_EQ(totals["rules"]["turn_end"], (nlohmann::json{{"placed", 1}, {"used", 1}}));
  EXPECT_EQ(totals["pins"], 1);

  const nlohmann::json nodes = report_nodes(trie_, eviction, {.max_keys = 3});
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0]["parent"], 0);
  EXPECT_EQ(nodes[1]["parent"], nodes[0]["id"]);
  EXPECT_EQ(nodes[1]["from"], 10);
  EXPECT_EQ(nodes[0]["rule"], "turn_end");
  EXPECT_EQ(nodes[0]["pins"], 1);
  EXPECT_EQ(nodes[0]["hits"], 1);
  EXPECT_EQ(nodes[0]["age"], 0);
  EXPECT_EQ(nodes[0]["keys"], (nlohmann::json{0, 1, 2}));
  EXPECT_FALSE(nodes[1].contains("checkpoint_bytes"));
  EXPECT_EQ(report_nodes(trie_, eviction, {.max_nodes = 1}).size(), 1U);
}

}  // namespace
}  // namespace memoir::prefix
