#include "benches/prefix_sim/rules.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "memoir/prefix/tail_habit.h"

namespace memoir::prefix_sim {
namespace {

using prefix::CheckpointRule;
using prefix::Node;
using prefix::PlannedCheckpoint;
using prefix::Trie;
using Plan = std::vector<PlannedCheckpoint>;

// ---- memoir

class MemoirRules : public Rules {
 public:
  explicit MemoirRules(const Model& model, bool tapers = true)
      : policy_{.tapers = tapers},
        spacing_(prefix::checkpoint_spacing(model.state_size())),
        eviction_({.needs = model.needs(), .cost = model.cost}) {}

  void used(const prefix::Match& match, const Trie&, int n_tokens) override {
    habit_.saw(match, n_tokens, policy_.close);
  }

  Plan plan(const prefix::PromptPlan& prompt) const override {
    prefix::PromptPlan with_tail = prompt;
    with_tail.tail = habit_.tail(policy_.close);
    return prefix::plan_prompt(with_tail, policy_);
  }

  Plan plan_answer(int last, int n_prompt, int to) const override {
    Plan plan = prefix::plan_answer(last, n_prompt, to, spacing_);
    if (!plan.empty()) last = plan.back().offset;
    if (prefix::keeps_answer_end(last, to)) plan.push_back({to, CheckpointRule::kAnswerEnd});
    return plan;
  }

  bool has_room(CheckpointRule rule, const prefix::CheckpointRoom& room) const override {
    return prefix::has_room_for(rule, room);
  }

  bool make_room(Trie& trie, std::size_t budget, std::size_t n_bytes, const prefix::Newcomer* newcomer) override {
    return newcomer != nullptr ? eviction_.make_room(trie, budget, n_bytes, *newcomer)
                               : eviction_.make_room(trie, budget, n_bytes);
  }

  void kept(Trie& trie, const Node& node, std::size_t n_bytes, std::size_t budget) override {
    eviction_.grew(trie, node, n_bytes, budget);
  }

 private:
  prefix::PolicyOptions policy_;
  int spacing_;
  prefix::TailHabit habit_;
  prefix::Eviction eviction_;
};

// ---- What goes by age

// Drops the oldest of what `rank` names until the trie is small enough; of two of one age the deeper.
// drop(node, n_bytes): drops the node, or as much of it as frees n_bytes.
template <class Rank, class Drop>
bool drop_oldest(Trie& trie, std::size_t target, const Rank& rank, const Drop& drop) {
  std::set<std::tuple<std::uint64_t, int, Node*>> order;
  const auto add = [&](Node& node) {
    if (node.is_root() || node.n_pins() > 0) return;
    if (const std::optional<std::uint64_t> age = rank(node)) order.insert({*age, -node.to(), &node});
  };
  while (trie.size_bytes() > target) {  // again where joining made something new
    trie.visit(add);
    if (order.empty()) return false;
    while (trie.size_bytes() > target && !order.empty()) {
      Node* const node = std::get<Node*>(*order.begin());
      Node* const parent = node->parent();
      order.erase(order.begin());
      drop(*node, trie.size_bytes() - target);
      add(*parent);  // that may be a leaf now
    }
    trie.join_chains();
    order.clear();
  }
  return true;
}

// Least recently used, what lies above a hit being used too. A leaf is cut from its end in whole units, if no
// checkpoint is needed at it.
class Lru {
 public:
  Lru(const Model& model, int unit) : model_(model), unit_(unit) {}

  void used(const prefix::Match& match, std::uint64_t now) {
    for (const Node* const node : match.path) {
      if (node->from() < match.restorable.offset) touched_[node->id()] = now;
    }
  }

  bool make_room(Trie& trie, std::size_t target) {
    const auto rank = [this](const Node& node) -> std::optional<std::uint64_t> {
      if (!node.is_leaf() && node.checkpoint() == nullptr) return std::nullopt;
      const auto touched = touched_.find(node.id());
      return std::max(node.last_use(), touched != touched_.end() ? touched->second : 0);
    };
    return drop_oldest(trie, target, rank, [&](Node& node, std::size_t n_bytes) { drop(trie, node, n_bytes); });
  }

 private:
  void drop(Trie& trie, Node& node, std::size_t n_bytes) {
    if (!node.is_leaf()) {
      trie.drop_checkpoint(node, prefix::Join::kLater);
      return;
    }
    const auto n_rows = static_cast<int>(std::min<std::size_t>(n_bytes / (model_.row_bytes + sizeof(prefix::Key)) + 1,
                                                               static_cast<std::size_t>(node.n_keys())));
    const int cut = (node.to() - n_rows) / unit_ * unit_;
    const bool is_cut = !model_.needs().checkpoint && trie.trim(node, cut, prefix::Join::kLater);
    if (!is_cut) trie.remove(node, prefix::Join::kLater);
  }

