#include "memoir/prefix/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace memoir::prefix {
namespace {

using enum CheckpointRule;
using Plan = std::vector<PlannedCheckpoint>;
using Offsets = std::vector<int>;

constexpr std::size_t kMiB = 1024 * 1024;
const PolicyOptions kNoTapers = [] {
  PolicyOptions options;
  options.tapers = false;
  return options;
}();

std::vector<int> offsets_of(const Plan& plan) {
  Offsets offsets;
  for (const PlannedCheckpoint& checkpoint : plan) offsets.push_back(checkpoint.offset);
  return offsets;
}

// ---- Spacing

// States as llama.cpp's users report them: Qwen3.6-27B 149.6 MiB, Qwen3.6-35B-A3B 62.8 MiB, gpt-oss-20b 15 MiB.
// Expected: bytes / (share * row bytes), by hand.
TEST(CheckpointSpacing, RowsOfThatManyTokensPayForACheckpoint) {
  const std::size_t qwen_27b = 1496 * kMiB / 10;
  EXPECT_EQ(checkpoint_spacing({qwen_27b, 64 * 1024}, {.share = 0.25}), 9575);        // 9574.4
  EXPECT_EQ(checkpoint_spacing({qwen_27b, 64 * 1024}, {.share = 1}), 2394);           // 2393.6
  EXPECT_EQ(checkpoint_spacing({628 * kMiB / 10, 20 * 1024}, {.share = 0.5}), 6431);  // 6430.7
  EXPECT_EQ(checkpoint_spacing({15 * kMiB, 24 * 1024}, {.share = 0.25}), 2560);
}

TEST(CheckpointSpacing, HasALeastValueAndOneForModelsWithoutRows) {
  EXPECT_EQ(checkpoint_spacing({100, 100}), 256);
  EXPECT_EQ(checkpoint_spacing({100, 100}, {.min_spacing = 3}), 4);
  EXPECT_EQ(checkpoint_spacing({100 * kMiB, 0}), 2048);
  EXPECT_EQ(checkpoint_spacing({100 * kMiB, 0}, {.rowless_spacing = 77}), 77);
  EXPECT_GT(checkpoint_spacing({~std::size_t{0}, 1}), 1 << 29);
}

TEST(CheckpointSpacing, RefusesOptionsOutOfRange) {
  EXPECT_THROW(checkpoint_spacing({1, 1}, {.share = 0}), std::invalid_argument);
  EXPECT_THROW(checkpoint_spacing({1, 1}, {.min_spacing = 0}), std::invalid_argument);
  EXPECT_THROW(checkpoint_spacing({1, 1}, {.rowless_spacing = 0}), std::invalid_argument);
  EXPECT_THROW(checkpoint_spacing({1, 1}, {.close = -1}), std::invalid_argument);
  EXPECT_THROW(checkpoint_spacing({1, 1}, {.prompt_tail = -1}), std::invalid_argument);
  EXPECT_THROW(checkpoint_spacing({1, 1}, {.n_exact_turns = -1}), std::invalid_argument);
}

TEST(SpacedRule, MultiplesFromZeroStrictlyInside) {
  EXPECT_EQ(spaced(0, 10, 4), (Offsets{4, 8}));
  EXPECT_EQ(spaced(4, 12, 4), (Offsets{8}));
  EXPECT_EQ(spaced(3, 5, 4), (Offsets{4}));
  EXPECT_EQ(spaced(5, 8, 4), Offsets{});
  EXPECT_EQ(spaced(1 << 29, 1 << 30, (1 << 29) + 1), (Offsets{(1 << 29) + 1}));
}

// ---- Single rules

TEST(BranchRule, IsWhereTheMatchWentBeyondWhatWasRestored) {
  EXPECT_EQ(branch_point({.n_tokens = 100, .restored = 10, .matched = 60, .turn_ends = {}, .size = {}}), 60);
  EXPECT_EQ(branch_point({.n_tokens = 100, .restored = 60, .matched = 60, .turn_ends = {}, .size = {}}), std::nullopt);
  EXPECT_EQ(branch_point({.n_tokens = 60, .restored = 0, .matched = 60, .turn_ends = {}, .size = {}}), std::nullopt)
      << "the whole prompt: that is the prompt's end";
}

TEST(PromptEndRule, LeavesATailAndAtLeastOneToken) {
  const PromptPlan prompt = {.n_tokens = 100, .restored = 10, .matched = 10, .turn_ends = {}, .size = {}};
  EXPECT_EQ(before_prompt_end(prompt), 96);  // ollama's preThinking and llama.cpp: 4
  EXPECT_EQ(before_prompt_end(prompt, {.prompt_tail = 0}), 99);
  EXPECT_EQ(before_prompt_end(prompt, {.prompt_tail = 90}), std::nullopt);
}

TEST(TailRule, IsSoManyTokensBeforeThePromptsEnd) {
  const PromptPlan prompt = {.n_tokens = 100, .restored = 10, .matched = 10, .turn_ends = {}, .size = {}, .tail = 20};
  EXPECT_EQ(at_tail(prompt), 76);
  EXPECT_EQ(at_tail(prompt, {.prompt_tail = 0}), 79);
  PromptPlan short_prompt = prompt;
  short_prompt.restored = 76;
  EXPECT_EQ(at_tail(short_prompt), std::nullopt);
  short_prompt.tail = std::nullopt;
  EXPECT_EQ(at_tail(short_prompt), std::nullopt);
}

TEST(TurnEndRule, KeepsThoseThatAreComputed) {
  const Offsets ends = {0, 10, 20, 30, 40, 50};
  EXPECT_EQ(turn_ends({.n_tokens = 50, .restored = 10, .matched = 10, .turn_ends = ends, .size = {}}),
            (Offsets{20, 30, 40}));
}

TEST(MergeRule, TheFirstOfACrowdStays) {
  const Plan crowd = {{100, kPromptEnd}, {40, kTurnEnd}, {55, kBranch}, {56, kTurnEnd}, {90, kTurnEnd}};
  EXPECT_EQ(merge_close(crowd, 0, 16), (Plan{{40, kTurnEnd}, {56, kTurnEnd}, {90, kTurnEnd}}));
  EXPECT_EQ(merge_close(crowd, 30, 16), (Plan{{55, kBranch}, {90, kTurnEnd}}))
      << "40 is close behind what was restored";
  EXPECT_EQ(merge_close(crowd, 0, 0).size(), 5U);
}

TEST(MergeRule, OfOneOffsetTheStrongerRuleStays) {
  EXPECT_EQ(merge_close({{9, kPromptEnd}, {9, kBranch}, {9, kTurnEnd}}, 0, 1), (Plan{{9, kBranch}}));
}

PromptPlan of_length(int n_tokens, int restored = 0) {
  PromptPlan prompt;
  prompt.n_tokens = n_tokens;
  prompt.restored = prompt.matched = restored;
  return prompt;
}

// 11 % of 2000 before the end is 1780, and so on by halves and doubles: 44 % 1120, 22 % 1560, 5.5 % 1890, 88 % 240;
// 2.75 % are 55, fewer than 64.
TEST(TaperRule, PartsOfTheLengthBeforeTheEnd) {
  EXPECT_EQ(tapered(of_length(2000)), (Offsets{240, 1120, 1560, 1780, 1890}));
  EXPECT_EQ(tapered(of_length(2000, 1560)), (Offsets{1780, 1890}));
  PolicyOptions far_apart;
  far_apart.min_taper = 300;
  EXPECT_EQ(tapered(of_length(2000), far_apart), (Offsets{240, 1120, 1560}));
  EXPECT_TRUE(tapered(of_length(70)).empty());
  EXPECT_EQ(tapered(of_length(80)), (Offsets{10}));  // 70.4 before its end
}

TEST(TaperRule, GoesOnToTheEndOfLongPrompts) {
  const Offsets offsets = tapered(of_length(1'000'000));
  EXPECT_EQ(offsets.size(), 14U);  // 880,000 halved 13 times is 107
  EXPECT_EQ(offsets.back(), 1'000'000 - 107);
  PolicyOptions without_least;
  without_least.min_taper = 0;
  EXPECT_EQ(tapered(of_length(1'000'000), without_least).back(), 1'000'000 - 1);
}

// Of any length and place, what is behind the nearest of them is little more than twice what is behind the place.
TEST(TaperRule, LosesLittleMoreThanWhatIsMissing) {
  for (int n = 100; n < 20000; n = n * 3 / 2) {
    const Offsets offsets = tapered(of_length(n));
    for (int left = n / 8; left < n - 64; left += 7) {
      const auto after = std::upper_bound(offsets.begin(), offsets.end(), left);
      const int restored = after == offsets.begin() ? 0 : after[-1];
      EXPECT_LE(n - restored, 2 * (n - left) + 2) << n << " " << left;
    }
  }
}

TEST(TaperRule, HalfOfTheRoomMustBeFreeForIt) {
  EXPECT_TRUE(has_room_for(kTaper, {.n_held = 50, .max_bytes = 100}));
  EXPECT_FALSE(has_room_for(kTaper, {.n_held = 51, .max_bytes = 100}));
  EXPECT_TRUE(has_room_for(kSpacing, {.n_held = 99, .max_bytes = 100}));
}

TEST(CheckpointRoom, WhatIsStillToComeHasToFitBesideWhatIsPinned) {
  const CheckpointRoom enough = {.n_held = 90, .n_pinned = 60, .n_checkpoint = 15, .n_rest = 10, .max_bytes = 100};
  const CheckpointRoom short_of_one = {
      .n_held = 90, .n_pinned = 61, .n_checkpoint = 15, .n_rest = 10, .max_bytes = 100};
  const CheckpointRoom too_small = {.n_held = 10, .n_pinned = 110, .n_checkpoint = 15, .n_rest = 10, .max_bytes = 100};
  for (const CheckpointRule rule : {kSpacing, CheckpointRule::kLongAnswer, CheckpointRule::kTurnEnd}) {
    EXPECT_TRUE(has_room_for(rule, enough));
    EXPECT_FALSE(has_room_for(rule, short_of_one));
    EXPECT_FALSE(has_room_for(rule, too_small));
  }
  EXPECT_FALSE(
      has_room_for(kTaper, {.n_held = 40, .n_pinned = 61, .n_checkpoint = 15, .n_rest = 10, .max_bytes = 100}));
  for (const CheckpointRule rule : {kBranch, kPromptEnd, CheckpointRule::kTail, CheckpointRule::kAnswerEnd}) {
    EXPECT_TRUE(has_room_for(rule, short_of_one));
  }
}

// ---- All rules together

TEST(PlanPrompt, TapersStandWhereNothingElseIsNear) {
  const PromptPlan prompt = {.n_tokens = 2000, .restored = 0, .matched = 1530, .turn_ends = {}, .size = {1 << 20, 1}};
  EXPECT_EQ(plan_prompt(prompt),
            (Plan{{240, kTaper}, {1120, kTaper}, {1530, kBranch}, {1780, kTaper}, {1890, kTaper}, {1996, kPromptEnd}}));
  EXPECT_EQ(plan_prompt(prompt, kNoTapers), (Plan{{1530, kBranch}, {1996, kPromptEnd}}));
}

TEST(PlanPrompt, ATailComesBeforeThePromptsEnd) {
  const PromptPlan prompt = {
      .n_tokens = 300, .restored = 100, .matched = 100, .turn_ends = {}, .size = {100, 10}, .tail = 22};
  EXPECT_EQ(plan_prompt(prompt, kNoTapers), (Plan{{274, kTail}, {296, kPromptEnd}}));
}

TEST(PlanPrompt, ModelsWithoutSuchLayersNeedNone) {
  const Offsets ends = {500, 1000};
  EXPECT_TRUE(
      plan_prompt({.n_tokens = 5000, .restored = 0, .matched = 70, .turn_ends = ends, .size = {0, 100}}).empty());
}

TEST(PlanPrompt, AColdChat) {
  const Offsets ends = {300, 340, 700, 1195};
  const PromptPlan prompt = {.n_tokens = 1200, .restored = 0, .matched = 0, .turn_ends = ends, .size = {102400, 1000}};
  // N = 102400 / 250 = 410, rounded up. The last two turns and the end: 700, 1195 (1196 is close to it). Earlier turns
  // at least 102 apart: 300. Multiples of 410 at least 205 from the next: 410 is too near to 300, 820 to 700.
  EXPECT_EQ(plan_prompt(prompt, kNoTapers), (Plan{{300, kTurnEnd}, {700, kTurnEnd}, {1195, kTurnEnd}}));
}

TEST(PlanPrompt, AColdDocument) {
  const PromptPlan prompt = {.n_tokens = 1500, .restored = 0, .matched = 0, .turn_ends = {}, .size = {102400, 1000}};
  EXPECT_EQ(plan_prompt(prompt, kNoTapers),
            (Plan{{410, kSpacing}, {820, kSpacing}, {1230, kSpacing}, {1496, kPromptEnd}}));
}

TEST(PlanPrompt, APartialHit) {
  const PromptPlan prompt = {
      .n_tokens = 1500, .restored = 820, .matched = 1000, .turn_ends = {}, .size = {102400, 1000}};
  EXPECT_EQ(plan_prompt(prompt, kNoTapers), (Plan{{1000, kBranch}, {1230, kSpacing}, {1496, kPromptEnd}}));
}

TEST(PlanPrompt, TheSamePromptAgainWithItsEndRestoredNeedsNothing) {
  EXPECT_TRUE(
      plan_prompt({.n_tokens = 1500, .restored = 1496, .matched = 1500, .turn_ends = {}, .size = {102400, 1000}})
          .empty());
}

TEST(PlanPrompt, TinyPromptsAreNotWorthACheckpoint) {
  EXPECT_TRUE(plan_prompt({.n_tokens = 15, .restored = 0, .matched = 0, .turn_ends = {}, .size = {100, 10}}).empty());
  EXPECT_TRUE(plan_prompt({.n_tokens = 0, .restored = 0, .matched = 0, .turn_ends = {}, .size = {100, 10}}).empty());
}

// llama.cpp#25019: a checkpoint each 1k tokens, the last 8 kept, covers 3.8 % of a context of 138k. Here they lie over
// all of it, and the newest turns have theirs.
TEST(PlanPrompt, ALongAgentLogIsCoveredFromItsBeginning) {
  Offsets ends;
  for (int i = 1; i < 138; ++i) ends.push_back(1000 * i);
  const PromptPlan prompt = {
      .n_tokens = 137990, .restored = 0, .matched = 0, .turn_ends = ends, .size = {628 * kMiB / 10, 20 * 1024}};
  const int spacing = checkpoint_spacing(prompt.size);  // 12862
  const Offsets planned = offsets_of(plan_prompt(prompt, kNoTapers));
  int last = 0;
  for (const int offset : planned) {
    EXPECT_LE(offset - last, spacing);
    last = offset;
  }
  EXPECT_LT(planned.front(), 5000);
  EXPECT_EQ(planned[planned.size() - 3], 136000);
  EXPECT_EQ(planned[planned.size() - 2], 137000);
  EXPECT_EQ(planned.back(), 137986);
  EXPECT_LE(planned.size(), 138U / 4 + 4);  // turns at N / 4 = 3215 tokens, so every fourth
}

TEST(PlanPrompt, RefusesCountsOutOfOrder) {
  const StateSize size = {100, 10};
  EXPECT_THROW(plan_prompt({.n_tokens = 9, .restored = -1, .matched = 0, .turn_ends = {}, .size = size}),
               std::invalid_argument);
  EXPECT_THROW(plan_prompt({.n_tokens = 9, .restored = 5, .matched = 4, .turn_ends = {}, .size = size}),
               std::invalid_argument);
  EXPECT_THROW(plan_prompt({.n_tokens = 9, .restored = 5, .matched = 10, .turn_ends = {}, .size = size}),
               std::invalid_argument);
  EXPECT_THROW(plan_prompt({.n_tokens = 9, .restored = 0, .matched = 0, .turn_ends = {}, .size = size, .tail = -1}),
               std::invalid_argument);
}

// What the header promises, for random prompts.
TEST(PlanPrompt, PromisesHoldForAnyPrompt) {
  std::mt19937_64 random(20261128);
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  for (int i = 0; i < 5000; ++i) {
    PromptPlan prompt;
    prompt.n_tokens = 1 + below(6000);
    prompt.matched = below(3) == 0 ? 0 : below(prompt.n_tokens + 1);
    prompt.restored = below(prompt.matched + 1);
    Offsets ends;
    for (int n = below(30); n > 0; --n) ends.push_back(below(prompt.n_tokens + 10));
    std::sort(ends.begin(), ends.end());
    prompt.turn_ends = ends;
    if (below(2) == 0) prompt.tail = below(200);
    prompt.size = {1 + static_cast<std::size_t>(below(100000)), static_cast<std::size_t>(below(500))};
    const PolicyOptions options = {.share = 0.1 + below(10) / 10.0,
                                   .min_spacing = 1 + below(400),
                                   .close = below(30),
                                   .prompt_tail = below(6),
                                   .n_exact_turns = below(4),
                                   .tapers = below(2) == 0};
    SCOPED_TRACE("prompt " + std::to_string(i));
    const int spacing = checkpoint_spacing(prompt.size, options);
    const Plan plan = plan_prompt(prompt, options);

    int last = prompt.restored;
    std::size_t spaced_bytes = 0;
    for (const PlannedCheckpoint& checkpoint : plan) {
      ASSERT_GE(checkpoint.offset - last, std::max(1, options.close));
      ASSERT_LT(checkpoint.offset, prompt.n_tokens);
      last = checkpoint.offset;
      if (checkpoint.rule == kSpacing) spaced_bytes += prompt.size.checkpoint_bytes;
    }
    const Offsets offsets = offsets_of(plan);
    // The nearest kept at or before an offset; what was restored counts.
    const auto floor_of = [&](int offset) {
      const auto above = std::upper_bound(offsets.begin(), offsets.end(), offset);
      return above == offsets.begin() ? prompt.restored : *(above - 1);
    };
    if (prompt.restored == 0 && prompt.size.row_bytes > 0) {
      const double rows = static_cast<double>(prompt.size.row_bytes) * prompt.n_tokens;
      ASSERT_LE(static_cast<double>(spaced_bytes), options.share * rows + 1e-6);
    }
    const int near = std::max(1, options.close);
    for (const auto& exact : {branch_point(prompt), before_prompt_end(prompt, options), at_tail(prompt, options)}) {
      const int offset = exact.value_or(prompt.restored);
      ASSERT_LT(offset - floor_of(offset), near);
    }
    const Offsets turns = turn_ends(prompt);
    for (std::size_t t = 0; t < turns.size(); ++t) {
      if (turns.size() - t <= static_cast<std::size_t>(options.n_exact_turns)) {
        ASSERT_LT(turns[t] - floor_of(turns[t]), near);
      }
    }
    // No divergence computes more than 2 N tokens anew: of two multiples of N in a row, each may be near a neighbour.
    last = prompt.restored;
    for (const int offset : offsets) {
      ASSERT_LE(offset - last, spacing + 2 * std::max(near, spacing / 2)) << offset;
      last = offset;
    }

    // Whatever the chunks, each checkpoint is captured once.
    Plan captured;
    for (int from = prompt.restored; from < prompt.n_tokens;) {
      const int to = std::min(prompt.n_tokens, from + 1 + below(700));
      const auto part = within(plan, from, to);
      captured.insert(captured.end(), part.begin(), part.end());
      from = to;
    }
    ASSERT_EQ(captured, plan);
  }
}

// ---- Answers

TEST(PlanAnswer, EveryNTokensBehindTheLast) {
  EXPECT_EQ(plan_answer(96, 100, 101, 256), Plan{});
  EXPECT_EQ(plan_answer(96, 351, 352, 256), (Plan{{352, kLongAnswer}}));
  EXPECT_EQ(plan_answer(96, 352, 353, 256), Plan{});
  EXPECT_EQ(plan_answer(96, 340, 900, 256), (Plan{{352, kLongAnswer}, {608, kLongAnswer}, {864, kLongAnswer}}));
  EXPECT_EQ(plan_answer(0, 0, 3, 1), (Plan{{1, kLongAnswer}, {2, kLongAnswer}, {3, kLongAnswer}}));
  EXPECT_THROW(plan_answer(0, 0, 1, 0), std::invalid_argument);
}

TEST(AnswerEndRule, AFewTokensAreNotWorthIt) {
  EXPECT_FALSE(keeps_answer_end(96, 111));
  EXPECT_TRUE(keeps_answer_end(96, 112));
  EXPECT_FALSE(keeps_answer_end(96, 96, {.close = 0}));
}

TEST(Within, TakesTheEndAndNotTheBeginning) {
  const Plan plan = {{10, kSpacing}, {20, kSpacing}, {30, kSpacing}};
  EXPECT_EQ(within(plan, 10, 20).size(), 1U);
  EXPECT_EQ(within(plan, 10, 20)[0].offset, 20);
  EXPECT_TRUE(within(plan, 20, 29).empty());
  EXPECT_EQ(within(plan, 0, 100).size(), 3U);
}

}  // namespace
}  // namespace memoir::prefix
