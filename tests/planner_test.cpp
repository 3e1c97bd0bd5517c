// The planner alone: numbers in, numbers out. Expected plans follow from the rules at the top of planner.h.

#include "memoir/engine/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>

namespace memoir::engine {
namespace {

using Clock = Planner::Clock;
using Slices = std::vector<std::pair<RequestId, int>>;

std::optional<Planner::Restored> empty_cache(RequestId, std::size_t) {
  return Planner::Restored{0, 0};
}

Slices slices_of(const StepPlan& plan) {
  Slices slices;
  for (const StepPlan::Slice& slice : plan.slices) slices.emplace_back(slice.id, slice.n_tokens);
  return slices;
}

PlannerOptions options(int max_running, int budget) {
  PlannerOptions result;
  result.max_running = max_running;
  result.prefill_tokens_per_step = budget;
  return result;
}

// Plans and commits a step; each request whose logits are there gets a token.
StepPlan step(Planner& planner, Clock::time_point now = {}) {
  StepPlan plan = planner.plan(now, empty_cache);
  planner.commit(plan);
  for (const StepPlan::Slice& slice : plan.slices) {
    if (slice.completes_known) planner.append_token(slice.id);
  }
  planner.check();
  return plan;
}

TEST(CacheCost, CountsWholeStepsAndBack) {
  const CacheCost cost{100, 10, 256};
  EXPECT_EQ(cost.bytes(0), 100U);
  EXPECT_EQ(cost.bytes(1), 100U + 2560U);
  EXPECT_EQ(cost.bytes(256), 100U + 2560U);
  EXPECT_EQ(cost.bytes(257), 100U + 5120U);
  EXPECT_EQ(cost.tokens_within(99), 0);
  EXPECT_EQ(cost.tokens_within(2659), 0);
  EXPECT_EQ(cost.tokens_within(2660), 256);
  EXPECT_EQ(cost.tokens_within(5220), 512);
  for (const std::size_t n_bytes : {std::size_t{0}, std::size_t{3000}, std::numeric_limits<std::size_t>::max()}) {
    const int n_tokens = cost.tokens_within(n_bytes);
    EXPECT_TRUE(n_tokens == 0 || cost.bytes(n_tokens) <= n_bytes);
  }
}

TEST(CacheCost, WhatCannotBeCountedIsTheLargestNumber) {
  const CacheCost cost{1, std::numeric_limits<std::size_t>::max() / 4, 1};
  EXPECT_EQ(cost.bytes(5), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ((CacheCost{7, 0, 1}.tokens_within(7)), std::numeric_limits<int>::max());
}

TEST(Planner, AShortPromptGoesFirstAndBothShareTheBudget) {
  Planner planner(options(4, 100));
  planner.add({1, 300});
  planner.add({2, 30});
  EXPECT_EQ(slices_of(step(planner)), (Slices{{2, 30}, {1, 70}}));
  EXPECT_EQ(slices_of(step(planner)), (Slices{{2, 1}, {1, 100}}));  // 2 decodes, beside the budget
}

TEST(Planner, AHigherPriorityGoesBeforeAShorterPrompt) {
  Planner planner(options(4, 100));
  planner.add({1, 30});
  planner.add({2, 300, 1});
  EXPECT_EQ(slices_of(step(planner)), (Slices{{2, 100}}));
}

TEST(Planner, NobodyIsAdmittedWhomTheBudgetDoesNotReach) {
  Planner planner(options(4, 100));
  planner.add({1, 100});
  planner.add({2, 200});
  step(planner);
  EXPECT_EQ(planner.n_running(), 1);
  EXPECT_EQ(planner.n_waiting(), 1);
}

TEST(Planner, DecodingRequestsAreInEveryStep) {
  Planner planner(options(3, 10));
  planner.add({1, 5});
  planner.add({2, 5});
  step(planner);
  planner.add({3, 1000});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 1}, {2, 1}, {3, 10}}));
}

TEST(Planner, WaitsForASlot) {
  Planner planner(options(2, 100));
  for (const RequestId id : {1, 2, 3}) planner.add({id, 10});
  EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 10}, {2, 10}}));
  EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 1}, {2, 1}}));
  EXPECT_TRUE(planner.remove(1));
  EXPECT_EQ(slices_of(step(planner)), (Slices{{2, 1}, {3, 10}}));
}

