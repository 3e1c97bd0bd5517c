// Random calls on the trie, next to a naive map of all prefixes that were stored; after each call the validator, and
// all that the trie holds compared with the map.

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "memoir/prefix/eviction.h"
#include "memoir/prefix/trie.h"
#include "prefix_fakes.h"

namespace memoir::prefix {
namespace {

struct Known {
  bool rows = false;
  bool checkpoint = false;
  bool operator==(const Known&) const = default;
};
using Naive = std::map<Keys, Known>;

Keys prefix_of(const Node& node) {
  std::vector<const Node*> path;
  for (const Node* n = &node; !n->is_root(); n = n->parent()) path.push_back(n);
  Keys prefix;
  for (auto n = path.rbegin(); n != path.rend(); ++n)
    prefix.insert(prefix.end(), (*n)->keys().begin(), (*n)->keys().end());
  return prefix;
}

bool begins_with(const Keys& keys, const Keys& prefix) {
  return keys.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), keys.begin());
}

class Walker {
 public:
  explicit Walker(std::uint64_t seed) : random_(seed), trie_({.max_joined_keys = below(2) == 0 ? 2048 : 5}) {}

  void run(int n_steps) {
    for (int i = 0; i < n_steps && !testing::Test::HasFailure(); ++i) step();
    pins_.clear();
    compare();
  }

 private:
  struct Pinned {
    Keys prefix;
    Pin pin;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  Keys some_keys() {
    Keys keys;
    if (!naive_.empty() && below(3) > 0)
      keys = std::next(naive_.begin(), below(static_cast<int>(naive_.size())))->first;
    for (int n = below(5); n > 0; --n) keys.push_back(static_cast<Key>(below(3)));
    if (keys.size() > 14) keys.resize(14);
    return keys;
  }

  Node* some_node() {
    std::vector<Node*> nodes;
    trie_.visit([&](Node& node) { nodes.push_back(&node); });
    return nodes.empty() ? nullptr : nodes[static_cast<std::size_t>(below(static_cast<int>(nodes.size())))];
  }

  // The prefix of the first position of the node's edge, or of one further on.
  static Keys edge_prefix(const Node& node, int n) { return first_of(prefix_of(node), node.from() + n); }

  bool is_pinned(const Node& node) const {
    const Keys first = edge_prefix(node, 1);
    return std::any_of(pins_.begin(), pins_.end(), [&](const Pinned& p) { return begins_with(p.prefix, first); });
  }

  void erase_below(const Keys& prefix) {
    std::erase_if(naive_, [&](const auto& entry) { return begins_with(entry.first, prefix); });
  }

  void step() {
    if (below(12) == 0) world_.throws_in = below(3);
    try {
      act();
    } catch (const std::bad_alloc&) {
    }
    world_.throws_in = -1;
    ASSERT_EQ(trie_.check(), "");
    compare();
  }

