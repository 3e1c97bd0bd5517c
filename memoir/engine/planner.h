#pragma once

// Who runs next: which requests get a cache, which give theirs up, and how many tokens of each go into the next step.
// Numbers only: no tokens, no model, no clock of its own.
//
// A request has n_tokens known tokens (its prompt and what was generated), of which the first n_cached are in its
// cache; the rest is pending. It waits, without a cache, or runs. Smaller ids arrived earlier.
// A step, in this order:
//   1. Requests whose deadline has passed leave.
//   2. Caches are counted at the length they must reach: all tokens known. Where that passes the budget, running
//      requests are paged out and wait again: of the lowest priority the one that arrived last, and so on. One always
//      stays. No request is admitted in such a step.
//   3. A running request with one pending token, which is one that decodes, is in every step.
//   4. The others share prefill_tokens_per_step in their order, each taking what it can of what is left. A waiting
//      request that is reached is admitted, if there is a slot and room for its cache; from the first one without on,
//      none is: nothing overtakes a request that waits for room.
//   5. Requests that decode may get drafts (draft_shares.h): not more than the request can use, and not more than what
//      is left of the budget of bytes has room for. None in a step of an isolated request.
// The order: higher priority first; within a priority, smaller pending + aging_tokens * (steps counted at its arrival).
// So shorter prompts go first, but one with p pending tokens is overtaken only by those that arrive within
// p / aging_tokens steps after it. And so that a stream of high priorities starves nobody, every oldest_every-th step
// with prompts in it begins with the oldest of them, and every oldest_every-th admission takes the oldest that waits.
// tests/planner_test.cpp checks these bounds.
//
// A plan changes nothing that commit() doesn't confirm, except who runs and who waits. Threads: one at a time.

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "memoir/engine/cache_cost.h"
#include "memoir/engine/draft_shares.h"
#include "memoir/engine/service.h"

namespace memoir::engine {

struct PlannerOptions {
  int max_running = 16;               // >= 1
  int prefill_tokens_per_step = 256;  // >= 1
  CacheCost cost;
  std::optional<std::size_t> max_cache_bytes = std::nullopt;  // of all running requests; absent: no limit
  int oldest_every = 8;                                       // >= 1
  int aging_tokens = 64;                                      // >= 0
  int max_drafts = 0;                                         // of a request in a step, 0 to DraftLength::kMax
  bool adapts_drafts = true;                                  // as many as pay; else as many as there may be
};

struct StepPlan {
  struct Slice {
    RequestId id;
    int n_tokens;          // the next pending ones, >= 1
    bool completes_known;  // no token is pending behind it: its logits choose the next one
    int n_drafts = 0;      // so many guesses at most may be computed behind it
  };
  std::vector<RequestId> expired;    // forgotten
  std::vector<RequestId> paged_out;  // wait again; the caller drops their caches
  std::vector<Slice> slices;         // decoding requests first; each request once
};

class Planner {
 public:
  using Clock = std::chrono::steady_clock;

  struct NewRequest {
    RequestId id;
    int n_tokens;  // of the prompt, >= 1
    int priority = 0;
    std::optional<Clock::time_point> deadline = std::nullopt;
  };

  /// What an admitted request begins with.
  struct Restored {
    int n_cached;             // of its tokens, 0 <= n_cached < n_tokens
    std::size_t cache_bytes;  // that its cache takes now
  };

  /// Makes the cache of a request that is admitted, of at most max_cache_bytes for now. nullopt: it can't be made, and
  /// the request is forgotten. Must neither call the planner nor throw.
  using Admit = std::function<std::optional<Restored>(RequestId, std::size_t max_cache_bytes)>;

  /// Throws std::invalid_argument for an option out of its range.
  explicit Planner(PlannerOptions options);

  /// Throws std::invalid_argument if the id is known, n_tokens < 1 or the cache alone passes the budget.
  void add(const NewRequest& request);

  /// Forgets it, at any time, also between plan() and commit(). Returns false if it is unknown.
  bool remove(RequestId id);

