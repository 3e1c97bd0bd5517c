#include "benches/prefix_sim/replay.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "benches/prefix_sim/rules.h"

namespace memoir::prefix_sim {
namespace {

// One request after another over one trie: what the store does with a model's caches, done with sizes.
class Replay {
 public:
  Replay(const Model& model, const ReplayOptions& options)
      : model_(model), options_(options), rules_(make_rules(options.scheme, model)) {}

  void run(const Request& request) {
    const int n_prompt = static_cast<int>(request.prompt.size());
    const prefix::Match match = lookup(request.prompt);
    const int restored = match.restorable.offset;
    trie_.use(match, n_prompt);
    rules_->used(match, trie_, n_prompt);
    count(n_prompt, restored);
    const prefix::PromptPlan plan = {n_prompt, restored, std::clamp(match.matched, restored, n_prompt),
                                     request.turn_ends, model_.state_size()};
    pin_ = trie_.pin(match.restorable);
    compute(request, plan);
    pin_.release();
    score_.most_bytes = std::max(score_.most_bytes, trie_.size_bytes());
    if (trie_.size_bytes() > options_.budget) {
      throw std::logic_error("[prefix_sim.replay] " + std::to_string(trie_.size_bytes()) + " bytes, above the budget");
    }
    if (options_.after_each) options_.after_each(trie_);
  }

  const Score& score() const { return score_; }

 private:
  prefix::Match lookup(const Keys& keys) {
    const prefix::Needs needs = model_.needs();
    const int unit = rules_->unit();
    const auto reach = [&](const prefix::Node& node, int limit) {
      prefix::Reach reached = needs(node, limit);
      // Checkpoints lie at whole units already; a hit within a ring's slack would not.
      reached.deepest = needs.checkpoint && unit > 1 && reached.deepest < node.to() ? 0 : reached.deepest / unit * unit;
      return reached;
    };
    return trie_.lookup(keys, reach);
  }

  void count(int n_prompt, int restored) {
    ++score_.n_requests;
    score_.n_tokens += static_cast<std::size_t>(n_prompt);
    score_.n_restored += static_cast<std::size_t>(restored);
    score_.recomputed += model_.cost(restored, n_prompt);
  }

  // The last token of an answer is not fed.
  void compute(const Request& request, const prefix::PromptPlan& prompt) {
    Keys keys = request.prompt;
    if (!request.answer.empty()) keys.insert(keys.end(), request.answer.begin(), request.answer.end() - 1);
    const int end = static_cast<int>(keys.size());
    last_ = prompt.restored;
    n_prompt_ = prompt.n_tokens;
    const auto keep_all = [&](const std::vector<prefix::PlannedCheckpoint>& plan) {
      for (const prefix::PlannedCheckpoint& one : plan) {
        if (keep(keys, one.offset, &one) && one.rule != prefix::CheckpointRule::kTaper) last_ = one.offset;
      }
    };
    if (model_.needs().checkpoint) keep_all(rules_->plan(prompt));
    keep(keys, prompt.n_tokens, nullptr);
    if (model_.needs().checkpoint) {
      keep_all(rules_->plan_answer(last_, prompt.n_tokens, end));
    } else {
      keep(keys, end, nullptr);
    }
  }

