#include "memoir/prefix/trie.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace memoir::prefix {
namespace {

constexpr std::size_t kMaxKeys = std::size_t{1} << 30;  // as the caches' highest offset

int checked_size(std::span<const Key> keys, const char* function) {
  if (keys.size() > kMaxKeys) {
    throw std::invalid_argument(std::string("[prefix.") + function + "] " + std::to_string(keys.size()) +
                                " keys are more than 2^30");
  }
  return static_cast<int>(keys.size());
}

}  // namespace

// The map's node: three links, a color, the key and the pointer. Three blocks of memory, each with a header of two
// words.
const std::size_t Node::kBytes =
    sizeof(Node) + 4 * sizeof(void*) + sizeof(Node::Children::value_type) + 6 * sizeof(void*);

Reach Needs::operator()(const Node& node, int limit) const {
  if (rows && node.rows() == nullptr) return {0, false};
  if (!checkpoint) return {limit, true};
  const Checkpoint* const state = node.checkpoint();
  const bool reaches = state != nullptr && limit >= state->offset() - state->n_rewind();
  return {reaches ? limit : 0, true};
}

// ---- Pins

Pin::Pin(Record& record) : record_(&record) {
  record.owner = this;
}

Pin::Pin(Pin&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {
  if (record_ != nullptr) record_->owner = this;
}

Pin& Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  release();
  record_ = std::exchange(other.record_, nullptr);
  if (record_ != nullptr) record_->owner = this;
  return *this;
}

Position Pin::position() const {
  return record_ != nullptr ? record_->position : Position{};
}

void Pin::release() {
  if (record_ == nullptr) return;
  Record* const record = std::exchange(record_, nullptr);
  record->trie->release(*record);
}

Pin Trie::pin(Position position) {
  const Node* const node = position.node;
  if (node == nullptr || position.offset > node->to() || (node->is_root() ? false : position.offset <= node->from()) ||
      position.offset < 0) {
    throw std::invalid_argument("[prefix.pin] offset " + std::to_string(position.offset) +
                                " is not in the node's edge");
  }
  pins_.push_front({this, nullptr, position, {}});
  pins_.front().self = pins_.begin();
  add_pins(position.node, 1);
  return Pin(pins_.front());
}

void Trie::release(Pin::Record& record) {
  Node* const node = record.position.node;
  add_pins(node, -1);
  pins_.erase(record.self);
  settle(node);
}

void Trie::add_pins(Node* node, int n) {
  for (; node != nullptr; node = node->parent_) node->n_pins_ += n;
}

// ---- Lookup

Trie::Trie(TrieOptions options) : options_(options), root_(new Node) {
  if (options.max_joined_keys < 1) throw std::invalid_argument("[prefix.Trie] max_joined_keys must be at least 1");
}

Trie::~Trie() {
  for (Pin::Record& record : pins_) record.owner->record_ = nullptr;
  dismantle(std::move(root_->children_));
}

Trie::Walk Trie::walk(Position start, std::span<const Key> keys, std::vector<Node*>* path) {
  Node* node = start.node;
  auto matched = static_cast<std::size_t>(start.offset);
  for (;;) {
    const auto stored = node->keys().subspan(matched - static_cast<std::size_t>(node->from_));
    const auto wanted = keys.subspan(matched, std::min(stored.size(), keys.size() - matched));
    const auto differs = std::mismatch(wanted.begin(), wanted.end(), stored.begin()).first;
    const auto n_equal = static_cast<std::size_t>(differs - wanted.begin());
    matched += n_equal;
    counters_.n_steps += n_equal + 1;
    if (path != nullptr && !node->is_root()) path->push_back(node);
    if (n_equal < stored.size() || matched == keys.size()) break;
    const auto child = node->children_.find(keys[matched]);
    if (child == node->children_.end()) break;
    node = child->second.get();
  }
  return {node, static_cast<int>(matched)};
}

