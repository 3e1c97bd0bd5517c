#include "memoir/prefix/policy.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <iterator>
#include <stdexcept>

namespace memoir::prefix {
namespace {

bool by_offset(const PlannedCheckpoint& a, const PlannedCheckpoint& b) {
  return a.offset != b.offset ? a.offset < b.offset : a.rule < b.rule;
}

// Adds those that keep `distance` from `restored` and from all that are planned, themselves included.
void add_apart(std::vector<PlannedCheckpoint>& planned, std::span<const int> offsets, CheckpointRule rule, int restored,
               int distance) {
  std::vector<PlannedCheckpoint> merged;
  auto next = planned.begin();
  int last = restored;
  for (const int offset : offsets) {
    for (; next != planned.end() && next->offset <= offset; ++next) {
      merged.push_back(*next);
      last = next->offset;
    }
    const bool is_near_next = next != planned.end() && next->offset - offset < distance;
    if (offset - last < distance || is_near_next) continue;
    merged.push_back({offset, rule});
    last = offset;
  }
  merged.insert(merged.end(), next, planned.end());
  planned = std::move(merged);
}

void check_prompt(const PromptPlan& prompt) {
  if (prompt.restored < 0 || prompt.matched < prompt.restored || prompt.n_tokens < prompt.matched ||
      prompt.tail.value_or(0) < 0) {
    throw std::invalid_argument("[prefix.plan_prompt] expected 0 <= restored <= matched <= n_tokens, and 0 <= tail");
  }
}

}  // namespace

int checkpoint_spacing(const StateSize& size, const PolicyOptions& options) {
  if (!(options.share > 0) || options.min_spacing < 1 || options.rowless_spacing < 1 || options.close < 0 ||
      options.prompt_tail < 0 || options.n_exact_turns < 0) {
    throw std::invalid_argument("[prefix.checkpoint_spacing] an option is out of its range");
  }
  if (size.row_bytes == 0) return options.rowless_spacing;
  const double n =
      std::ceil(static_cast<double>(size.checkpoint_bytes) / (options.share * static_cast<double>(size.row_bytes)));
  return n < INT_MAX / 2 ? std::max(options.min_spacing, static_cast<int>(n)) : INT_MAX / 2;
}

std::optional<int> branch_point(const PromptPlan& prompt) {
  const bool is_inside = prompt.matched > prompt.restored && prompt.matched < prompt.n_tokens;
  return is_inside ? std::optional(prompt.matched) : std::nullopt;
}

std::optional<int> before_prompt_end(const PromptPlan& prompt, const PolicyOptions& options) {
  const int offset = prompt.n_tokens - std::max(1, options.prompt_tail);
  return offset > prompt.restored ? std::optional(offset) : std::nullopt;
}

std::optional<int> at_tail(const PromptPlan& prompt, const PolicyOptions& options) {
  if (!prompt.tail) return std::nullopt;
  const int offset = prompt.n_tokens - std::max(1, options.prompt_tail) - *prompt.tail;
  return offset > prompt.restored ? std::optional(offset) : std::nullopt;
}

std::vector<int> turn_ends(const PromptPlan& prompt) {
  std::vector<int> inside;
  std::copy_if(prompt.turn_ends.begin(), prompt.turn_ends.end(), std::back_inserter(inside),
               [&](int offset) { return offset > prompt.restored && offset < prompt.n_tokens; });
  return inside;
}

std::vector<int> spaced(int from, int to, int spacing) {
  std::vector<int> offsets;
  for (long long offset = (static_cast<long long>(from) / spacing + 1) * spacing; offset < to; offset += spacing) {
    offsets.push_back(static_cast<int>(offset));
  }
  return offsets;
}

std::vector<int> tapered(const PromptPlan& prompt, const PolicyOptions& options) {
  constexpr double kPart = 0.11;  // a tenth, and some tokens that a template puts before it
  std::vector<int> offsets;
  for (double part = 8 * kPart;; part /= 2) {
    const int distance = static_cast<int>(part * prompt.n_tokens);
    if (distance < std::max(1, options.min_taper)) break;
    if (prompt.n_tokens - distance > prompt.restored) offsets.push_back(prompt.n_tokens - distance);
  }
  return offsets;
}

std::vector<PlannedCheckpoint> merge_close(std::vector<PlannedCheckpoint> planned, int restored, int close) {
  std::sort(planned.begin(), planned.end(), by_offset);
  std::vector<PlannedCheckpoint> kept;
  int last = restored;
  for (const PlannedCheckpoint& checkpoint : planned) {
    if (checkpoint.offset - last < std::max(1, close)) continue;
    kept.push_back(checkpoint);
    last = checkpoint.offset;
  }
  return kept;
}

std::vector<PlannedCheckpoint> plan_prompt(const PromptPlan& prompt, const PolicyOptions& options) {
  check_prompt(prompt);
  const int spacing = checkpoint_spacing(prompt.size, options);
  if (prompt.size.checkpoint_bytes == 0) return {};

  std::vector<PlannedCheckpoint> planned;
  if (const auto offset = branch_point(prompt)) planned.push_back({*offset, CheckpointRule::kBranch});
  const std::vector<int> turns = turn_ends(prompt);
  const std::size_t n_exact = std::min(turns.size(), static_cast<std::size_t>(options.n_exact_turns));
  const auto exact = turns.end() - static_cast<std::ptrdiff_t>(n_exact);
  for (auto turn = exact; turn != turns.end(); ++turn) planned.push_back({*turn, CheckpointRule::kTurnEnd});
  if (const auto offset = at_tail(prompt, options)) planned.push_back({*offset, CheckpointRule::kTail});
  if (const auto offset = before_prompt_end(prompt, options)) planned.push_back({*offset, CheckpointRule::kPromptEnd});
  planned = merge_close(std::move(planned), prompt.restored, options.close);

  const int near = std::max(1, options.close);
  add_apart(planned, {turns.begin(), exact}, CheckpointRule::kTurnEnd, prompt.restored, std::max(near, spacing / 4));
  add_apart(planned, spaced(prompt.restored, prompt.n_tokens, spacing), CheckpointRule::kSpacing, prompt.restored,
            std::max(near, spacing / 2));
  if (options.tapers) {
    add_apart(planned, tapered(prompt, options), CheckpointRule::kTaper, prompt.restored,
              std::max(near, options.min_taper));
  }
  return planned;
}

bool has_room_for(CheckpointRule rule, const CheckpointRoom& room) {
  const std::size_t n_to_come = 2 * room.n_checkpoint + room.n_rest;
  const bool leaves_room = room.n_pinned <= room.max_bytes && n_to_come <= room.max_bytes - room.n_pinned;
  switch (rule) {
    case CheckpointRule::kTaper:
      return leaves_room && room.n_held <= room.max_bytes / 2;
    case CheckpointRule::kSpacing:
    case CheckpointRule::kLongAnswer:
    case CheckpointRule::kTurnEnd:
      return leaves_room;
    default:
      return true;
  }
}

std::vector<PlannedCheckpoint> plan_answer(int last_checkpoint, int from, int to, int spacing) {
  if (spacing < 1) throw std::invalid_argument("[prefix.plan_answer] spacing must be at least 1");
  std::vector<PlannedCheckpoint> planned;
  const long long n_before = std::max(0, from - last_checkpoint) / spacing;
  for (long long offset = last_checkpoint + (n_before + 1) * spacing; offset <= to; offset += spacing) {
    planned.push_back({static_cast<int>(offset), CheckpointRule::kLongAnswer});
  }
  return planned;
}

bool keeps_answer_end(int last_checkpoint, int offset, const PolicyOptions& options) {
  return offset - last_checkpoint >= std::max(1, options.close);
}

std::span<const PlannedCheckpoint> within(std::span<const PlannedCheckpoint> plan, int from, int to) {
  const auto begin = std::find_if(plan.begin(), plan.end(), [from](const auto& p) { return p.offset > from; });
  const auto end = std::find_if(begin, plan.end(), [to](const auto& p) { return p.offset > to; });
  return {begin, end};
}

}  // namespace memoir::prefix
