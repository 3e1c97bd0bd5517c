#pragma once

// Kinds of models, as the prefix cache sees them: what a position's rows and a checkpoint take, how far a checkpoint
// can go back, what computing costs. And the payloads that stand for their state in the simulator's trie: sizes, no
// content.
//
// Threads: plain values and functions.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "memoir/prefix/eviction.h"
#include "memoir/prefix/policy.h"
#include "memoir/prefix/trie.h"

namespace memoir::prefix_sim {

struct Model {
  std::string_view name;
  std::string_view like;           // the model whose sizes these are
  std::size_t row_bytes = 0;       // of a position, all flat layers
  std::size_t ring_row_bytes = 0;  // of a position, all layers with a window
  int window = 0;
  int slack = 0;                // how many tokens a full ring can go back
  std::size_t state_bytes = 0;  // of all recurrent layers
  prefix::RecomputeCost cost;   // in FLOPs

  prefix::Needs needs() const { return {row_bytes > 0, ring_row_bytes + state_bytes > 0}; }

  /// What the policy is told: a checkpoint's bytes once rings are full.
  prefix::StateSize state_size() const;

  /// Of a checkpoint at that offset: a ring that is not full yet is smaller.
  std::size_t checkpoint_bytes(int offset) const;

  /// How far it can go back: not at all with a recurrent state, to 1 while nothing has left the window.
  int n_rewind(int offset) const;
};

/// "flat", "window", "hybrid" and "recurrent".
std::span<const Model> models();

/// Rows of [from, to); a cut or a join copies nothing that is counted twice.
std::unique_ptr<prefix::Rows> make_rows(const Model& model, int from, int to);

std::unique_ptr<prefix::Checkpoint> make_checkpoint(const Model& model, int offset);

}  // namespace memoir::prefix_sim
