#include "memoir/engine/planner.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace memoir::engine {
namespace {

constexpr std::size_t kMaxBytes = std::numeric_limits<std::size_t>::max();

void check_at_least(const char* name, long long value, long long least) {
  if (value >= least) return;
  throw std::invalid_argument(std::string("[engine.planner] ") + name + " is " + std::to_string(value) +
                              ", expected at least " + std::to_string(least));
}

std::size_t saturated_sum(std::size_t a, std::size_t b) {
  return b > kMaxBytes - a ? kMaxBytes : a + b;
}

}  // namespace

std::size_t CacheCost::bytes(int n_tokens) const {
  const auto step = static_cast<std::size_t>(step_tokens);
  const std::size_t n_rows = (static_cast<std::size_t>(n_tokens) + step - 1) / step * step;
  if (bytes_per_token > 0 && n_rows > (kMaxBytes - fixed_bytes) / bytes_per_token) return kMaxBytes;
  return fixed_bytes + n_rows * bytes_per_token;
}

int CacheCost::tokens_within(std::size_t n_bytes) const {
  const int most = std::numeric_limits<int>::max() / step_tokens;
  if (n_bytes < fixed_bytes) return 0;
  if (bytes_per_token == 0) return most * step_tokens;
  const std::size_t n_steps = (n_bytes - fixed_bytes) / bytes_per_token / static_cast<std::size_t>(step_tokens);
  return static_cast<int>(std::min(n_steps, static_cast<std::size_t>(most))) * step_tokens;
}

Planner::Planner(PlannerOptions options) : options_(options) {
  check_at_least("max_running", options_.max_running, 1);
  check_at_least("prefill_tokens_per_step", options_.prefill_tokens_per_step, 1);
  check_at_least("oldest_every", options_.oldest_every, 1);
  check_at_least("aging_tokens", options_.aging_tokens, 0);
  check_at_least("step_tokens", options_.cost.step_tokens, 1);
  check_at_least("max_drafts", options_.max_drafts, 0);
  if (options_.max_drafts > DraftLength::kMax) {
    throw std::invalid_argument("[engine.planner] max_drafts is " + std::to_string(options_.max_drafts) +
                                ", expected at most " + std::to_string(DraftLength::kMax));
  }
}

void Planner::add(const NewRequest& request) {
  check_at_least("n_tokens", request.n_tokens, 1);
  if (contains(request.id)) {
    throw std::invalid_argument("[engine.planner] request " + std::to_string(request.id) + " is known already");
  }
  const std::size_t n_bytes = options_.cost.bytes(request.n_tokens);
  if (options_.max_cache_bytes && n_bytes > *options_.max_cache_bytes) {
    throw std::invalid_argument("[engine.planner] the cache of " + std::to_string(request.n_tokens) + " tokens takes " +
                                std::to_string(n_bytes) + " bytes, more than the budget of " +
                                std::to_string(*options_.max_cache_bytes));
  }
  Entry entry{request.id, request.priority, request.deadline, request.n_tokens};
  entry.arrival_credit = n_steps_ * options_.aging_tokens;
  requests_.emplace(request.id, entry);
}

bool Planner::remove(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  if (found->second.is_running) --n_running_;
  shares_.forget(id);
  requests_.erase(found);
  return true;
}

const Planner::Entry& Planner::at(RequestId id) const {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    throw std::invalid_argument("[engine.planner] request " + std::to_string(id) + " is unknown");
  }
  return found->second;
}

Planner::Entry& Planner::at(RequestId id) {
  return const_cast<Entry&>(std::as_const(*this).at(id));
}

std::size_t Planner::bytes_of(const Entry& entry) const {
  return std::max(options_.cost.bytes(entry.n_tokens), entry.cache_bytes);
}

std::size_t Planner::counted_bytes() const {
  std::size_t n_bytes = 0;
  for (const auto& [id, entry] : requests_) {
    if (entry.is_running) n_bytes = saturated_sum(n_bytes, bytes_of(entry));
  }
  return n_bytes;
}

/// Bytes that may be taken beside the running requests.
std::size_t Planner::room() const {
  if (!options_.max_cache_bytes) return kMaxBytes;
  const std::size_t n_counted = counted_bytes();
  return n_counted > *options_.max_cache_bytes ? 0 : *options_.max_cache_bytes - n_counted;
}

StepPlan Planner::plan(Clock::time_point now, const Admit& admit) {
  StepPlan plan;
  ++n_steps_;
  expire(now, plan);
  page_out_for_room(plan);
  if (plan_isolated(plan, admit)) return plan;
  for (const auto& [id, entry] : requests_) {
    if (entry.is_running && entry.pending() == 1) add_slice(plan, entry, 1);
  }
  plan_prompts(plan, admit);
  plan_drafts(plan);
  return plan;
}