TEST(Planner, CachedTokensAreNotComputed) {
  Planner planner(options(2, 100));
  planner.add({1, 90});
  planner.add({2, 90});
  const StepPlan plan = planner.plan({}, [](RequestId id, std::size_t) {
    return Planner::Restored{id == 1 ? 50 : 89, 0};
  });
  EXPECT_EQ(slices_of(plan), (Slices{{1, 40}, {2, 1}}));
  EXPECT_TRUE(plan.slices[0].completes_known);
}

TEST(Planner, ARequestThatWasMovedAheadComputesTheRest) {
  Planner planner(options(2, 100));
  planner.add({1, 250});
  EXPECT_THROW(planner.move_ahead(1, 10), std::invalid_argument);  // it has no cache
  EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 100}}));
  planner.move_ahead(1, 180);
  EXPECT_EQ(planner.n_pending(1), 70);
  EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 70}}));
  EXPECT_THROW(planner.move_ahead(1, 249), std::invalid_argument);
  EXPECT_THROW(planner.move_ahead(1, 251), std::invalid_argument);
}

TEST(Planner, ARequestThatCannotBeStartedIsForgotten) {
  Planner planner(options(2, 100));
  planner.add({1, 10});
  planner.add({2, 10});
  const StepPlan plan = planner.plan({}, [](RequestId id, std::size_t) {
    return id == 1 ? std::nullopt : std::optional(Planner::Restored{0, 0});
  });
  EXPECT_EQ(slices_of(plan), (Slices{{2, 10}}));
  EXPECT_FALSE(planner.contains(1));
}

TEST(Planner, ADeadlineEndsWaitingAndRunningRequests) {
  const Clock::time_point start{};
  Planner planner(options(1, 100));
  planner.add({1, 10, 0, start + std::chrono::seconds(2)});
  planner.add({2, 10, 0, start + std::chrono::seconds(1)});
  planner.add({3, 10});
  EXPECT_EQ(slices_of(step(planner, start)), (Slices{{1, 10}}));
  StepPlan plan = step(planner, start + std::chrono::seconds(1));
  EXPECT_EQ(plan.expired, std::vector<RequestId>{2});
  EXPECT_EQ(slices_of(plan), (Slices{{1, 1}}));
  plan = step(planner, start + std::chrono::seconds(2));
  EXPECT_EQ(plan.expired, std::vector<RequestId>{1});
  EXPECT_EQ(slices_of(plan), (Slices{{3, 10}}));
}

PlannerOptions with_bytes(std::size_t max_bytes, int max_running = 8, int budget = 100) {
  PlannerOptions result = options(max_running, budget);
  result.cost = {0, 1, 10};
  result.max_cache_bytes = max_bytes;
  return result;
}

TEST(Planner, NothingOvertakesARequestThatWaitsForRoom) {
  Planner planner(with_bytes(100));
  planner.add({1, 60});
  step(planner);
  planner.add({2, 50, 1});  // has no room beside 1, which is counted with 70
  planner.add({3, 10});     // would have
  for (int i = 0; i < 5; ++i) EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 1}}));
  planner.remove(1);
  EXPECT_EQ(slices_of(step(planner)), (Slices{{2, 50}, {3, 10}}));
}

TEST(Planner, PagesOutTheLowestPriorityAndOfThoseTheLatest) {
  Planner planner(with_bytes(40));
  planner.add({1, 9, 0});
  planner.add({2, 9, 1});
  planner.add({3, 9, 0});
  planner.add({4, 9, 1});
  step(planner);  // each has 10 known now
  ASSERT_EQ(planner.n_running(), 4);
  StepPlan plan = step(planner);  // decodes the tenth: 11 known
  EXPECT_TRUE(plan.paged_out.empty());
  plan = step(planner);  // 4 x 20 bytes: two must go
  EXPECT_EQ(plan.paged_out, (std::vector<RequestId>{3, 1}));
  EXPECT_EQ(slices_of(plan), (Slices{{2, 1}, {4, 1}}));
  EXPECT_EQ(planner.n_cached(1), 0);
  planner.remove(2);
  plan = step(planner);
  EXPECT_EQ(slices_of(plan), (Slices{{4, 1}, {1, 11}}));  // goes on with all that it knew
}

