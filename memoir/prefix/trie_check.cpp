// The trie's validator.

#include <unordered_map>

#include "memoir/prefix/trie.h"

namespace memoir::prefix {
namespace {

std::string at(const Node& node, const char* what) {
  return "node " + std::to_string(node.id()) + " [" + std::to_string(node.from()) + ", " + std::to_string(node.to()) +
         "): " + what;
}

}  // namespace

std::string Trie::check() const {
  std::vector<const Node*> pending = {root_.get()};
  while (!pending.empty()) {
    const Node& node = *pending.back();
    pending.pop_back();
    if (std::string problem = check_node(node); !problem.empty()) return problem;
    for (const auto& [key, child] : node.children_) {
      if (!child || child->parent_ != &node) return at(node, "a child is missing or has another parent");
      if (child->from_ != node.to()) return at(*child, "does not begin where its parent ends");
      if (child->keys_.empty() || child->keys_.front() != key) return at(*child, "is filed under another key");
      pending.push_back(child.get());
    }
  }
  return check_totals();
}

std::string Trie::check_node(const Node& node) const {
  if (node.is_root()) {
    const bool is_bare = &node == root_.get() && node.keys_.empty() && !node.rows_ && !node.checkpoint_;
    return is_bare && node.from_ == 0 ? "" : at(node, "is a root with an edge or state");
  }
  if (node.rows_ && (node.rows_->from() != node.from_ || node.rows_->to() != node.to())) {
    return at(node, "its rows don't span the edge");
  }
  if (node.rows_ && !node.parent_->is_root() && !node.parent_->rows_) return at(node, "has rows, its parent none");
  if (node.checkpoint_ && node.checkpoint_->offset() != node.to()) return at(node, "its checkpoint is not at its end");
  if (can_join(node)) return at(node, "could be joined with its child");

  int n_below = 0;
  for (const auto& [key, child] : node.children_) n_below += child->n_pins_;
  for (const Pin::Record& record : pins_) n_below += record.position.node == &node ? 1 : 0;
  return n_below == node.n_pins_ ? "" : at(node, "its pins are not those at and below it");
}

std::string Trie::check_totals() const {
  std::size_t n_nodes = 0;
  std::size_t n_keys = 0;
  std::size_t n_bytes[2] = {0, 0};
  std::unordered_map<const void*, int> n_payloads;
  const auto count = [&](const Payload* payload, int sort) {
    if (payload != nullptr && n_payloads[payload->storage()]++ == 0) n_bytes[sort] += payload->size_bytes();
  };
  std::vector<const Node*> pending = {root_.get()};
  while (!pending.empty()) {
    const Node& node = *pending.back();
    pending.pop_back();
    n_nodes += node.is_root() ? 0 : 1;
    n_keys += node.keys_.size();
    count(node.rows_.get(), 0);
    count(node.checkpoint_.get(), 1);
    for (const auto& [key, child] : node.children_) pending.push_back(child.get());
  }
  if (n_nodes != n_nodes_ || n_keys != n_keys_) return "nodes or keys are counted wrong";
  // A storage that rows and a checkpoint share counts for the sort that came first: compare the sum.
  if (n_bytes[0] + n_bytes[1] != ledger_.rows_bytes() + ledger_.checkpoint_bytes()) return "bytes are counted wrong";

  for (const Pin::Record& record : pins_) {
    const Position& position = record.position;
    const bool is_inside = position.node->is_root()
                               ? position.offset == 0
                               : position.offset > position.node->from_ && position.offset <= position.node->to();
    if (!is_inside) return "a pin's offset is not in its node";
  }
  return root_->n_pins_ == static_cast<int>(pins_.size()) ? "" : "the root does not count all pins";
}

}  // namespace memoir::prefix
