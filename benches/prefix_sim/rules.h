#pragma once

// What the schemes of replay.h differ in: where hits may end, where checkpoints are taken, what goes.
//
// Threads: none of their own; one replay owns its rules.

#include <memory>
#include <span>
#include <vector>

#include "benches/prefix_sim/models.h"
#include "benches/prefix_sim/replay.h"

namespace memoir::prefix_sim {

class Rules {
 public:
  virtual ~Rules() = default;

  /// Hits end at multiples of this, and so do rows that are kept.
  virtual int unit() const { return 1; }

  /// Of a prompt, ascending within (restored, n_tokens).
  virtual std::vector<prefix::PlannedCheckpoint> plan(const prefix::PromptPlan& prompt) const = 0;

  /// Of an answer that was computed to `to`: ascending, behind `last`, where the last checkpoint is.
  virtual std::vector<prefix::PlannedCheckpoint> plan_answer(int last, int n_prompt, int to) const = 0;

  /// A request of n_tokens begins at this match. Called before the trie changes.
  virtual void used(const prefix::Match&, const prefix::Trie&, int /*n_tokens*/) {}

  /// That many bytes are new, with the node at their end.
  virtual void kept(prefix::Trie&, const prefix::Node&, std::size_t, std::size_t) {}

  /// Whether a checkpoint of this rule is tried for where there is so much room.
  virtual bool has_room(prefix::CheckpointRule, const prefix::CheckpointRoom&) const { return true; }

  /// Drops until that many bytes fit in the budget. False if they can't, or are not worth it. newcomer: the checkpoint
  /// that it is for; null for rows.
  virtual bool make_room(prefix::Trie& trie, std::size_t budget, std::size_t n_bytes,
                         const prefix::Newcomer* newcomer) = 0;
};

std::unique_ptr<Rules> make_rules(Scheme scheme, const Model& model);

}  // namespace memoir::prefix_sim
