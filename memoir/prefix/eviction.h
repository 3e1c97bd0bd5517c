#pragma once

// What goes when the trie holds more bytes than it may.
//
// Candidates: the checkpoint of a node with children (its rows stay, those below need them), and a leaf. A leaf that
// needs a checkpoint goes whole; without that need its rows are trimmed from the end. What lies above a pin never goes.
// A leaf that nothing can be restored from (no checkpoint where one is needed, no rows where they are) goes first, and
// with it the checkpoints of the rule taper that have anything below them, which are taken for free room alone.
// Rows are trimmed as far as is needed and no further, at once: a payload in blocks (row_blocks.h) copies one for it.
//
// The rest goes by lowest score, GDSF's (Cherkasova 1998, "Improving WWW proxies performance with Greedy-Dual-Size-
// Frequency caching policy"), with Marconi's cost (Pan et al., MLSys 2025: FLOPs saved for each byte):
//
//   score = clock at last use + value, value = weight * cost(nearest restorable ancestor, end) / bytes
//
//   cost    what a request that ends here would have to compute if it were gone. a and b in tokens, tapers not
//           counted as ancestors:
//           per_token * (b - a) + per_pair * (b^2 - a^2) / 2
//           Of rows that are trimmed per_token * (b - a): were it by depth, the ends of long logs would stay when they
//           are over, and shorter ones that go on would be cut (benches/prefix_sim shows it)
//   bytes   the checkpoint, shared storages by their parts; of a leaf that goes whole also keys and the rows that
//           nobody else needs then: its own and those above it, up to the next checkpoint or branch
//   weight  how likely a first hit is: of the checkpoints that the same rule placed, the part that was ever used,
//           (used + 8 * prior) / (placed + 8). And hit_weight for each of the node's first two hits: little, since a
//           chat that was asked often is not asked more often once it is over.
//           Of rows alone 1/2, and 0.1 more where two hits ended: a chat that goes on ends one in each place, a place
//           that is branched from has more. But of an answer that no prompt has gone on behind 1/2 * min(1, 6 * u),
//           where u is the part of the answers' keys that prompts have gone on behind: 0 where thoughts are stripped
//           or the prompt's end is replaced, and then answers go first
//   clock   the score of what was last evicted, at the time of the last use: what is not used ages, as the clock goes
//   on
//
// With checkpoints a value v is u * (v / u) ^ e, where u is the mean value of what went lately, and e from 0.6 to 1
// (the exponent of GreedyDual*: Jin, Bestavros 2000, "GreedyDual* Web caching algorithm"). With 1 what is worth twice
// as much stays twice as long, also where what is worth half as much has not come back yet and the other has for the
// last time. e is 1 where the hits' mean age, since the last use and by the clock, is 0.4 * u or more: then many more
// would come back later than things live. It falls to 0.6 at 0.1 * u.
//
// Until something has been evicted grew() keeps the clock going, as if what goes into free room had pushed out its
// like; else all that was stored before the budget was first full would be of one age.
//
// Of equal scores a checkpoint goes before rows, then the one that was used longer ago, then the deeper. So the order
// depends on nothing but the calls made on the trie.
//
// A checkpoint is not taken in for something that scores more than it: a rule whose checkpoints are never used would
// else, in a small budget, drive out those of the others as often as it places one.
//
// Cost: make_room looks at every node once for each 64 that go, and at a few for each of them.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "memoir/prefix/trie.h"

namespace memoir::prefix {

struct RecomputeCost {
  double per_token = 1;
  double per_pair = 0;  // of a query and a key: attention's part

  /// Of the positions [from, to).
  double operator()(int from, int to) const;
};

struct EvictionOptions {
  Needs needs = {};
  RecomputeCost cost = {};
  PerRule<double> prior = {0.5, 0.3, 0.5, 0.1, 0.05, 0.5, 0.5, 0.01};  // of a first hit, by rule
  double hit_weight = 0.15;
};

enum class Victim { kDeadLeaf, kCheckpoint, kRows };

/// What may go, of one node.
struct Candidate {
  Victim victim;
  double score;  // of a dead leaf: -infinity
  double value;
  std::size_t bytes;  // as above
  int to;
  std::uint64_t last_use;
  std::uint64_t id;

  bool operator<(const Candidate& other) const;  // goes earlier
};

struct EvictionCounters {
  std::uint64_t n_checkpoints = 0;
  std::uint64_t n_leaves = 0;  // went whole
  std::uint64_t n_trims = 0;
  std::uint64_t n_keys = 0;  // that are no longer matched
  std::uint64_t n_bytes = 0;
};

/// A checkpoint that is to come.
struct Newcomer {
  CheckpointRule rule;
  int from;             // the next place above that can be restored
  int to;               // its offset
  std::size_t n_bytes;  // its own, and of the rows [from, to)
};

class Eviction {
 public:
  /// Throws std::invalid_argument if a cost, a prior or hit_weight is negative or not a number.
  explicit Eviction(EvictionOptions options);

  /// Drops until trie.size_bytes() + n_bytes <= budget, and joins chains. Returns false if that can't be reached: what
  /// is left is pinned, or n_bytes is more than the budget.
  bool make_room(Trie& trie, std::size_t budget, std::size_t n_bytes = 0);

  /// The same for a checkpoint that would be the newest: what scores as much as it would, or more, stays for it.
  /// Returns false too if that leaves no room; the clock is then as if it had come and been the first to go.
  bool make_room(Trie& trie, std::size_t budget, std::size_t n_bytes, const Newcomer& newcomer);

  /// Tells that n_bytes came to be held, with `node` at their end, pinned or not, and that make_room() had nothing to
  /// do for them. Before the first eviction the clock goes on by the node's value * n_bytes / budget.
  void grew(Trie& trie, const Node& node, std::size_t n_bytes, std::size_t budget) const;

  /// Learns how much room there is from what has been asked for and what has gone. make_room does it.
  void adapt(const Trie& trie);

  /// What may go of this node; nullopt if nothing.
  std::optional<Candidate> candidate(const Trie& trie, const Node& node) const;

  /// Drops the first candidate of all, of rows that can be trimmed n_bytes if it has more; false if there is none.
  /// Looks at every node, and leaves chains unjoined: make_room does the same in less time.
  bool evict_one(Trie& trie, std::size_t n_bytes);

  const EvictionCounters& counters() const { return counters_; }

 private:
  std::optional<Candidate> unpinned(const Trie& trie, const Node& node) const;
  double value(double saved, std::size_t n_bytes) const;
  double weight(const Trie& trie, const Node& node) const;
  double answer_weight(const Trie& trie) const;
  double first_hit(const Trie& trie, CheckpointRule rule) const;
  int restorable_above(const Node& node) const;
  bool is_dead(const Node& leaf) const;
  std::size_t leaf_bytes(const Trie& trie, const Node& leaf) const;
  bool evict_to(Trie& trie, std::size_t target, double limit);
  bool evict_some(Trie& trie, std::size_t target, double limit);
  int end_without(const Node& node, const Candidate& candidate, std::size_t n_bytes) const;
  Node* evict(Trie& trie, Node& node, const Candidate& candidate, int end);

  EvictionOptions options_;
  LateMean evicted_value_;  // how long, by the clock, lived what went
  double exponent_ = 1;     // these two stay while room is made: the queue's order rests on them
  double unit_ = 1;
  bool has_aged_ = false;  // whether anything but tapers has gone
  EvictionCounters counters_;
};

}  // namespace memoir::prefix