void Planner::expire(Clock::time_point now, StepPlan& plan) {
  for (const auto& [id, entry] : requests_) {
    if (entry.deadline && *entry.deadline <= now) plan.expired.push_back(id);
  }
  for (const RequestId id : plan.expired) remove(id);
}

void Planner::page_out_for_room(StepPlan& plan) {
  if (!options_.max_cache_bytes) return;
  while (n_running_ > 1 && counted_bytes() > *options_.max_cache_bytes) {
    Entry* last = nullptr;
    for (auto& [id, entry] : requests_) {
      // Ids ascend, so that of equal priorities the latest remains.
      if (entry.is_running && (!last || entry.priority <= last->priority)) last = &entry;
    }
    page_out(*last);
    plan.paged_out.push_back(last->id);
  }
}

void Planner::page_out(Entry& entry) {
  if (entry.is_running) --n_running_;
  entry.is_running = false;
  entry.n_cached = 0;
  entry.cache_bytes = 0;
}

bool Planner::fits(const Entry& entry, std::size_t room) const {
  return n_running_ < options_.max_running && bytes_of(entry) <= room;
}

/// Returns false if the request could not be started: it is gone then, and `entry` with it.
bool Planner::admit(Entry& entry, const Admit& admit) {
  const std::optional<Restored> restored = admit(entry.id, room());
  if (!restored) {
    shares_.forget(entry.id);
    requests_.erase(entry.id);
    return false;
  }
  if (restored->n_cached < 0 || restored->n_cached >= entry.n_tokens) {
    throw std::invalid_argument("[engine.planner] " + std::to_string(restored->n_cached) + " of " +
                                std::to_string(entry.n_tokens) + " tokens are cached, expected fewer");
  }
  entry.n_cached = restored->n_cached;
  entry.cache_bytes = restored->cache_bytes;
  entry.is_running = true;
  ++n_running_;
  return true;
}

bool Planner::plan_isolated(StepPlan& plan, const Admit& admit) {
  for (auto it = requests_.begin(); it != requests_.end();) {
    Entry& entry = it->second;
    ++it;  // admit() may erase the entry
    if (!entry.is_isolated || entry.pending() == 0) continue;
    if (!entry.is_running && (!plan.paged_out.empty() || !fits(entry, room()) || !this->admit(entry, admit))) continue;
    add_slice(plan, entry, std::min(entry.pending(), options_.prefill_tokens_per_step));
    return true;
  }
  return false;
}

Planner::Entry* Planner::oldest_waiting() {
  for (auto& [id, entry] : requests_) {
    if (!entry.is_running) return &entry;
  }
  return nullptr;
}

std::vector<Planner::Entry*> Planner::prompts_in_order(bool may_admit) {
  std::vector<Entry*> order;
  Entry* oldest = nullptr;  // of those that can get tokens; ids ascend
  const std::size_t n_free = room();
  for (auto& [id, entry] : requests_) {
    if (entry.is_running && entry.pending() <= 1) continue;
    order.push_back(&entry);
    if (!oldest && (entry.is_running || (may_admit && fits(entry, n_free)))) oldest = &entry;
  }
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return a->priority != b->priority ? a->priority > b->priority : a->urgency() < b->urgency();
  });
  const auto move_up = [&order](std::vector<Entry*>::iterator to, Entry* entry) {
    const auto from = std::find(to, order.end(), entry);
    std::rotate(to, from, from + 1);
  };
  if (Entry* const waiting = oldest_waiting(); waiting && is_turn_of_oldest_waiting()) {
    move_up(std::find_if(order.begin(), order.end(), [](const Entry* entry) { return !entry->is_running; }), waiting);
  }
  if (oldest && ++prompt_steps_ >= options_.oldest_every) {
    prompt_steps_ = 0;
    move_up(order.begin(), oldest);
  }
  return order;
}

void Planner::plan_prompts(StepPlan& plan, const Admit& admit) {
  int budget = options_.prefill_tokens_per_step;
  bool may_admit = plan.paged_out.empty();
  for (Entry* const entry : prompts_in_order(may_admit)) {
    if (budget == 0) break;
    if (!entry->is_running) {
      const bool is_oldest = entry == oldest_waiting();
      if (is_turn_of_oldest_waiting() && !is_oldest) continue;
      may_admit = may_admit && fits(*entry, room());
      if (!may_admit || !this->admit(*entry, admit)) continue;
      admissions_ = is_oldest ? 0 : admissions_ + 1;
    }
    const int n_tokens = std::min(entry->pending(), budget);
    add_slice(plan, *entry, n_tokens);
    budget -= n_tokens;
  }
}

