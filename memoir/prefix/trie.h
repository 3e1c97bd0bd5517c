#pragma once

// A compressed trie over keys (keys.h): which prefixes have been computed, and the state that is kept of them.
//
// A node covers an edge of positions [from, to) and owns rows of that edge and a checkpoint at its end, either of which
// may be missing (payload.h). Invariants, which check() verifies:
//   1. A child begins where its parent ends; siblings differ in their first key.
//   2. Rows span exactly their edge, a checkpoint stands at its end. Rows are kept only below rows, down from the root.
//   3. No chain is longer than it has to be: a node with a single child has a checkpoint, or a pin ends in it, or only
//      one of the two has rows or is an answer, or joining them would copy too much: a parent that is longer than its
//      child, or rows of more than max_joined_keys positions. (So an edge that grows bit by bit copies each row at most
//      log2(max_joined_keys) times.)
//   4. Bytes are counted: payloads, one storage once, and nodes with their keys.
//   5. A node's pins are the open pins at or below it. Nothing pinned is dropped.
//
// Cost: lookups and inserts take steps in proportion to the keys they match, plus a map's lookup at each node: a few
// microseconds for 1000 tokens among 100,000 nodes (benches/trie_bench). Nothing recurses, so depth costs no stack. A
// node takes Node::kBytes (some 230) and 8 bytes a key.
// Threads: none of its own; one thread owns it. Several requests may have pins open at once.
// Errors: a throw of a payload's function leaves the trie as it was before the call, or as a valid one in which less is
// joined. std::bad_alloc of the trie's own small allocations is not recovered from.

#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/prefix/late_mean.h"
#include "memoir/prefix/ledger.h"
#include "memoir/prefix/node.h"

namespace memoir::prefix {

class Trie;

/// What a lookup's caller says of one node.
struct Reach {
  int deepest = 0;          // the deepest offset in (from, limit] to which every layer can be brought; 0: none
  bool is_passable = true;  // whether deeper nodes can be reached through it
};
using ReachFunction = std::function<Reach(const Node& node, int limit)>;

/// What a model's layers need: some are restored from rows, some from a checkpoint.
struct Needs {
  bool rows = true;
  bool checkpoint = false;

  /// The common ReachFunction: rows down to the node, and at its end a checkpoint that reaches back to the limit.
  Reach operator()(const Node& node, int limit) const;
};

struct LookupOptions {
  int n_left = 1;  // keys at the end that are not taken from the trie; 0 for pairs, which are one fewer anyway
  int max_offset = INT_MAX;  // go no deeper: for a second try after a restore has failed
};

struct Match {
  std::vector<Node*> path;  // nodes that the keys share something with, from the root's child on; valid as long as they
  int matched = 0;          // keys shared with what is stored
  Position restorable;  // the deepest offset that can be restored, and the node whose payloads do it; the root: none
};

/// What a request has computed: state for the end of `keys`.
struct Insertion {
  std::span<const Key> keys;                         // from position 0 on
  Position known = {};                               // of a pin: the keys up to there are the trie's, and not compared
  std::unique_ptr<Rows> rows = nullptr;              // ending at keys.size(), or null
  std::unique_ptr<Checkpoint> checkpoint = nullptr;  // at keys.size(), or null
  CheckpointRule rule = CheckpointRule::kBranch;
  bool is_answer = false;  // the keys that are new were written by the model, and no prompt's yet
};

/// Keeps a position and all above it from being dropped. Follows its position when edges are split and joined. May
/// outlive the trie, and is closed then.
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept;
  Pin& operator=(Pin&& other) noexcept;
  ~Pin() { release(); }

  bool is_open() const { return record_ != nullptr; }
  Position position() const;  // the root's, if it is not open
  void release();

 private:
  friend class Trie;
  struct Record {
    Trie* trie;
    Pin* owner;
    Position position;
    std::list<Record>::iterator self;
  };
  explicit Pin(Record& record);

  Record* record_ = nullptr;
};

struct TrieOptions {
  int max_joined_keys = 2048;
};

struct TrieCounters {
  std::uint64_t n_lookups = 0;  // as told by use()
  std::uint64_t n_hits = 0;
  std::uint64_t n_keys_reused = 0;
  std::uint64_t n_keys_evaluated = 0;
  std::uint64_t n_steps = 0;             // keys compared and nodes entered, by lookups and inserts
  std::uint64_t n_answer_keys = 0;       // inserted as answers
  std::uint64_t n_answer_keys_used = 0;  // of those, on the way to what prompts inserted behind them
  PerRule<std::uint64_t> n_placed{};
  PerRule<std::uint64_t> n_used{};  // of those, used at least once
};

enum class Join { kNow, kLater };

class Trie {
 public:
  /// Throws std::invalid_argument if max_joined_keys < 1.
  explicit Trie(TrieOptions options = {});
  ~Trie();
  Trie(const Trie&) = delete;
  Trie& operator=(const Trie&) = delete;

