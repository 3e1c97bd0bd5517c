#include "memoir/prefix/eviction.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memoir::prefix {
namespace {

constexpr double kPriorCount = 8;
constexpr double kLeastExponent = 0.6;
constexpr double kNoPressure = 0.1;  // ages of hits as parts of what is lived
constexpr double kFullPressure = 0.4;
constexpr double kRowsWeight = 0.5;
constexpr double kRowsBranchWeight = 0.1;
constexpr double kAnswerPriorKeys = 2048;  // all of them used
constexpr double kFullWorthOfAnswers = 1.0 / 6;
constexpr std::uint32_t kMaxHits = 2;  // that count

bool is_amount(double x) {
  return x >= 0 && std::isfinite(x);
}

// The candidates that go first, one for each node, in the order in which they go. A candidate's score may be found
// higher when its turn comes (the ancestor that it was counted from has gone); what gets a lower one must be told by
// update(). (Not told: payloads whose part of a shared storage has grown. They go a little later than they should.)
class Queue {
 public:
  Queue(Trie& trie, const Eviction& eviction) : trie_(trie), eviction_(eviction) {
    std::vector<std::pair<Candidate, Node*>> all;
    trie.visit([&](Node& node) {
      if (const auto candidate = eviction.candidate(trie, node)) all.emplace_back(*candidate, &node);
    });
    if (all.size() > kAtOnce) {  // most scans are for a few: to sort all of 100,000 takes ten times as long
      std::nth_element(all.begin(), all.begin() + kAtOnce, all.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      last_ = all[kAtOnce].first;
      all.resize(kAtOnce);
    }
    for (const auto& [candidate, node] : all) places_[node] = order_.emplace(candidate, node).first;
  }

  void update(Node& node) {
    erase(node);
    const auto candidate = eviction_.candidate(trie_, node);
    if (candidate) places_[&node] = order_.emplace(*candidate, &node).first;
  }

  // Takes the first one out. A null node: there is none, or it may be among those that were left out; a new queue
  // tells.
  std::pair<Candidate, Node*> pop() {
    while (!order_.empty()) {
      const auto first = order_.begin();
      Node* const node = first->second;
      const Candidate stale = first->first;
      if (last_ && *last_ < stale) break;
      erase(*node);
      const auto candidate = eviction_.candidate(trie_, *node);
      if (!candidate) continue;
      if (!(stale < *candidate)) return {*candidate, node};
      places_[node] = order_.emplace(*candidate, node).first;
    }
    return {{}, nullptr};
  }

 private:
  using Order = std::map<Candidate, Node*>;
  static constexpr std::ptrdiff_t kAtOnce = 64;

  void erase(const Node& node) {
    const auto place = places_.find(&node);
    if (place == places_.end()) return;
    order_.erase(place->second);
    places_.erase(place);
  }

  Trie& trie_;
  const Eviction& eviction_;
  Order order_;
  std::unordered_map<const Node*, Order::iterator> places_;
  std::optional<Candidate> last_;  // the first of those left out
};

bool is_taper(const Node& node) {
  return node.has_checkpoint_of(CheckpointRule::kTaper);
}

// The end of the chain without branches and checkpoints that begins at `node`: a leaf there owns the chain's rows.
Node& chain_end(Node& node) {
  Node* end = &node;
  while (end->checkpoint() == nullptr && end->children().size() == 1) end = end->children().begin()->second.get();
  return *end;
}

bool trimmed(Trie& trie, Node& leaf, int end) {
  try {
    return trie.trim(leaf, end, Join::kLater);
  } catch (const std::exception&) {  // of what the rows copy
    return false;
  }
}

}  // namespace

double RecomputeCost::operator()(int from, int to) const {
  const double a = from;
  const double b = to;
  return per_token * (b - a) + per_pair * (b * b - a * a) / 2;
}

bool Candidate::operator<(const Candidate& other) const {
  const auto order = [](const Candidate& c) { return std::tuple(c.score, c.victim, c.last_use, -c.to, c.id); };
  return order(*this) < order(other);
}

Eviction::Eviction(EvictionOptions options) : options_(options) {
  const bool are_amounts = is_amount(options.cost.per_token) && is_amount(options.cost.per_pair) &&
                           is_amount(options.hit_weight) &&
                           std::all_of(options.prior.begin(), options.prior.end(), is_amount);
  if (!are_amounts) throw std::invalid_argument("[prefix.Eviction] costs, priors and weights must be at least 0");
}

double Eviction::value(double saved, std::size_t n_bytes) const {
  const double worth = saved / static_cast<double>(std::max<std::size_t>(1, n_bytes));
  return exponent_ < 1 && worth > 0 ? unit_ * std::pow(worth / unit_, exponent_) : worth;
}

// Where what comes back does so long before it would go, as much room is there as is needed.
void Eviction::adapt(const Trie& trie) {
  if (!options_.needs.checkpoint || !evicted_value_.is_known() || !trie.hit_age().is_known()) return;
  unit_ = evicted_value_.value();
  const double pressure = (trie.hit_age().value() / unit_ - kNoPressure) / (kFullPressure - kNoPressure);
  exponent_ = kLeastExponent + (1 - kLeastExponent) * std::clamp(pressure, 0.0, 1.0);
}

double Eviction::weight(const Trie& trie, const Node& node) const {
  if (node.checkpoint() != nullptr) {
    return first_hit(trie, node.rule()) + options_.hit_weight * std::min(node.n_hits(), kMaxHits);
  }
  return (node.is_answer() ? answer_weight(trie) : kRowsWeight) + (node.n_hits() > 1 ? kRowsBranchWeight : 0);
}

double Eviction::answer_weight(const Trie& trie) const {
  const TrieCounters& counters = trie.counters();
  const double used = (static_cast<double>(counters.n_answer_keys_used) + kAnswerPriorKeys) /
                      (static_cast<double>(counters.n_answer_keys) + kAnswerPriorKeys);
  return kRowsWeight * std::min(1.0, used / kFullWorthOfAnswers);
}

double Eviction::first_hit(const Trie& trie, CheckpointRule rule) const {
  const auto i = static_cast<std::size_t>(rule);
  const TrieCounters& counters = trie.counters();
  return (static_cast<double>(counters.n_used[i]) + kPriorCount * options_.prior[i]) /
         (static_cast<double>(counters.n_placed[i]) + kPriorCount);
}

int Eviction::restorable_above(const Node& node) const {
  const Node* above = node.parent();
  if (!options_.needs.checkpoint) return above->to();
  const auto counts = [](const Node& n) { return n.checkpoint() != nullptr && !is_taper(n); };
  while (!above->is_root() && !counts(*above)) above = above->parent();
  return above->to();
}

bool Eviction::is_dead(const Node& leaf) const {
  const bool is_empty = leaf.rows() == nullptr && leaf.checkpoint() == nullptr;
  return is_empty || (options_.needs.rows && leaf.rows() == nullptr) ||
         (options_.needs.checkpoint && leaf.checkpoint() == nullptr);
}

std::optional<Candidate> Eviction::candidate(const Trie& trie, const Node& node) const {
  return node.n_pins() > 0 ? std::nullopt : unpinned(trie, node);
}

std::optional<Candidate> Eviction::unpinned(const Trie& trie, const Node& node) const {
  if (node.is_root()) return std::nullopt;
  const std::size_t bytes = node.checkpoint() != nullptr ? trie.ledger().share_bytes(*node.checkpoint()) : 0;
  Candidate result = {Victim::kCheckpoint, 0, 0, bytes, node.to(), node.last_use(), node.id()};
  double cost = options_.needs.checkpoint ? options_.cost(restorable_above(node), node.to()) : 0;
  if (!node.is_leaf()) {
    if (bytes == 0) return std::nullopt;  // there is none, or one that is lazy still
    if (is_taper(node)) {
      result.score = -std::numeric_limits<double>::infinity();
      return result;
    }
  } else {
    const bool dead = is_dead(node);
    result.victim = dead ? Victim::kDeadLeaf : Victim::kRows;
    result.bytes += leaf_bytes(trie, node);
    if (!dead && !options_.needs.checkpoint) cost = options_.cost.per_token * node.n_keys();
  }
  result.value = value(weight(trie, node) * cost, result.bytes);
  result.score = node.clock() + result.value;
  if (result.victim == Victim::kDeadLeaf) result.score = -std::numeric_limits<double>::infinity();
  return result;
}

// What a leaf holds beside its checkpoint, and the rows above it that only it needs.
std::size_t Eviction::leaf_bytes(const Trie& trie, const Node& leaf) const {
  std::size_t bytes = 0;
  const Node* node = &leaf;
  do {
    bytes += Node::kBytes + node->keys().size_bytes();
    if (node->rows() != nullptr) bytes += trie.ledger().share_bytes(*node->rows());
    node = node->parent();
  } while (options_.needs.checkpoint && !node->is_root() && (node->checkpoint() == nullptr || is_taper(*node)) &&
           node->children().size() == 1);
  return bytes;
}

// Where it ends when n_bytes of it, or all that it has, are gone: each of its keys takes the same.
int Eviction::end_without(const Node& node, const Candidate& candidate, std::size_t n_bytes) const {
  if (candidate.victim == Victim::kCheckpoint) return node.to();
  if (candidate.victim == Victim::kDeadLeaf || options_.needs.checkpoint) return node.from();
  const double part = static_cast<double>(n_bytes) / static_cast<double>(candidate.bytes);
  return part < 1 ? node.to() - static_cast<int>(std::ceil(part * node.n_keys())) : node.from();
}

// Returns what is left of it, or its parent. Where memory is too short even for what a trim copies, all of it goes.
Node* Eviction::evict(Trie& trie, Node& node, const Candidate& candidate, int end) {
  const std::size_t bytes_before = trie.size_bytes();
  const std::size_t keys_before = trie.n_keys();
  has_aged_ = has_aged_ || !is_taper(node);
  Node* changed = &node;
  if (candidate.victim == Victim::kCheckpoint) {
    trie.drop_checkpoint(node, Join::kLater);
    ++counters_.n_checkpoints;
  } else if (end > node.from() && trimmed(trie, node, end)) {
    ++counters_.n_trims;
  } else {
    changed = node.parent();
    trie.remove(node, Join::kLater);
    ++counters_.n_leaves;
  }
  if (std::isfinite(candidate.score)) evicted_value_.add(candidate.value);
  trie.advance_clock(candidate.score);  // a dead leaf's is no advance
  counters_.n_keys += keys_before - trie.n_keys();
  counters_.n_bytes += bytes_before - std::min(bytes_before, trie.size_bytes());
  return changed;
}

void Eviction::grew(Trie& trie, const Node& node, std::size_t n_bytes, std::size_t budget) const {
  if (budget == 0 || has_aged_ || is_taper(node)) return;
  const std::optional<Candidate> held = unpinned(trie, node);
  if (!held) return;
  trie.advance_clock(trie.clock() + held->value * static_cast<double>(n_bytes) / static_cast<double>(budget));
}

bool Eviction::make_room(Trie& trie, std::size_t budget, std::size_t n_bytes) {
  const std::size_t target = budget - std::min(budget, n_bytes);
  adapt(trie);
  return evict_to(trie, target, std::numeric_limits<double>::infinity()) && n_bytes <= budget;
}

bool Eviction::make_room(Trie& trie, std::size_t budget, std::size_t n_bytes, const Newcomer& newcomer) {
  if (n_bytes > budget) return false;
  adapt(trie);
  const double saved = first_hit(trie, newcomer.rule) * options_.cost(newcomer.from, newcomer.to);
  const double score = trie.clock() + value(saved, newcomer.n_bytes);
  if (evict_to(trie, budget - n_bytes, score)) return true;
  trie.advance_clock(score);
  return false;
}

// What scores `limit` or more stays. Returns whether no more than `target` bytes are left.
bool Eviction::evict_to(Trie& trie, std::size_t target, double limit) {
  // Joining may take rows out of a storage that others still hold, and so make the trie larger again.
  while (trie.size_bytes() > target) {
    bool has_evicted = false;
    while (evict_some(trie, target, limit)) has_evicted = true;
    if (!has_evicted) break;
    trie.join_chains();
  }
  return trie.size_bytes() <= target;
}

// Returns whether anything went.
bool Eviction::evict_some(Trie& trie, std::size_t target, double limit) {
  if (trie.size_bytes() <= target) return false;
  Queue queue(trie, *this);
  bool has_evicted = false;
  while (trie.size_bytes() > target) {
    const auto [candidate, node] = queue.pop();
    if (node == nullptr || candidate.score >= limit) break;
    const int end = end_without(*node, candidate, trie.size_bytes() - target);
    Node* const changed = evict(trie, *node, candidate, end);
    has_evicted = true;
    // A leaf may own more rows now, or have become one.
    if (!changed->is_root()) queue.update(chain_end(*changed));
  }
  return has_evicted;
}

bool Eviction::evict_one(Trie& trie, std::size_t n_bytes) {
  std::optional<Candidate> first;
  Node* victim = nullptr;
  trie.visit([&](Node& node) {
    const auto candidate = this->candidate(trie, node);
    if (!candidate || (first && !(*candidate < *first))) return;
    first = candidate;
    victim = &node;
  });
  if (victim != nullptr) evict(trie, *victim, *first, end_without(*victim, *first, n_bytes));
  return victim != nullptr;
}

}  // namespace memoir::prefix
