#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "memoir/prefix/tail_habit.h"
#include "prefix_fakes.h"

namespace memoir::prefix {
namespace {

constexpr Needs kHybrid = {true, true};
constexpr int kClose = 16;

// An agent whose prompt is a log, and behind it a line of n tokens that is another one each time. It tells the habit of
// each prompt, and takes the checkpoints that follow from it.
class HabitOf : public testing::Test {
 protected:
  HabitOf() : engine_(kHybrid) {
    engine_.policy = {};
    engine_.world.checkpoint_bytes = 1 << 20;  // so that none is spaced
  }

  // Returns how many tokens were not restored though they were known.
  int run(const Keys& prompt) {
    const Match match = engine_.trie.lookup(prompt, kHybrid);
    const int n_lost = match.matched - match.restorable.offset;
    habit_.saw(match, static_cast<int>(prompt.size()), kClose);
    const PromptPlan plan = {.n_tokens = static_cast<int>(prompt.size()),
                             .restored = match.restorable.offset,
                             .matched = match.matched,
                             .turn_ends = {},
                             .size = {engine_.world.checkpoint_bytes, engine_.world.row_bytes},
                             .tail = habit_.tail(kClose)};
    engine_.trie.use(match, static_cast<int>(prompt.size()));
    Pin pin = engine_.trie.pin(match.restorable);
    for (const PlannedCheckpoint& one : plan_prompt(plan)) {
      engine_.store(pin, first_of(prompt, one.offset), one.rule, true);
    }
    engine_.store(pin, prompt, CheckpointRule::kAnswerEnd, false);
    return n_lost;
  }

  // The next step: the log grows, the line is new.
  int step(int n_line, int n_grown = 100) {
    log_ += n_grown;
    line_ += 1000;
    return run(joined(range_keys(0, log_), range_keys(line_, line_ + n_line)));
  }

  FakeEngine engine_;
  TailHabit habit_;
  int log_ = 0;
  int line_ = 1'000'000;
};

TEST_F(HabitOf, NothingIsKnownAtFirst) {
  EXPECT_EQ(habit_.tail(kClose), std::nullopt);
  step(30);
  EXPECT_EQ(habit_.tail(kClose), std::nullopt);
}

// Two prompts are left without a checkpoint; from then on each has one where it is left. Its last checkpoint is 4
// before its end, so a line of 30 tokens is a tail of 26.
TEST_F(HabitOf, AnAgentWithALineAtItsEndLosesTwoResultsAndThenNone) {
  step(30);
  EXPECT_EQ(step(30), 100);
  EXPECT_EQ(step(30), 200 - 100) << "the branch at 100 was restored, and nobody leaves there again";
  EXPECT_EQ(habit_.tail(kClose), 26) << "so this prompt has a checkpoint there";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(step(30), 0);
  EXPECT_EQ(habit_.tail(kClose), 26);
}

TEST_F(HabitOf, OfLinesThatAreAboutAsLongTheLongestCounts) {
  for (const int n_line : {30, 33, 28, 31}) step(n_line);
  EXPECT_EQ(habit_.tail(kClose), 29);
  for (const int n_line : {32, 30, 29}) EXPECT_LT(step(n_line), kClose);
}

TEST_F(HabitOf, PromptsThatAreLeftAnywhereMakeNoHabit) {
  step(30);
  for (const int n_line : {200, 60, 120, 500, 90, 350}) step(n_line, 600);
  EXPECT_EQ(habit_.tail(kClose), std::nullopt);
}

// All leave one prompt: that is the branch rule's business.
TEST_F(HabitOf, OnePromptThatIsLeftOftenCountsOnce) {
  run(range_keys(0, 130));
  habit_.saw(engine_.trie.lookup(joined(range_keys(0, 100), range_keys(500, 600)), kHybrid), 200, kClose);
  habit_.saw(engine_.trie.lookup(joined(range_keys(0, 101), range_keys(700, 800)), kHybrid), 201, kClose);
  EXPECT_EQ(habit_.tail(kClose), std::nullopt);
}

TEST_F(HabitOf, WhatWasRestoredIsNoLoss) {
  for (int i = 0; i < 6; ++i) {  // questions behind one beginning that has a checkpoint
    Pin pin;
    if (i == 0) engine_.store(pin, range_keys(0, 100), CheckpointRule::kTurnEnd, true);
    pin.release();
    EXPECT_EQ(run(joined(range_keys(0, 100), range_keys(1000 * i + 1000, 1000 * i + 1040))), 0);
  }
  EXPECT_EQ(habit_.tail(kClose), std::nullopt);
}

TEST_F(HabitOf, AnotherHabitTakesOver) {
  for (int i = 0; i < 5; ++i) step(30);
  for (int i = 0; i < 8; ++i) step(90);
  EXPECT_EQ(habit_.tail(kClose), 86);
  EXPECT_EQ(step(90), 0);
}

}  // namespace
}  // namespace memoir::prefix