Match Trie::lookup(std::span<const Key> keys, const ReachFunction& reach, const LookupOptions& options) {
  const int n_keys = checked_size(keys, "lookup");
  if (options.n_left < 0) throw std::invalid_argument("[prefix.lookup] n_left must not be negative");
  Match match;
  match.restorable = {root_.get(), 0};
  match.matched = walk(match.restorable, keys, &match.path).matched;

  const int deepest_allowed = std::min({match.matched, n_keys - options.n_left, options.max_offset});
  for (Node* const node : match.path) {
    if (deepest_allowed <= node->from_) break;
    const int limit = std::min(deepest_allowed, node->to());
    const Reach reached = reach(*node, limit);
    if (reached.deepest > limit) throw std::invalid_argument("[prefix.lookup] reach went beyond its limit");
    if (!reached.is_passable) break;
    if (reached.deepest > node->from_) match.restorable = {node, reached.deepest};
  }
  return match;
}

void Trie::use(const Match& match, int n_keys) {
  const int n_reused = match.restorable.offset;
  ++counters_.n_lookups;
  counters_.n_keys_reused += static_cast<std::uint64_t>(n_reused);
  counters_.n_keys_evaluated += static_cast<std::uint64_t>(std::max(0, n_keys - n_reused));
  if (n_reused == 0) return;
  ++counters_.n_hits;
  Node& node = *match.restorable.node;
  if (node.checkpoint_ && node.n_hits_ == 0) ++counters_.n_used[static_cast<std::size_t>(node.rule_)];
  ++node.n_hits_;
  if (clock_ > 0) hit_age_.add(clock_ - node.clock_);
  ++n_uses_;
  for (Node* const passed : match.path) {
    if (passed->from_ >= n_reused) break;
    if (passed->checkpoint_ && passed != &node) continue;
    passed->clock_ = clock_;
    passed->last_use_ = n_uses_;
  }
}

void Trie::advance_clock(double clock) {
  clock_ = std::max(clock_, clock);
}

void Trie::visit(const std::function<void(Node&)>& visit) {
  std::vector<Node*> pending = {root_.get()};
  while (!pending.empty()) {
    Node* const node = pending.back();
    pending.pop_back();
    for (auto child = node->children_.rbegin(); child != node->children_.rend(); ++child) {
      pending.push_back(child->second.get());
    }
    if (!node->is_root()) visit(*node);
  }
}

Position Trie::rows_end(Position known, std::span<const Key> keys) {
  if (known.offset > checked_size(keys, "rows_end")) {
    throw std::invalid_argument("[prefix.rows_end] known is deeper than the keys");
  }
  Position start = known.node != nullptr ? known : Position{root_.get(), 0};
  while (!start.node->is_root() && !start.node->rows_) start = {start.node->parent_, start.node->from_};
  std::vector<Node*> path;
  const int matched = walk(start, keys, &path).matched;
  Position end = start;
  for (Node* const node : path) {
    if (!node->rows_) break;
    end = {node, std::min(node->to(), matched)};
  }
  return end;
}

std::size_t Trie::pinned_bytes() const {
  std::size_t n_bytes = 0;
  std::vector<const Node*> pending = {root_.get()};
  while (!pending.empty()) {
    const Node* const node = pending.back();
    pending.pop_back();
    for (const auto& [key, child] : node->children_) {
      if (child->n_pins_ == 0) continue;
      pending.push_back(child.get());
      n_bytes += Node::kBytes + child->keys().size_bytes();
      if (child->rows_) n_bytes += ledger_.share_bytes(*child->rows_);
      if (child->checkpoint_) n_bytes += ledger_.share_bytes(*child->checkpoint_);
    }
  }
  return n_bytes;
}

// ---- Insert

