#pragma once

// A node of the trie (trie.h): an edge of one or more positions, and what is kept for them. Read-only to all but the
// trie. A Node& stays valid until the trie is changed.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "memoir/prefix/checkpoint_rule.h"
#include "memoir/prefix/keys.h"
#include "memoir/prefix/payload.h"

namespace memoir::prefix {

class Node {
 public:
  using Children = std::map<Key, std::unique_ptr<Node>>;

  /// Bytes of a node without its keys: the object, its place in its parent's map, and what an allocator adds.
  static const std::size_t kBytes;

  /// The positions of the edge: [from, to). The root, and only it, has none: 0 and 0.
  int from() const { return from_; }
  int to() const { return from_ + n_keys(); }
  int n_keys() const { return static_cast<int>(keys_.size()); }
  std::span<const Key> keys() const { return keys_; }

  bool is_root() const { return parent_ == nullptr; }
  bool is_leaf() const { return children_.empty(); }
  Node* parent() const { return parent_; }
  const Children& children() const { return children_; }

  /// Of the edge; null if none are kept.
  const Rows* rows() const { return rows_.get(); }

  /// At to(); null if none is kept.
  const Checkpoint* checkpoint() const { return checkpoint_.get(); }

  /// Of the checkpoint, if there is one.
  CheckpointRule rule() const { return rule_; }
  /// Whether there is one, and that rule placed it.
  bool has_checkpoint_of(CheckpointRule rule) const { return checkpoint_ && rule_ == rule; }

  /// Whether the edge is a part of an answer that no prompt has gone on behind (Insertion::is_answer).
  bool is_answer() const { return is_answer_; }

  /// Pins at or below this edge, so that it is not evicted.
  int n_pins() const { return n_pins_; }

  /// Numbers nodes in the order in which they were made.
  std::uint64_t id() const { return id_; }

  /// How often lookups ended here, counted from the checkpoint's arrival on.
  std::uint32_t n_hits() const { return n_hits_; }

  /// The trie's clock when it was last used or made (eviction.h), and the number of that event: a later one is higher.
  double clock() const { return clock_; }
  std::uint64_t last_use() const { return last_use_; }

 private:
  friend class Trie;

  Node() = default;

  Children children_;
  std::vector<Key> keys_;
  Node* parent_ = nullptr;
  std::unique_ptr<Rows> rows_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::uint64_t id_ = 0;
  std::uint64_t last_use_ = 0;
  double clock_ = 0;
  int from_ = 0;
  int n_pins_ = 0;
  std::uint32_t n_hits_ = 0;
  CheckpointRule rule_ = CheckpointRule::kBranch;
  bool is_answer_ = false;
  bool is_unjoinable_ = false;  // its rows and its child's could not be joined
};

/// A place in the trie: `offset` keys deep, within the node's edge (from < offset <= to) or at the root (0).
struct Position {
  Node* node = nullptr;
  int offset = 0;
};

}  // namespace memoir::prefix