TEST(Planner, OneAlwaysStays) {
  Planner planner(with_bytes(20));
  planner.add({1, 5});
  step(planner);
  planner.set_cache_bytes(1, 1000);  // more than its estimate
  const StepPlan plan = step(planner);
  EXPECT_TRUE(plan.paged_out.empty());
  EXPECT_EQ(slices_of(plan), (Slices{{1, 1}}));
}

TEST(Planner, RefusesWhatCanNeverRun) {
  Planner planner(with_bytes(100));
  EXPECT_THROW(planner.add({1, 101}), std::invalid_argument);
  EXPECT_THROW(planner.add({1, 0}), std::invalid_argument);
  planner.add({1, 100});
  EXPECT_THROW(planner.add({1, 100}), std::invalid_argument);
  EXPECT_THROW(planner.append_token(2), std::invalid_argument);
  EXPECT_FALSE(planner.remove(2));
  EXPECT_THROW(Planner(options(0, 1)), std::invalid_argument);
  EXPECT_THROW(Planner(options(1, 0)), std::invalid_argument);
}

TEST(Planner, AnIsolatedRequestRunsAloneUntilItsPromptIsComputed) {
  Planner planner(options(4, 10));
  planner.add({1, 5});
  planner.add({2, 5});
  step(planner);
  planner.isolate(1);
  planner.isolate(2);
  planner.page_out(2);
  EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 1}}));
  EXPECT_EQ(slices_of(step(planner)), (Slices{{2, 6}}));
  EXPECT_EQ(slices_of(step(planner)), (Slices{{1, 1}, {2, 1}}));
}

TEST(Planner, ARequestRemovedBetweenPlanAndCommitIsPassedOver) {
  Planner planner(options(4, 100));
  planner.add({1, 5});
  planner.add({2, 5});
  const StepPlan plan = planner.plan({}, empty_cache);
  planner.remove(1);
  planner.commit(plan);
  planner.check();
  EXPECT_EQ(planner.n_cached(2), 5);
}

// One long prompt against a stream of short ones of its own priority: p / aging_tokens steps, and the budget is its.
TEST(Planner, ALongPromptIsOvertakenForABoundedTime) {
  PlannerOptions slow = options(64, 100);
  slow.oldest_every = 1 << 30;  // by aging alone
  slow.aging_tokens = 50;
  Planner planner(slow);
  planner.add({1, 1000});
  int n_steps = 0;
  for (RequestId id = 2; !planner.contains(1) || planner.n_cached(1) < 1000; ++id) {
    ASSERT_LT(++n_steps, 1000 / 50 + 1000 / 100 + 2);
    planner.add({id, 100});
    for (const auto& slice : step(planner).slices) {
      if (slice.id != 1 && slice.completes_known) planner.remove(slice.id);
    }
  }
}

// And against higher priorities: every oldest_every-th step is its.
TEST(Planner, ALowPriorityGetsItsTurn) {
  Planner planner(options(64, 100));
  planner.add({1, 1000});
  int n_steps = 0;
  for (RequestId id = 2; planner.n_cached(1) < 1000; ++id) {
    ASSERT_LE(++n_steps, 8 * 10);
    planner.add({id, 100, 5});
    for (const auto& slice : step(planner).slices) {
      if (slice.id != 1 && slice.completes_known) planner.remove(slice.id);
    }
  }
  EXPECT_GT(n_steps, 8 * 9);  // and no more than that
}

// Requests arrive, are computed, cancelled, expire and end at random; the rules are checked at every step.
class RandomPlans {
 public:
  explicit RandomPlans(std::uint64_t seed) : random_(seed), planner_(random_options()) {}