  /// The longest match and the deepest offset on it that can be restored. `reach` is asked from the root down.
  /// Throws std::invalid_argument if n_left is negative or `reach` answers an offset beyond its limit.
  Match lookup(std::span<const Key> keys, const ReachFunction& reach, const LookupOptions& options = {});

  /// Tells that a request of n_keys begins at the match: counts it, and refreshes the node that it is restored from and
  /// those above that have no checkpoint: their rows are used. Checkpoints above are not, and later requests that go
  /// the same way need them no more.
  void use(const Match& match, int n_keys);

  /// Adds what was computed. Where state is kept already it stays, and what is given is dropped. Returns the position
  /// of the keys' end, or nullopt, the trie unchanged and the payloads dropped, if the rows above those given are not
  /// there.
  /// Throws std::invalid_argument if a payload does not end where the keys do, or comes with no keys.
  std::optional<Position> insert(Insertion insertion);

  /// Where the unbroken rows from position 0 on end, as far as the keys match; the root if the first has none. `known`
  /// as Insertion::known.
  Position rows_end(Position known, std::span<const Key> keys);

  /// Bytes that can't be dropped, because they are pinned or above a pin. Visits every node.
  std::size_t pinned_bytes() const;

  /// Opening and closing a pin takes a step for each node above. Throws std::invalid_argument if it is no position.
  Pin pin(Position position);

  /// Each returns false, the trie unchanged, for the root and for what is pinned. With Join::kLater chains are left to
  /// the next join_chains(), and no node but those named here goes.
  bool drop_checkpoint(Node& node, Join join = Join::kNow);  // false also if there is none
  bool trim(Node& leaf, int at, Join join = Join::kNow);     // keeps [from, at) and no checkpoint. False: not a leaf,
                                                             // or not from < at < to
  bool remove(Node& node, Join join = Join::kNow);           // with all below it
  void join_chains();

  /// Reads the sizes of the node's payloads anew, which may have grown.
  void recount(Node& node);

  /// Calls `visit` for every node but the root, parents first, children in the order of their keys.
  void visit(const std::function<void(Node&)>& visit);
  const Node& root() const { return *root_; }

  /// The clock that nodes are stamped with when they are made or used. Never goes back: a lower value is ignored.
  void advance_clock(double clock);
  double clock() const { return clock_; }

  /// By how much the clock had gone on since the last use of what a hit ended in, in the mean of late hits.
  const LateMean& hit_age() const { return hit_age_; }

  std::size_t size_bytes() const { return ledger_.rows_bytes() + ledger_.checkpoint_bytes() + key_bytes(); }
  std::size_t rows_bytes() const { return ledger_.rows_bytes(); }
  std::size_t checkpoint_bytes() const { return ledger_.checkpoint_bytes(); }
  std::size_t key_bytes() const { return n_nodes_ * Node::kBytes + n_keys_ * sizeof(Key); }
  const Ledger& ledger() const { return ledger_; }
  std::size_t n_nodes() const { return n_nodes_; }  // without the root
  std::size_t n_keys() const { return n_keys_; }
  std::size_t n_open_pins() const { return pins_.size(); }
  const TrieCounters& counters() const { return counters_; }
  std::uint64_t n_uses() const { return n_uses_; }  // the number of the last event that refreshed or made a node

  /// The first invariant that does not hold, in words; empty if all do. Visits every node.
  std::string check() const;

 private:
  friend class Pin;
  struct Walk {
    Node* node;  // that holds the last key matched
    int matched;
  };
  struct Piece {
    Node* node;
    std::unique_ptr<Rows> rows;
  };

  Walk walk(Position start, std::span<const Key> keys, std::vector<Node*>* path);
  bool has_rows_above(const Walk& end, int from) const;
  std::vector<Piece> cut(std::unique_ptr<Rows>& rows, const Walk& end, int n_keys) const;
  std::unique_ptr<Node> make_node(std::span<const Key> keys, int from);
  void split(Node& node, int at);
  void attach(Node& node, std::unique_ptr<Checkpoint> checkpoint, CheckpointRule rule);
  void take_rows(Node& node, std::unique_ptr<Rows> rows);
  bool can_join(const Node& parent) const;
  bool join_with_child(Node& parent);
  Node* settle(Node* node);
  int use_answers(Node* node);
  void settle_path(Node* node, int from);
  void forget(Node& node);
  void dismantle(Node::Children children);
  void add_pins(Node* node, int n);
  void release(Pin::Record& record);
  std::string check_node(const Node& node) const;
  std::string check_totals() const;

  TrieOptions options_;
  std::unique_ptr<Node> root_;
  std::list<Pin::Record> pins_;
  Ledger ledger_;
  TrieCounters counters_;
  Position* watched_ = nullptr;  // follows joins during an insert
  std::size_t n_nodes_ = 0;
  std::size_t n_keys_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint64_t n_uses_ = 0;
  double clock_ = 0;
  LateMean hit_age_;
};

}  // namespace memoir::prefix