  /// Plans a step. No slices: nothing is pending, or every admission failed.
  /// Throws std::invalid_argument if `admit` returns what Restored forbids.
  StepPlan plan(Clock::time_point now, const Admit& admit);

  /// The step was computed. Requests that were removed or paged out since are passed over.
  void commit(const StepPlan& plan);

  /// How long that took, for the choice of drafts: n_drafts of them made in drafting_s, and one pass over all.
  struct StepTimes {
    int n_drafts = 0;
    double drafting_s = 0;
    double pass_s = 0;
  };
  void observe(const StepPlan& plan, const StepTimes& times);

  // For one request; they throw std::invalid_argument if it is unknown.

  /// A token was chosen and is pending now. n_drafts: what it may use behind it, at most.
  void append_token(RequestId id, int n_drafts = 0);
  /// Behind what was committed n_drafted guesses were computed, n_judged of them judged, and the first n_accepted were
  /// right: known tokens now, and cached. Throws std::invalid_argument as DraftShares::observe, and if tokens are
  /// pending.
  void accept_drafts(RequestId id, int n_drafted, int n_judged, int n_accepted);
  /// What its cache really takes, where that may be more than the estimate.
  void set_cache_bytes(RequestId id, std::size_t n_bytes);
  /// Its cache holds its first n_cached tokens now, more than were computed. Throws std::invalid_argument unless it
  /// runs and n_cached() <= n_cached < its tokens.
  void move_ahead(RequestId id, int n_cached);
  /// Its cache is lost: it waits again.
  void page_out(RequestId id);
  /// It is computed in steps of its own until it has no pending token or leaves: after a step that failed, to find who
  /// is at fault.
  void isolate(RequestId id);

  bool contains(RequestId id) const { return requests_.contains(id); }
  int n_cached(RequestId id) const { return at(id).n_cached; }
  int n_pending(RequestId id) const { return at(id).pending(); }
  bool is_running(RequestId id) const { return at(id).is_running; }
  int n_running() const { return n_running_; }
  int n_waiting() const { return static_cast<int>(requests_.size()) - n_running_; }
  bool is_empty() const { return requests_.empty(); }

  /// Bytes that running requests are counted with.
  std::size_t counted_bytes() const;

  /// Throws std::logic_error naming the first invariant that doesn't hold; for tests.
  void check() const;

 private:
  struct Entry {
    RequestId id;
    int priority;
    std::optional<Clock::time_point> deadline;
    int n_tokens;
    int n_cached = 0;
    std::size_t cache_bytes = 0;  // as told
    bool is_running = false;
    bool is_isolated = false;
    int max_drafts = 0;            // behind its pending token
    long long arrival_credit = 0;  // aging_tokens * steps counted at its arrival

    int pending() const { return n_tokens - n_cached; }
    long long urgency() const { return pending() + arrival_credit; }
  };

  const Entry& at(RequestId id) const;
  Entry& at(RequestId id);
  std::size_t bytes_of(const Entry& entry) const;
  std::size_t room() const;
  void expire(Clock::time_point now, StepPlan& plan);
  void page_out_for_room(StepPlan& plan);
  void page_out(Entry& entry);
  bool fits(const Entry& entry, std::size_t room) const;
  bool admit(Entry& entry, const Admit& admit);
  bool plan_isolated(StepPlan& plan, const Admit& admit);
  Entry* oldest_waiting();
  bool is_turn_of_oldest_waiting() const { return admissions_ + 1 >= options_.oldest_every; }
  std::vector<Entry*> prompts_in_order(bool may_admit);
  void plan_prompts(StepPlan& plan, const Admit& admit);
  void plan_drafts(StepPlan& plan);
  static void add_slice(StepPlan& plan, const Entry& entry, int n_tokens);

  PlannerOptions options_;
  DraftShares shares_;
  std::map<RequestId, Entry> requests_;
  int n_running_ = 0;
  long long n_steps_ = 0;
  int prompt_steps_ = 0;  // since one began with the oldest
  int admissions_ = 0;    // since one took the oldest
};

}  // namespace memoir::engine