  void run() {
    for (int i = 0; i < 250; ++i) {
      const int n_arrivals = i < 150 ? number(0, 2) : 0;
      for (int k = 0; k < n_arrivals; ++k) arrive();
      if (!known_.empty() && number(0, 9) == 0) cancel();
      one_step();
    }
    for (int i = 0; !known_.empty(); ++i) {
      ASSERT_LT(i, 100'000) << "somebody starves";
      one_step();
    }
    EXPECT_TRUE(planner_.is_empty());
  }

 private:
  struct Known {
    int n_tokens;
    int priority;
    int n_left;  // tokens it will generate
    int n_cached = 0;
    bool is_running = false;
    std::optional<Clock::time_point> deadline = std::nullopt;
    int n_older_waiting = 0;
    int n_passed = 0;  // admissions of others while it waited for its first
    bool has_run = false;
  };

  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  PlannerOptions random_options() {
    options_ = options(number(1, 6), number(1, 64));
    options_.cost = {static_cast<std::size_t>(number(0, 5)), static_cast<std::size_t>(number(1, 3)), number(1, 16)};
    options_.oldest_every = number(1, 8);
    if (number(0, 1)) options_.max_cache_bytes = options_.cost.bytes(kMost) + static_cast<std::size_t>(number(0, 300));
    return options_;
  }

  void arrive() {
    Known known{number(1, kMost / 2), number(-1, 1), number(0, kMost / 2)};
    if (number(0, 9) == 0) known.deadline = now_ + std::chrono::seconds(number(0, 40));
    for (const auto& [id, other] : known_) known.n_older_waiting += other.is_running ? 0 : 1;
    known_.emplace(next_id_, known);
    planner_.add({next_id_++, known.n_tokens, known.priority, known.deadline});
  }

  void cancel() {
    auto place = known_.begin();
    std::advance(place, number(0, static_cast<int>(known_.size()) - 1));
    EXPECT_TRUE(planner_.remove(place->first));
    known_.erase(place);
  }

  std::optional<Planner::Restored> admit(RequestId id, std::size_t room) {
    Known& known = known_.at(id);  // a cancelled one would throw
    EXPECT_FALSE(known.is_running);
    EXPECT_LE(options_.cost.bytes(known.n_tokens), room);
    if (number(0, 19) == 0) {
      known_.erase(id);
      return std::nullopt;
    }
    known.is_running = true;
    known.n_cached = number(0, 3) == 0 ? number(0, known.n_tokens - 1) : 0;
    admitted_.push_back(id);
    return Planner::Restored{known.n_cached, 0};
  }

  void one_step() {
    now_ += std::chrono::seconds(1);
    admitted_.clear();
    const StepPlan plan = planner_.plan(now_, [this](RequestId id, std::size_t room) { return admit(id, room); });
    for (const RequestId id : plan.expired) {
      EXPECT_LE(known_.at(id).deadline, now_);
      known_.erase(id);
    }
    for (const RequestId id : plan.paged_out) {
      known_.at(id).is_running = false;
      known_.at(id).n_cached = 0;
    }
    check_tokens(plan);
    check_waiting();
    planner_.check();
    planner_.commit(plan);
    for (const StepPlan::Slice& slice : plan.slices) {
      Known& known = known_.at(slice.id);
      known.n_cached += slice.n_tokens;
      if (!slice.completes_known) continue;
      if (known.n_left-- == 0) {
        EXPECT_TRUE(planner_.remove(slice.id));
        known_.erase(slice.id);
      } else {
        ++known.n_tokens;
        planner_.append_token(slice.id);
      }
    }
    planner_.check();
  }

  void check_tokens(const StepPlan& plan) {
    std::set<RequestId> seen;
    int n_prompt_tokens = 0;
    std::size_t n_bytes = 0;
    int n_running = 0;
    for (const auto& [id, known] : known_) {
      EXPECT_FALSE(known.deadline && *known.deadline <= now_);
      if (!known.is_running) continue;
      ++n_running;
      n_bytes += options_.cost.bytes(known.n_tokens);
    }
    EXPECT_LE(n_running, options_.max_running);
    EXPECT_EQ(planner_.counted_bytes(), n_bytes);
    if (options_.max_cache_bytes) {
      EXPECT_LE(n_bytes, *options_.max_cache_bytes);
    }
    for (const StepPlan::Slice& slice : plan.slices) {
      const Known& known = known_.at(slice.id);
      EXPECT_TRUE(seen.insert(slice.id).second);
      EXPECT_TRUE(known.is_running);
      EXPECT_GE(slice.n_tokens, 1);
      EXPECT_LE(slice.n_tokens, known.n_tokens - known.n_cached);
      EXPECT_EQ(slice.completes_known, slice.n_tokens == known.n_tokens - known.n_cached);
      if (slice.n_tokens > 1) n_prompt_tokens += slice.n_tokens;
    }
    EXPECT_LE(n_prompt_tokens, options_.prefill_tokens_per_step);
    int n_deprived = 0;
    for (const auto& [id, known] : known_) {
      if (!known.is_running || seen.contains(id)) continue;
      EXPECT_GT(known.n_tokens - known.n_cached, 1) << "did not decode";
      // It got nothing although lower priorities did: only on a turn of the oldest, which is then one of them, or of
      // the oldest that waits.
      const auto lower = [&](const StepPlan::Slice& slice) {
        const Known& other = known_.at(slice.id);
        const bool is_new = std::find(admitted_.begin(), admitted_.end(), slice.id) != admitted_.end();
        return other.n_tokens - other.n_cached > 1 && other.priority < known.priority && !is_new;
      };
      const auto n_lower = std::count_if(plan.slices.begin(), plan.slices.end(), lower);
      EXPECT_LE(n_lower, 1);
      n_deprived += n_lower > 0 ? 1 : 0;
    }
    if (n_deprived > 0) {
      EXPECT_GE(n_since_turn_ + 1, options_.oldest_every);
      n_since_turn_ = 0;
    } else {
      ++n_since_turn_;
    }
  }

  // With no bytes to wait for, whoever waits with k older ones is admitted after oldest_every * (k + 1) others at most.
  void check_waiting() {
    for (auto& [id, known] : known_) {
      if (known.has_run) continue;
      const bool is_admitted = std::find(admitted_.begin(), admitted_.end(), id) != admitted_.end();
      known.has_run = is_admitted;
      if (!is_admitted) known.n_passed += static_cast<int>(admitted_.size());
      if (options_.max_cache_bytes) continue;
      EXPECT_LE(known.n_passed, options_.oldest_every * (known.n_older_waiting + 1));
    }
  }

  static constexpr int kMost = 200;

  std::mt19937_64 random_;
  PlannerOptions options_;
  Planner planner_;
  std::map<RequestId, Known> known_;
  std::vector<RequestId> admitted_;
  RequestId next_id_ = 1;
  Clock::time_point now_{};
  int n_since_turn_ = 1 << 20;
};

TEST(Planner, KeepsItsRulesWithRandomRequests) {
  const std::uint64_t base = std::random_device{}();
  for (std::uint64_t i = 0; i < 60; ++i) {
    SCOPED_TRACE("seed " + std::to_string(base + i));
    RandomPlans(base + i).run();
    if (testing::Test::HasFailure()) FAIL() << "seed " << base + i;
  }
  std::printf("seeds %llu and the 59 after it\n", static_cast<unsigned long long>(base));
}

// ---- Drafts

PlannerOptions drafting(int max_drafts) {
  PlannerOptions result = options(4, 10);
  result.max_drafts = max_drafts;
  return result;
}

std::vector<int> drafts_of(const StepPlan& plan) {
  std::vector<int> drafts;
  for (const StepPlan::Slice& slice : plan.slices) drafts.push_back(slice.n_drafts);
  return drafts;
}

// Plans and commits a step on a machine whose passes all take 1; all drafts are made and right. Each request may use
// `limit` drafts behind its next token.
StepPlan drafting_step(Planner& planner, int limit) {
  StepPlan plan = planner.plan({}, empty_cache);
  planner.commit(plan);
  Planner::StepTimes times;
  for (const int n : drafts_of(plan)) times.n_drafts += n;
  times.pass_s = 1;
  planner.observe(plan, times);
  for (const StepPlan::Slice& slice : plan.slices) {
    if (!slice.completes_known) continue;
    if (slice.n_drafts > 0) planner.accept_drafts(slice.id, slice.n_drafts, slice.n_drafts, slice.n_drafts);
    planner.append_token(slice.id, limit);
  }
  planner.check();
  return plan;
}

TEST(PlannerDrafts, RequestsThatDecodeGetThemWithinTheirLimits) {
  Planner planner(drafting(3));
  planner.add({1, 5});
  planner.add({2, 4});
  EXPECT_EQ(drafts_of(drafting_step(planner, 9)), (std::vector<int>{0, 0}));  // prompts
  // Two passes until one is known.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(drafts_of(drafting_step(planner, 9)), (std::vector<int>{0, 0}));
  std::vector<int> last;
  for (int i = 0; i < 30; ++i) last = drafts_of(drafting_step(planner, 9));
  EXPECT_EQ(last, (std::vector<int>{3, 3}));
  drafting_step(planner, 2);
  EXPECT_EQ(drafts_of(drafting_step(planner, 1)), (std::vector<int>{2, 2}));
  EXPECT_EQ(drafts_of(drafting_step(planner, 0)), (std::vector<int>{1, 1}));
  EXPECT_EQ(drafts_of(drafting_step(planner, 9)), (std::vector<int>{0, 0}));
}

TEST(PlannerDrafts, ADraftThatIsRightIsAKnownTokenAndCached) {
  Planner planner(drafting(3));
  planner.add({1, 5});
  for (int i = 0; i < 3; ++i) drafting_step(planner, 9);
  EXPECT_EQ(planner.n_cached(1), 7);
  EXPECT_EQ(planner.n_pending(1), 1);
  const StepPlan plan = planner.plan({}, empty_cache);
  EXPECT_EQ(drafts_of(plan), (std::vector<int>{1}));
  EXPECT_THROW(planner.accept_drafts(1, 1, 1, 1), std::invalid_argument);  // before it is committed
  planner.commit(plan);
  EXPECT_THROW(planner.accept_drafts(1, 1, 1, 2), std::invalid_argument);
  planner.accept_drafts(1, 1, 1, 1);
  planner.append_token(1);
  EXPECT_EQ(planner.n_cached(1), 9);
  EXPECT_EQ(planner.n_pending(1), 1);
  planner.check();
}

TEST(PlannerDrafts, DraftsTakeOnlyTheRoomThatIsLeft) {
  PlannerOptions limited = drafting(8);
  limited.cost = {0, 1, 1};
  limited.max_cache_bytes = 60;
  Planner planner(limited);
  planner.add({1, 5});
  planner.add({2, 5});
  for (int i = 0; i < 40; ++i) {
    const StepPlan plan = drafting_step(planner, 100);
    EXPECT_LE(planner.counted_bytes(), 62U);  // a token each has come since
    if (!plan.paged_out.empty()) return;
  }
  FAIL() << "they never filled the budget";
}

TEST(PlannerDrafts, ARequestThatComesBackGetsNoneBeforeItDecodesAgain) {
  PlannerOptions narrow = drafting(3);
  narrow.prefill_tokens_per_step = 1;
  Planner planner(narrow);
  planner.add({1, 2});
  for (int i = 0; i < 5; ++i) drafting_step(planner, 9);
  planner.page_out(1);
  const int n_known = planner.n_pending(1);
  ASSERT_GT(n_known, 2);
  for (int i = 0; i + 1 < n_known; ++i) EXPECT_EQ(drafts_of(drafting_step(planner, 9)), (std::vector<int>{0}));
  EXPECT_GT(drafts_of(drafting_step(planner, 9)).at(0), 0);
}

TEST(PlannerDrafts, AnIsolatedRequestGetsNone) {
  Planner planner(drafting(3));
  planner.add({1, 5});
  for (int i = 0; i < 4; ++i) drafting_step(planner, 9);
  planner.isolate(1);
  EXPECT_EQ(drafts_of(drafting_step(planner, 9)), (std::vector<int>{0}));
  EXPECT_GT(drafts_of(drafting_step(planner, 9)).at(0), 0);
}

TEST(PlannerDrafts, TooManyAreRefused) {
  EXPECT_THROW(Planner(drafting(16)), std::invalid_argument);
  EXPECT_THROW(Planner(drafting(-1)), std::invalid_argument);
}

}  // namespace
}  // namespace memoir::engine
