// How the trie's nodes are made, split, joined and dropped.

#include <algorithm>
#include <utility>

#include "memoir/prefix/trie.h"

namespace memoir::prefix {

std::unique_ptr<Node> Trie::make_node(std::span<const Key> keys, int from) {
  std::unique_ptr<Node> node(new Node);
  node->keys_.assign(keys.begin(), keys.end());
  node->from_ = from;
  node->id_ = next_id_++;
  node->clock_ = clock_;
  node->last_use_ = ++n_uses_;
  return node;
}

void Trie::take_rows(Node& node, std::unique_ptr<Rows> rows) {
  ledger_.add(*rows, Ledger::Sort::kRows);
  node.rows_ = std::move(rows);
  node.is_unjoinable_ = false;
}

void Trie::attach(Node& node, std::unique_ptr<Checkpoint> checkpoint, CheckpointRule rule) {
  if (node.checkpoint_) return;
  ledger_.add(*checkpoint, Ledger::Sort::kCheckpoint);
  node.checkpoint_ = std::move(checkpoint);
  node.rule_ = rule;
  node.n_hits_ = 0;
  node.clock_ = clock_;
  node.last_use_ = ++n_uses_;
  ++counters_.n_placed[static_cast<std::size_t>(rule)];
}

// A new node takes over [from, at) and stands above `node`, which keeps the rest, its checkpoint and its children.
void Trie::split(Node& node, int at) {
  const auto n_head = static_cast<std::size_t>(at - node.from_);
  std::unique_ptr<Node> made = make_node(node.keys().first(n_head), node.from_);
  Node& upper = *made;
  const auto tail = node.keys().subspan(n_head);
  std::vector<Key> lower_keys(tail.begin(), tail.end());
  Node::Children below;
  below.emplace(lower_keys.front(), nullptr);
  std::unique_ptr<Checkpoint> earlier;
  if (node.checkpoint_ && at >= node.checkpoint_->offset() - node.checkpoint_->n_rewind()) {
    earlier = node.checkpoint_->earlier(at);
  }
  if (node.rows_) {  // the last that may throw
    const void* const storage = node.rows_->storage();
    std::unique_ptr<Rows> lower_rows = node.rows_->split_off(at);
    ledger_.remove(storage);
    take_rows(upper, std::move(node.rows_));
    take_rows(node, std::move(lower_rows));
  }

  upper.clock_ = node.clock_;
  upper.last_use_ = node.last_use_;
  upper.n_hits_ = node.checkpoint_ ? 0 : node.n_hits_;
  if (earlier) {
    ledger_.add(*earlier, Ledger::Sort::kCheckpoint);
    upper.checkpoint_ = std::move(earlier);
    upper.rule_ = node.rule_;
    ++counters_.n_placed[static_cast<std::size_t>(node.rule_)];
  }
  upper.is_answer_ = node.is_answer_;
  upper.parent_ = node.parent_;
  std::unique_ptr<Node>& place = node.parent_->children_.find(node.keys_.front())->second;
  below.begin()->second = std::exchange(place, std::move(made));
  upper.children_ = std::move(below);
  node.parent_ = &upper;
  node.keys_ = std::move(lower_keys);
  node.from_ = at;
  ++n_nodes_;

  upper.n_pins_ = node.n_pins_;
  for (Pin::Record& record : pins_) {
    if (record.position.node != &node || record.position.offset > at) continue;
    record.position.node = &upper;
    --node.n_pins_;
  }
}

// With a single child, the parent's pins are the child's if none ends in the parent.
bool Trie::can_join(const Node& parent) const {
  if (parent.is_root() || parent.children_.size() != 1 || parent.checkpoint_ || parent.is_unjoinable_) return false;
  const Node& child = *parent.children_.begin()->second;
  if (parent.n_pins_ != child.n_pins_ || (parent.rows_ == nullptr) != (child.rows_ == nullptr)) return false;
  if (parent.is_answer_ != child.is_answer_ || parent.n_keys() > child.n_keys()) return false;
  return !parent.rows_ || parent.n_keys() + child.n_keys() <= options_.max_joined_keys;
}

bool Trie::join_with_child(Node& parent) {
  if (!can_join(parent)) return false;
  Node& child = *parent.children_.begin()->second;
  parent.keys_.reserve(parent.keys_.size() + child.keys_.size());
  if (parent.rows_) {
    const void* const upper_storage = parent.rows_->storage();
    const void* const lower_storage = child.rows_->storage();
    if (!parent.rows_->append(*child.rows_)) {
      parent.is_unjoinable_ = true;
      return false;
    }
    ledger_.remove(upper_storage);
    ledger_.remove(lower_storage);
    ledger_.add(*parent.rows_, Ledger::Sort::kRows);
  }
  parent.keys_.insert(parent.keys_.end(), child.keys_.begin(), child.keys_.end());
  parent.checkpoint_ = std::move(child.checkpoint_);
  parent.rule_ = child.rule_;
  parent.n_hits_ = child.n_hits_;
  parent.clock_ = parent.checkpoint_ ? child.clock_ : std::max(parent.clock_, child.clock_);
  parent.last_use_ = parent.checkpoint_ ? child.last_use_ : std::max(parent.last_use_, child.last_use_);
  parent.is_unjoinable_ = child.is_unjoinable_;
  for (Pin::Record& record : pins_) {
    if (record.position.node == &child) record.position.node = &parent;
  }
  if (watched_ != nullptr && watched_->node == &child) watched_->node = &parent;

  Node::Children grandchildren = std::move(child.children_);
  for (auto& [key, grandchild] : grandchildren) grandchild->parent_ = &parent;
  parent.children_ = std::move(grandchildren);  // and with that, `child` is gone
  --n_nodes_;
  return true;
}

// Restores invariant 3 around a node whose edge, children, checkpoint or pins have changed. Returns what it became.
Node* Trie::settle(Node* node) {
  while (join_with_child(*node)) {
  }
  while (!node->is_root()) {
    Node* const parent = node->parent_;
    if (!join_with_child(*parent)) break;
    node = parent;
  }
  return node;
}

void Trie::settle_path(Node* node, int from) {
  while (!node->is_root()) {
    node = settle(node);
    if (node->from_ < from || node->is_root()) return;
    node = node->parent_;
  }
}

// ---- Dropping

bool Trie::drop_checkpoint(Node& node, Join join) {
  if (node.is_root() || node.n_pins_ > 0 || !node.checkpoint_) return false;
  ledger_.remove(node.checkpoint_->storage());
  node.checkpoint_.reset();
  if (join == Join::kNow) settle(&node);
  return true;
}

bool Trie::trim(Node& leaf, int at, Join join) {
  if (leaf.is_root() || leaf.n_pins_ > 0 || !leaf.is_leaf() || at <= leaf.from_ || at >= leaf.to()) return false;
  std::vector<Key> kept(leaf.keys_.begin(), leaf.keys_.begin() + (at - leaf.from_));
  if (leaf.rows_) {
    const void* const storage = leaf.rows_->storage();
    leaf.rows_->trim(at);
    ledger_.remove(storage);
    ledger_.add(*leaf.rows_, Ledger::Sort::kRows);
  }
  if (leaf.checkpoint_) {
    ledger_.remove(leaf.checkpoint_->storage());
    leaf.checkpoint_.reset();
  }
  n_keys_ -= leaf.keys_.size() - kept.size();
  leaf.keys_ = std::move(kept);
  if (join == Join::kNow) settle(&leaf);
  return true;
}

bool Trie::remove(Node& node, Join join) {
  if (node.is_root() || node.n_pins_ > 0) return false;
  Node* const parent = node.parent_;
  Node::Children removed;
  removed.insert(parent->children_.extract(node.keys_.front()));
  dismantle(std::move(removed));
  if (join == Join::kNow) settle(parent);
  return true;
}

void Trie::join_chains() {
  std::vector<Node*> nodes;
  nodes.reserve(n_nodes_);
  visit([&nodes](Node& node) { nodes.push_back(&node); });
  // Children first: a node that is joined away has been passed already.
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    while (join_with_child(**node)) {
    }
  }
}

// Destroys the nodes and all below them without recursing.
void Trie::dismantle(Node::Children children) {
  std::vector<std::unique_ptr<Node>> pending;
  const auto take = [&pending](Node::Children& from) {
    for (auto& [key, node] : from) pending.push_back(std::move(node));
    from.clear();
  };
  take(children);
  while (!pending.empty()) {
    const std::unique_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    take(node->children_);
    forget(*node);
  }
}

void Trie::forget(Node& node) {
  if (node.rows_) ledger_.remove(node.rows_->storage());
  if (node.checkpoint_) ledger_.remove(node.checkpoint_->storage());
  --n_nodes_;
  n_keys_ -= node.keys_.size();
}

void Trie::recount(Node& node) {
  if (node.rows_) ledger_.recount(*node.rows_);
  if (node.checkpoint_) ledger_.recount(*node.checkpoint_);
}

}  // namespace memoir::prefix
