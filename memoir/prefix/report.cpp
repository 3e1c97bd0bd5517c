#include "memoir/prefix/report.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace memoir::prefix {
namespace {

nlohmann::json report_node(const Trie& trie, const Eviction& eviction, const Node& node, std::size_t max_keys) {
  nlohmann::json result = {
      {"id", node.id()},
      {"parent", node.parent()->id()},
      {"from", node.from()},
      {"to", node.to()},
      {"row_bytes", node.rows() != nullptr ? trie.ledger().share_bytes(*node.rows()) : 0},
      {"pins", node.n_pins()},
      {"hits", node.n_hits()},
      {"age", trie.n_uses() - node.last_use()},
      {"children", node.children().size()},
  };
  if (node.checkpoint() != nullptr) {
    result["checkpoint_bytes"] = trie.ledger().share_bytes(*node.checkpoint());
    result["rule"] = std::string(checkpoint_rule_name(node.rule()));
  }
  const auto candidate = eviction.candidate(trie, node);
  if (candidate && std::isfinite(candidate->score)) result["score"] = candidate->score;
  if (max_keys > 0) {
    const auto keys = node.keys().first(std::min(max_keys, node.keys().size()));
    result["keys"] = std::vector<Key>(keys.begin(), keys.end());
  }
  return result;
}

}  // namespace

nlohmann::json report_totals(const Trie& trie, const Eviction& eviction) {
  const TrieCounters& counters = trie.counters();
  const EvictionCounters& evicted = eviction.counters();
  nlohmann::json rules = nlohmann::json::object();
  for (std::size_t i = 0; i < kCheckpointRules; ++i) {
    const std::string name(checkpoint_rule_name(static_cast<CheckpointRule>(i)));
    rules[name] = {{"placed", counters.n_placed[i]}, {"used", counters.n_used[i]}};
  }
  return {
      {"lookups", counters.n_lookups},
      {"hits", counters.n_hits},
      {"tokens_reused", counters.n_keys_reused},
      {"tokens_evaluated", counters.n_keys_evaluated},
      {"bytes",
       {{"rows", trie.rows_bytes()},
        {"checkpoints", trie.checkpoint_bytes()},
        {"keys", trie.key_bytes()},
        {"total", trie.size_bytes()}}},
      {"nodes", trie.n_nodes()},
      {"pins", trie.n_open_pins()},
      {"rules", rules},
      {"evicted",
       {{"checkpoints", evicted.n_checkpoints},
        {"leaves", evicted.n_leaves},
        {"trims", evicted.n_trims},
        {"tokens", evicted.n_keys},
        {"bytes", evicted.n_bytes}}},
  };
}

nlohmann::json report_nodes(Trie& trie, const Eviction& eviction, const ReportOptions& options) {
  nlohmann::json nodes = nlohmann::json::array();
  trie.visit([&](Node& node) {
    if (nodes.size() < options.max_nodes) nodes.push_back(report_node(trie, eviction, node, options.max_keys));
  });
  return nodes;
}

}  // namespace memoir::prefix
