#include "memoir/prefix/tail_habit.h"

#include <algorithm>

namespace memoir::prefix {
namespace {

const Node* youngest_child(const Node& node) {
  const Node* youngest = nullptr;
  for (const auto& [key, child] : node.children()) {
    if (youngest == nullptr || child->id() > youngest->id()) youngest = child.get();
  }
  return youngest;
}

// The edge that ends with the last checkpoint of the prompt that was left: the rest of the last edge of the match, or
// what comes next; checkpoints of this habit and tapered ones may lie between. Null if there is none.
const Node* left_edge(const Match& match) {
  const Node* edge = match.path.back();
  if (match.matched == edge->to()) edge = youngest_child(*edge);
  const auto lies_between = [](const Node& node) {
    return node.has_checkpoint_of(CheckpointRule::kTail) || node.has_checkpoint_of(CheckpointRule::kTaper);
  };
  while (edge != nullptr && lies_between(*edge)) edge = youngest_child(*edge);
  const bool is_end = edge != nullptr && edge->has_checkpoint_of(CheckpointRule::kPromptEnd);
  return is_end ? edge : nullptr;
}

}  // namespace

void TailHabit::saw(const Match& match, int n_tokens, int close) {
  if (match.path.empty() || match.matched >= n_tokens) return;
  const Node* const edge = left_edge(match);
  if (edge == nullptr) return;
  const Node& used = *match.restorable.node;
  const bool is_by_habit = used.has_checkpoint_of(CheckpointRule::kTail);
  if (match.matched - match.restorable.offset < std::max(1, close) && !is_by_habit) return;
  const bool is_known =
      std::any_of(seen_.begin(), seen_.end(), [&](const Seen& one) { return one.node == edge->id(); });
  if (is_known) return;
  if (seen_.size() == kSeen) seen_.erase(seen_.begin());
  seen_.push_back({edge->id(), edge->to() - match.matched});
}

std::optional<int> TailHabit::tail(int close) const {
  std::vector<int> tails;
  for (const Seen& one : seen_) tails.push_back(one.tail);
  std::sort(tails.begin(), tails.end());
  std::optional<int> result;
  std::ptrdiff_t most = 1;
  for (auto last = tails.begin(); last != tails.end(); ++last) {
    const auto first = std::lower_bound(tails.begin(), last, *last - close);
    const std::ptrdiff_t n = last - first + 1;
    if (n <= most) continue;
    most = n;
    result = *last;
  }
  return result;
}

}  // namespace memoir::prefix