  Model model_;
  int unit_;
  std::unordered_map<std::uint64_t, std::uint64_t> touched_;  // by a node's id: the trie's number of the event
};

class LruRules final : public MemoirRules {
 public:
  explicit LruRules(const Model& model) : MemoirRules(model, false), lru_(model, 1) {}

  void used(const prefix::Match& match, const Trie& trie, int n_tokens) override {
    MemoirRules::used(match, trie, n_tokens);
    lru_.used(match, trie.n_uses());
  }

  bool make_room(Trie& trie, std::size_t budget, std::size_t n_bytes, const prefix::Newcomer*) override {
    return n_bytes <= budget && lru_.make_room(trie, budget - n_bytes);
  }

 private:
  Lru lru_;
};

// ---- ollama

class FixedRules final : public Rules {
 public:
  Plan plan(const prefix::PromptPlan& prompt) const override {
    if (prompt.size.checkpoint_bytes == 0) return {};
    Plan plan;
    for (const int offset : prefix::spaced(prompt.restored, prompt.n_tokens, kSpacing)) {
      plan.push_back({offset, CheckpointRule::kSpacing});
    }
    if (const auto branch = prefix::branch_point(prompt)) plan.push_back({*branch, CheckpointRule::kBranch});
    if (const auto end = prefix::before_prompt_end(prompt)) plan.push_back({*end, CheckpointRule::kPromptEnd});
    return prefix::merge_close(std::move(plan), prompt.restored, 1);
  }

  Plan plan_answer(int last, int, int to) const override {
    return to > last ? Plan{{to, CheckpointRule::kAnswerEnd}} : Plan{};
  }

  bool make_room(Trie& trie, std::size_t budget, std::size_t n_bytes, const prefix::Newcomer*) override {
    if (n_bytes > budget) return false;
    const auto rank = [](const Node& node) -> std::optional<std::uint64_t> {
      const bool may_go = node.is_leaf() || (node.children().size() == 1 && node.checkpoint() != nullptr);
      return may_go ? std::optional(node.last_use()) : std::nullopt;
    };
    const auto drop = [&](Node& node, std::size_t) {
      if (node.is_leaf()) {
        trie.remove(node, prefix::Join::kLater);
      } else {
        trie.drop_checkpoint(node, prefix::Join::kLater);
      }
    };
    return drop_oldest(trie, budget - n_bytes, rank, drop);
  }

 private:
  static constexpr int kSpacing = 8192;
};

// ---- vLLM

class BlockRules final : public Rules {
 public:
  explicit BlockRules(const Model& model) : unit_(model.needs().checkpoint ? 528 : 16), lru_(model, unit_) {}

  int unit() const override { return unit_; }

  Plan plan(const prefix::PromptPlan& prompt) const override {
    if (prompt.size.checkpoint_bytes == 0) return {};
    Plan plan;
    const auto add = [&](int offset, CheckpointRule rule) {
      const int end = offset / unit_ * unit_;
      if (end > prompt.restored && end < prompt.n_tokens) plan.push_back({end, rule});
    };
    if (const auto branch = prefix::branch_point(prompt)) add(*branch, CheckpointRule::kBranch);
    add(prompt.n_tokens - 1, CheckpointRule::kPromptEnd);
    return prefix::merge_close(std::move(plan), prompt.restored, 1);
  }

  Plan plan_answer(int last, int, int to) const override {
    const int end = to / unit_ * unit_;
    return end > last ? Plan{{end, CheckpointRule::kAnswerEnd}} : Plan{};
  }

  void used(const prefix::Match& match, const Trie& trie, int) override { lru_.used(match, trie.n_uses()); }

  bool make_room(Trie& trie, std::size_t budget, std::size_t n_bytes, const prefix::Newcomer*) override {
    return n_bytes <= budget && lru_.make_room(trie, budget - n_bytes);
  }

 private:
  int unit_;
  Lru lru_;
};

}  // namespace

std::unique_ptr<Rules> make_rules(Scheme scheme, const Model& model) {
  switch (scheme) {
    case Scheme::kMemoir:
      return std::make_unique<MemoirRules>(model);
    case Scheme::kLru:
      return std::make_unique<LruRules>(model);
    case Scheme::kFixed:
      return std::make_unique<FixedRules>();
    case Scheme::kBlocks:
      return std::make_unique<BlockRules>(model);
  }
  throw std::invalid_argument("[prefix_sim.make_rules] no such scheme");
}

}  // namespace memoir::prefix_sim