  // Keeps the first `to` keys' state, in whole units, as far as it is not kept yet and there is room. As Store::insert.
  bool keep(const Keys& all, int to, const prefix::PlannedCheckpoint* planned) {
    to = to / rules_->unit() * rules_->unit();
    const int from = pin_.position().offset;
    if (to < from || (to == from && planned == nullptr)) return false;
    const auto keys = std::span(all).first(static_cast<std::size_t>(to));
    const prefix::Needs needs = model_.needs();
    prefix::Pin there;
    if (needs.rows) there = trie_.pin(trie_.rows_end(pin_.position(), keys));
    const int rows_from = needs.rows ? there.position().offset : to;
    const std::size_t n_bytes = static_cast<std::size_t>(to - rows_from) * model_.row_bytes +
                                static_cast<std::size_t>(to - from) * sizeof(prefix::Key) + 3 * prefix::Node::kBytes +
                                (planned != nullptr ? model_.checkpoint_bytes(to) : 0);
    std::optional<prefix::Newcomer> newcomer;
    if (planned != nullptr) {
      const std::size_t row_bytes = model_.row_bytes * static_cast<std::size_t>(to - last_);
      newcomer = {planned->rule, last_, to, model_.checkpoint_bytes(to) + row_bytes};
    }
    if (planned != nullptr) {
      const auto n_rest = static_cast<std::size_t>(std::max(0, n_prompt_ - to));
      const prefix::CheckpointRoom room = {trie_.size_bytes() + n_bytes, trie_.pinned_bytes() + n_bytes,
                                           model_.checkpoint_bytes(to), n_rest * model_.row_bytes, options_.budget};
      if (!rules_->has_room(planned->rule, room)) return false;
    }
    if (!make_room(n_bytes, newcomer ? &*newcomer : nullptr)) return false;
    prefix::Insertion insertion{.keys = keys, .known = pin_.position()};
    insertion.is_answer = from >= n_prompt_;
    if (to > rows_from) insertion.rows = make_rows(model_, rows_from, to);
    if (planned != nullptr) {
      insertion.checkpoint = make_checkpoint(model_, to);
      insertion.rule = planned->rule;
    }
    const std::optional<prefix::Position> position = trie_.insert(std::move(insertion));
    if (position) {
      rules_->kept(trie_, *position->node, n_bytes, options_.budget);
      pin_ = trie_.pin(*position);
    }
    return position.has_value();
  }

  bool make_room(std::size_t n_bytes, const prefix::Newcomer* newcomer) {
    const std::size_t budget = options_.budget;
    if (n_bytes <= budget && trie_.size_bytes() <= budget - n_bytes) return true;
    const std::size_t n_pinned = trie_.pinned_bytes();
    if (n_pinned > budget || n_bytes > budget - n_pinned) return false;
    return rules_->make_room(trie_, budget, n_bytes, newcomer);
  }

  Model model_;
  ReplayOptions options_;
  std::unique_ptr<Rules> rules_;
  prefix::Trie trie_;
  prefix::Pin pin_;
  int n_prompt_ = 0;  // of the request
  int last_ = 0;      // where the request's last checkpoint is, or what it was restored from
  Score score_;
};

}  // namespace

std::string_view scheme_name(Scheme scheme) {
  switch (scheme) {
    case Scheme::kMemoir:
      return "memoir";
    case Scheme::kLru:
      return "lru";
    case Scheme::kFixed:
      return "fixed";
    case Scheme::kBlocks:
      return "blocks";
  }
  return "unknown";
}

Score replay(const Trace& trace, const Model& model, const ReplayOptions& options) {
  Replay replay(model, options);
  for (const Request& request : trace) replay.run(request);
  return replay.score();
}

Score oracle(const Trace& trace, const Model& model) {
  prefix::Trie trie;  // of keys alone; a checkpoint without size marks a state that is used
  Score score;
  std::size_t n_state_bytes = 0;
  for (const Request& request : trace) {
    const int n_prompt = static_cast<int>(request.prompt.size());
    const auto anywhere = [](const prefix::Node&, int limit) { return prefix::Reach{limit, true}; };
    const prefix::Position at = trie.lookup(request.prompt, anywhere).restorable;
    ++score.n_requests;
    score.n_tokens += request.prompt.size();
    score.n_restored += static_cast<std::size_t>(at.offset);
    score.recomputed += model.cost(at.offset, n_prompt);
    if (at.offset > 0 && model.needs().checkpoint) {
      prefix::Insertion mark{.keys = std::span(request.prompt).first(static_cast<std::size_t>(at.offset))};
      const bool is_new = at.node->to() != at.offset || at.node->checkpoint() == nullptr;
      if (is_new) n_state_bytes += model.checkpoint_bytes(at.offset);
      mark.checkpoint = make_checkpoint(model, at.offset);
      trie.insert(std::move(mark));
    }
    Keys keys = request.prompt;
    if (!request.answer.empty()) keys.insert(keys.end(), request.answer.begin(), request.answer.end() - 1);
    trie.insert({.keys = keys});
  }
  score.most_bytes = trie.n_keys() * model.row_bytes + n_state_bytes + trie.key_bytes();
  return score;
}

}  // namespace memoir::prefix_sim
