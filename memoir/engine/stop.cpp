#include "memoir/engine/stop.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace memoir::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)), nodes_(1) {
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    if (stops_[i].empty()) {
      throw std::invalid_argument("[stop] stop string " + std::to_string(i) + " is empty");
    }
  }
  // In sorted order every node gets its children with ascending bytes, each new one at the end.
  std::vector<std::size_t> order(stops_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) { return stops_[a] < stops_[b]; });
  for (const std::size_t stop : order) insert(stop);
  link();
}

void StopMatcher::insert(std::size_t stop) {
  std::size_t node = 0;
  for (const char c : stops_[stop]) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (!nodes_[node].next.empty() && nodes_[node].next.back().first == byte) {
      node = nodes_[node].next.back().second;
      continue;
    }
    const std::size_t made = nodes_.size();
    nodes_[node].next.emplace_back(byte, made);
    nodes_.emplace_back();
    nodes_[made].length = nodes_[node].length + 1;
    nodes_[made].owner = stop;
    node = made;
  }
  if (!nodes_[node].stop) nodes_[node].stop = stop;
}

void StopMatcher::link() {
  // Breadth first: a node's fallback is shorter than the node, so it is complete when the node is reached.
  std::vector<std::size_t> queue{0};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const std::size_t parent = queue[i];
    for (const auto& [byte, node] : nodes_[parent].next) {
      if (parent != 0) nodes_[node].fallback = advance(nodes_[parent].fallback, byte);
      if (!nodes_[node].stop) nodes_[node].stop = nodes_[nodes_[node].fallback].stop;
      queue.push_back(node);
    }
  }
}

std::optional<std::size_t> StopMatcher::child(std::size_t node, std::uint8_t byte) const {
  const auto& next = nodes_[node].next;
  const auto found = std::lower_bound(next.begin(), next.end(), byte,
                                      [](const auto& entry, std::uint8_t wanted) { return entry.first < wanted; });
  if (found == next.end() || found->first != byte) return std::nullopt;
  return found->second;
}

std::size_t StopMatcher::advance(std::size_t node, std::uint8_t byte) const {
  for (;;) {
    if (const auto found = child(node, byte)) return *found;
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

StopMatcher::Result StopMatcher::push(std::string_view piece) {
  if (stopped_) return {"", stopped_};
  const std::size_t before = node_;
  std::size_t n_read = 0;
  while (n_read < piece.size() && !stopped_) {
    node_ = advance(node_, static_cast<std::uint8_t>(piece[n_read++]));
    stopped_ = nodes_[node_].stop;
  }
  // The text held back before this piece is a beginning of a stop string, so it need not be stored.
  const std::size_t n_held_before = nodes_[before].length;
  const std::size_t n_unsafe = stopped_ ? stops_[*stopped_].size() : nodes_[node_].length;
  const std::size_t n_safe = n_held_before + n_read - n_unsafe;
  Result result{"", stopped_};
  if (n_held_before > 0) {
    result.text.assign(stops_[nodes_[before].owner], 0, std::min(n_safe, n_held_before));
  }
  if (n_safe > n_held_before) result.text += piece.substr(0, n_safe - n_held_before);
  return result;
}

std::string StopMatcher::finish() {
  std::string held;
  if (!stopped_ && node_ != 0) held.assign(stops_[nodes_[node_].owner], 0, nodes_[node_].length);
  node_ = 0;
  stopped_.reset();
  return held;
}

}  // namespace memoir::engine