std::optional<Position> Trie::insert(Insertion insertion) {
  const auto& keys = insertion.keys;
  const int n_keys = checked_size(keys, "insert");
  const bool is_misplaced = (insertion.rows && insertion.rows->to() != n_keys) ||
                            (insertion.checkpoint && insertion.checkpoint->offset() != n_keys);
  if (is_misplaced || (n_keys == 0 && (insertion.rows || insertion.checkpoint))) {
    throw std::invalid_argument("[prefix.insert] rows and checkpoint must end after " + std::to_string(n_keys) +
                                " keys, at least one");
  }
  if (insertion.known.node != nullptr && insertion.known.offset > n_keys) {
    throw std::invalid_argument("[prefix.insert] known is deeper than the keys");
  }

  const Walk end = walk(insertion.known.node != nullptr ? insertion.known : Position{root_.get(), 0}, keys, nullptr);
  std::vector<Piece> pieces;
  if (insertion.rows) {
    if (!has_rows_above(end, insertion.rows->from())) return std::nullopt;
    pieces = cut(insertion.rows, end, n_keys);
  }
  std::unique_ptr<Node> child;
  Node::Children place;  // made before anything changes
  if (end.matched < n_keys) {
    child = make_node(keys.subspan(static_cast<std::size_t>(end.matched)), end.matched);
    place.emplace(child->keys_.front(), nullptr);
  }

  Position result = {end.node, n_keys};
  Node* lower = nullptr;
  const bool fills_end = !pieces.empty() && pieces.back().node == end.node;
  if (end.matched < end.node->to() && (child || insertion.checkpoint || fills_end)) {
    split(*end.node, end.matched);
    lower = end.node;
    result.node = lower->parent_;
    if (fills_end) pieces.back().node = result.node;
  }
  int changed_from = pieces.empty() ? end.matched : pieces.front().node->from_;
  if (child && !insertion.is_answer) changed_from = std::min(changed_from, use_answers(result.node));
  for (Piece& piece : pieces) take_rows(*piece.node, std::move(piece.rows));
  if (child) {
    child->parent_ = result.node;
    result.node = child.get();
    child->is_answer_ = insertion.is_answer;
    if (insertion.is_answer) counters_.n_answer_keys += child->keys_.size();
    ++n_nodes_;
    n_keys_ += child->keys_.size();
    if (insertion.rows) take_rows(*child, std::move(insertion.rows));
    place.begin()->second = std::move(child);
    result.node->parent_->children_.insert(place.extract(place.begin()));
  }
  if (insertion.checkpoint) attach(*result.node, std::move(insertion.checkpoint), insertion.rule);

  watched_ = &result;
  if (lower != nullptr) settle(lower);
  settle_path(result.node, changed_from);
  watched_ = nullptr;
  return result;
}

// A prompt goes on behind the node: what it passes is no answer any more. Returns where that begins, or the node's end.
int Trie::use_answers(Node* node) {
  int from = node->to();
  for (; node->is_answer_; node = node->parent_) {
    node->is_answer_ = false;
    counters_.n_answer_keys_used += node->keys_.size();
    from = node->from_;
  }
  return from;
}

bool Trie::has_rows_above(const Walk& end, int from) const {
  if (from == 0) return true;
  if (from > end.matched) return false;
  const Node* node = end.node;
  while (node->from_ >= from) node = node->parent_;
  return node->rows_ != nullptr;
}

// Cuts what the nodes down to the walk's end lack out of `rows`; leaves there those of [end.matched, n_keys), or null.
std::vector<Trie::Piece> Trie::cut(std::unique_ptr<Rows>& rows, const Walk& end, int n_keys) const {
  std::vector<Node*> bare;  // the deepest first
  for (Node* node = end.node; !node->is_root() && !node->rows_; node = node->parent_) bare.push_back(node);
  const int first = bare.empty() ? end.matched : bare.back()->from_;
  if (first == n_keys) rows.reset();
  if (rows && first > rows->from()) rows = rows->split_off(first);

  std::vector<Piece> pieces;
  pieces.reserve(bare.size());
  for (auto node = bare.rbegin(); node != bare.rend(); ++node) {
    const int stop = std::min((*node)->to(), end.matched);
    std::unique_ptr<Rows> rest = stop < n_keys ? rows->split_off(stop) : nullptr;
    pieces.push_back({*node, std::move(rows)});
    rows = std::move(rest);
  }
  return pieces;
}

}  // namespace memoir::prefix
