#pragma once

// Replays a trace through the trie, a rule for where checkpoints lie and a rule for what goes, within a budget.
//
// Schemes:
//   memoir  policy.h and eviction.h, as the store uses them
//   lru     the same checkpoints; what goes is what was used longest ago, and what lies above a hit counts as used
//   fixed   ollama's MLX runner: checkpoints each 8192 tokens, 4 before a prompt's end, where a match went beyond what
//           could be restored, and at an answer's end. Nodes with one child at most go, the one used longest ago first:
//           leaves whole, of others the checkpoint
//   blocks  vLLM's: hits end at multiples of a block, 528 tokens where a model needs checkpoints (attention's block is
//           made as large as a state; users see 528 to 2048) and 16 where not. Checkpoints at the last block's end
//           within the prompt, where a match went beyond what could be restored, and at the last block's end of the
//           answer. LRU
//
// The oracle (oracle() below) knows the future and has no budget: it keeps all rows, and has a checkpoint exactly where
// a later prompt leaves what was computed before. No cache restores more. Its bytes are what budgets are told in parts
// of.
//
// Requests run one after the other in the order of their arrival. Threads: pure functions; two replays share nothing.

#include <cstddef>
#include <functional>
#include <string_view>

#include "benches/prefix_sim/models.h"
#include "benches/prefix_sim/trace.h"

namespace memoir::prefix_sim {

enum class Scheme { kMemoir, kLru, kFixed, kBlocks };
inline constexpr Scheme kSchemes[] = {Scheme::kMemoir, Scheme::kLru, Scheme::kFixed, Scheme::kBlocks};

/// "memoir", "lru", "fixed" or "blocks".
std::string_view scheme_name(Scheme scheme);

struct Score {
  std::size_t n_requests = 0;
  std::size_t n_tokens = 0;    // of all prompts
  std::size_t n_restored = 0;  // of those, not computed
  double recomputed = 0;       // FLOPs of the prompts' other tokens
  std::size_t most_bytes = 0;  // held at once, behind a request
  double hit_rate() const { return n_tokens > 0 ? static_cast<double>(n_restored) / static_cast<double>(n_tokens) : 0; }
};

struct ReplayOptions {
  Scheme scheme = Scheme::kMemoir;
  std::size_t budget = 0;                                         // bytes
  std::function<void(const prefix::Trie&)> after_each = nullptr;  // called behind every request
};

/// Throws std::logic_error if the trie ever holds more than the budget.
Score replay(const Trace& trace, const Model& model, const ReplayOptions& options);

Score oracle(const Trace& trace, const Model& model);

}  // namespace memoir::prefix_sim