  void act() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return insert();
      case 5:
      case 6:
        return lookup();
      case 7:
        return pin();
      case 8:
        return unpin();
      case 9:
        return drop_checkpoint();
      case 10:
        return below(3) == 0 ? remove() : trim();
      default:
        return evict();
    }
  }

  void insert() {
    const Keys keys = some_keys();
    if (keys.empty()) return;
    const int n = static_cast<int>(keys.size());
    const int from = below(3) == 0 ? -1 : below(2) == 0 ? 0 : below(n);
    const bool with_checkpoint = below(2) == 0;
    Insertion insertion{.keys = keys, .is_answer = below(3) == 0};
    if (from >= 0) insertion.rows = std::make_unique<FakeRows>(world_, keys, from);
    if (with_checkpoint) insertion.checkpoint = std::make_unique<FakeCheckpoint>(world_, keys);
    for (const Pinned& p : pins_) {  // what an engine does: it knows its pin's place
      if (begins_with(keys, p.prefix)) insertion.known = p.pin.position();
    }
    const auto position = trie_.insert(std::move(insertion));
    const bool is_refused = from > 0 && (naive_.count(first_of(keys, from)) == 0 || !naive_[first_of(keys, from)].rows);
    ASSERT_EQ(position.has_value(), !is_refused);
    if (is_refused) return;
    ASSERT_EQ(position->offset, n);
    ASSERT_EQ(first_of(prefix_of(*position->node), n), keys);
    for (int i = 1; i <= n; ++i) {
      Known& known = naive_[first_of(keys, i)];
      if (from >= 0 && i > from) known.rows = true;
    }
    if (with_checkpoint) naive_[keys].checkpoint = true;
  }

  void lookup() {
    const Keys keys = some_keys();
    const Needs needs = {below(2) == 0, below(2) == 0};
    const LookupOptions options = {.n_left = below(3), .max_offset = below(3) == 0 ? below(10) : INT_MAX};
    const Match match = trie_.lookup(keys, needs, options);
    int n_matched = 0;
    int n_restorable = 0;
    bool has_rows = true;
    const int limit = std::min(static_cast<int>(keys.size()) - options.n_left, options.max_offset);
    for (int i = 1; i <= static_cast<int>(keys.size()); ++i) {
      const auto known = naive_.find(first_of(keys, i));
      if (known == naive_.end()) break;
      n_matched = i;
      has_rows = has_rows && known->second.rows;
      const bool is_whole = (has_rows || !needs.rows) && (known->second.checkpoint || !needs.checkpoint);
      if (is_whole && i <= limit) n_restorable = i;
    }
    ASSERT_EQ(match.matched, n_matched);
    ASSERT_EQ(match.restorable.offset, n_restorable);
    trie_.use(match, static_cast<int>(keys.size()));
  }

  void pin() {
    const Keys keys = some_keys();
    const Match match = trie_.lookup(keys, Needs{false, false}, {.n_left = 0});
    ASSERT_EQ(match.restorable.offset, match.matched);
    pins_.push_back({first_of(keys, match.matched), trie_.pin(match.restorable)});
  }

  void unpin() {
    if (!pins_.empty()) pins_.erase(pins_.begin() + below(static_cast<int>(pins_.size())));
  }

  void drop_checkpoint() {
    Node* const node = some_node();
    if (node == nullptr) return;
    const Keys prefix = prefix_of(*node);
    const bool may_go = node->checkpoint() != nullptr && !is_pinned(*node);
    ASSERT_EQ(trie_.drop_checkpoint(*node), may_go);
    if (may_go) naive_[prefix].checkpoint = false;
  }

  void remove() {
    Node* const node = some_node();
    if (node == nullptr || (!node->is_leaf() && below(4) > 0)) return;
    const Keys first = edge_prefix(*node, 1);
    const bool may_go = !is_pinned(*node);
    ASSERT_EQ(trie_.remove(*node), may_go);
    if (may_go) erase_below(first);
  }

  void trim() {
    Node* const node = some_node();
    if (node == nullptr) return;
    const int n_kept = below(node->n_keys() + 2);
    const Keys first_gone = n_kept < node->n_keys() ? edge_prefix(*node, n_kept + 1) : Keys{};
    const bool may_go = node->is_leaf() && !is_pinned(*node) && n_kept > 0 && n_kept < node->n_keys();
    ASSERT_EQ(trie_.trim(*node, node->from() + n_kept), may_go);
    if (may_go) erase_below(first_gone);
  }

  void evict() {
    Eviction eviction({.needs = {below(2) == 0, below(2) == 0}});
    const auto budget = static_cast<std::size_t>(static_cast<double>(trie_.size_bytes()) *
                                                 (below(8) == 0 ? below(10) : 9 + below(2)) / 10);
    const bool fits = eviction.make_room(trie_, budget);
    ASSERT_EQ(fits, trie_.size_bytes() <= budget);
    const Naive left = stored();
    for (const auto& [prefix, known] : left) {
      ASSERT_TRUE(naive_.count(prefix) > 0 && naive_[prefix].rows == known.rows);
      ASSERT_TRUE(naive_[prefix].checkpoint || !known.checkpoint);
    }
    for (const Pinned& p : pins_) {
      for (int i = 1; i <= static_cast<int>(p.prefix.size()); ++i) {
        ASSERT_EQ(left.at(first_of(p.prefix, i)), naive_[first_of(p.prefix, i)]);
      }
    }
    if (!fits) {
      trie_.visit([&](Node& node) {
        const bool is_left_for_children = !node.is_leaf() && node.checkpoint() == nullptr;
        ASSERT_TRUE(node.n_pins() > 0 || is_left_for_children);
      });
    }
    naive_ = left;
  }

  // What the trie holds, read node by node; the payloads must be what they say.
  Naive stored() {
    Naive result;
    trie_.visit([&](Node& node) {
      const Keys prefix = prefix_of(node);
      ASSERT_EQ(static_cast<int>(prefix.size()), node.to());
      for (int i = node.from() + 1; i <= node.to(); ++i) result[first_of(prefix, i)].rows = node.rows() != nullptr;
      if (node.rows() != nullptr) {
        ASSERT_EQ(dynamic_cast<const FakeRows&>(*node.rows()).keys(), Keys(node.keys().begin(), node.keys().end()));
      }
      if (node.checkpoint() == nullptr) return;
      result[prefix].checkpoint = true;
      ASSERT_EQ(dynamic_cast<const FakeCheckpoint&>(*node.checkpoint()).prefix(), prefix);
    });
    return result;
  }

  void compare() {
    ASSERT_EQ(stored(), naive_);
    for (const Pinned& p : pins_) {
      ASSERT_EQ(p.pin.position().offset, static_cast<int>(p.prefix.size()));
      ASSERT_EQ(first_of(prefix_of(*p.pin.position().node), p.pin.position().offset), p.prefix);
    }
    int n_payloads = 0;
    trie_.visit([&](Node& node) { n_payloads += (node.rows() != nullptr) + (node.checkpoint() != nullptr); });
    ASSERT_EQ(world_.n_live, n_payloads);
  }

  std::mt19937_64 random_;
  FakeWorld world_;
  Trie trie_;
  Naive naive_;
  std::vector<Pinned> pins_;
};

TEST(PrefixTrieRandom, AgreesWithAMapOfAllPrefixes) {
  constexpr std::uint64_t kFirstSeed = 20261128;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + 10000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walker(seed).run(40);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace memoir::prefix