void Planner::plan_drafts(StepPlan& plan) {
  if (options_.max_drafts == 0) return;
  std::vector<DraftShares::Wish> wishes;
  std::vector<StepPlan::Slice*> slices;
  int n_rows = 0;
  for (StepPlan::Slice& slice : plan.slices) {
    if (slice.n_tokens > 1) continue;
    ++n_rows;
    // What comes back without its cache has more than one token to compute.
    const int limit = slice.completes_known ? std::min(at(slice.id).max_drafts, options_.max_drafts) : 0;
    if (limit == 0) continue;
    wishes.push_back({slice.id, limit});
    slices.push_back(&slice);
  }
  if (wishes.empty()) return;
  std::vector<int> shares;
  if (options_.adapts_drafts) {
    shares = shares_.choose(wishes, n_rows);
  } else {
    for (const DraftShares::Wish& wish : wishes) shares.push_back(wish.limit);
  }
  std::size_t n_free = room();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Entry& entry = at(slices[i]->id);
    const auto more_bytes = [&](int n_drafts) {
      const std::size_t n_bytes = options_.cost.bytes(entry.n_tokens + n_drafts);
      return n_bytes - std::min(n_bytes, bytes_of(entry));
    };
    int n_drafts = shares[i];
    while (n_drafts > 0 && more_bytes(n_drafts) > n_free) --n_drafts;
    n_free -= more_bytes(n_drafts);
    slices[i]->n_drafts = n_drafts;
  }
}

void Planner::add_slice(StepPlan& plan, const Entry& entry, int n_tokens) {
  plan.slices.push_back({entry.id, n_tokens, n_tokens == entry.pending()});
}

void Planner::commit(const StepPlan& plan) {
  for (const StepPlan::Slice& slice : plan.slices) {
    const auto found = requests_.find(slice.id);
    if (found == requests_.end() || !found->second.is_running) continue;
    Entry& entry = found->second;
    entry.n_cached += slice.n_tokens;
    if (entry.pending() == 0) entry.is_isolated = false;
  }
}

void Planner::observe(const StepPlan& plan, const StepTimes& times) {
  const auto is_of_a_prompt = [](const StepPlan::Slice& slice) { return slice.n_tokens > 1; };
  if (options_.max_drafts == 0 || std::ranges::any_of(plan.slices, is_of_a_prompt)) return;
  const int n_rows = static_cast<int>(plan.slices.size()) + times.n_drafts;
  shares_.observe_step(n_rows, times.n_drafts, times.pass_s, times.drafting_s);
}

void Planner::append_token(RequestId id, int n_drafts) {
  Entry& entry = at(id);
  ++entry.n_tokens;
  entry.max_drafts = n_drafts;
}

void Planner::accept_drafts(RequestId id, int n_drafted, int n_judged, int n_accepted) {
  Entry& entry = at(id);
  if (entry.pending() > 0) {
    throw std::invalid_argument("[engine.planner] request " + std::to_string(id) + " has " +
                                std::to_string(entry.pending()) + " tokens pending, expected none before its drafts");
  }
  shares_.observe(id, n_drafted, n_judged, n_accepted);
  entry.n_tokens += n_accepted;
  entry.n_cached += n_accepted;
}

void Planner::set_cache_bytes(RequestId id, std::size_t n_bytes) {
  at(id).cache_bytes = n_bytes;
}

void Planner::move_ahead(RequestId id, int n_cached) {
  Entry& entry = at(id);
  if (!entry.is_running || n_cached < entry.n_cached || n_cached >= entry.n_tokens) {
    throw std::invalid_argument("[engine.planner] request " + std::to_string(id) + " can't move ahead from " +
                                std::to_string(entry.n_cached) + " to " + std::to_string(n_cached) + " of " +
                                std::to_string(entry.n_tokens) + " tokens");
  }
  entry.n_cached = n_cached;
}

void Planner::page_out(RequestId id) {
  page_out(at(id));
}

void Planner::isolate(RequestId id) {
  at(id).is_isolated = true;
}

void Planner::check() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("[engine.planner] ") + what);
  };
  int n_running = 0;
  for (const auto& [id, entry] : requests_) {
    require(id == entry.id, "an entry stands under another id");
    require(entry.n_cached >= 0 && entry.n_cached <= entry.n_tokens, "more tokens are cached than known");
    require(entry.is_running || (entry.n_cached == 0 && entry.cache_bytes == 0), "a waiting request has a cache");
    n_running += entry.is_running ? 1 : 0;
  }
  require(n_running == n_running_, "the number of running requests is wrong");
  require(n_running <= options_.max_running, "more requests run than may");
  require(admissions_ < options_.oldest_every, "the oldest waiting request missed its turn");
}

}  // namespace memoir::engine
