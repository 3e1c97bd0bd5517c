#pragma once

// The trie in words and numbers, for logs and the server's /cache.

#include <nlohmann/json.hpp>

#include "memoir/prefix/eviction.h"
#include "memoir/prefix/trie.h"

namespace memoir::prefix {

struct ReportOptions {
  std::size_t max_nodes = 1000;
  std::size_t max_keys = 0;  // of each node's edge
};

/// {"lookups", "hits", "tokens_reused", "tokens_evaluated", "bytes": {"rows", "checkpoints", "keys", "total"},
///  "nodes", "pins", "rules": {name: {"placed", "used"}},
///  "evicted": {"checkpoints", "leaves", "trims", "tokens", "bytes"}}
nlohmann::json report_totals(const Trie& trie, const Eviction& eviction);

/// The nodes in visit()'s order, flat (a nested object would be as deep as the trie): [{"id", "parent" (0: the root),
/// "from", "to", "row_bytes", "checkpoint_bytes" and "rule" (if there is one), "pins", "hits", "age" (uses and new
/// nodes since its last use), "score" (if it may be evicted), "children", "keys" (if max_keys)}].
nlohmann::json report_nodes(Trie& trie, const Eviction& eviction, const ReportOptions& options = {});

}  // namespace memoir::prefix
