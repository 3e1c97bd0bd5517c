#pragma once

// A second place for what the store keeps in memory: larger, slower, and lasting, a directory for instance. The store
// tells it of all that is new, and asks it for what memory does not have.
//
// What is passed either way is evaluated and never changes, so that a tier may hold it and write it later, on another
// thread. Keys are those of a whole prefix, from position 0 on; what belongs to another model or another format of
// caches must never be given back: that is for the tier to tell apart.
// Threads: called on the thread that owns MLX's work. Errors: what these functions throw is counted by the store and
// costs the sequence nothing but what was not found.

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "memoir/prefix/checkpoint_rule.h"
#include "memoir/prefix/keys.h"
#include "memoir/prefix/row_blocks.h"
#include "memoir/prefix/state_checkpoint.h"

namespace memoir::prefix {

class Tier {
 public:
  virtual ~Tier() = default;

  /// Whether keep() of rows that end with these keys would do anything: they have to be copied for it.
  virtual bool wants_rows(std::span<const Key>) { return true; }

  /// Rows of the last of the keys, from a multiple of kRowBlock on: a whole block, or what lies before a checkpoint or
  /// the end of a sequence.
  virtual void keep(std::span<const Key> keys, std::shared_ptr<const RowBlock> block) = 0;

  /// The state of all other layers behind the keys.
  virtual void keep(std::span<const Key> keys, std::shared_ptr<const StateCheckpoint::States> states,
                    CheckpointRule rule) = 0;

  struct FoundCheckpoint {
    std::unique_ptr<StateCheckpoint> state;
    CheckpointRule rule;
  };
  struct Found {
    RowBlocks::Blocks blocks;                  // that meet, the first beginning at or before n_rows
    std::vector<FoundCheckpoint> checkpoints;  // ascending, each at a beginning of the keys
  };

  /// What it has of these keys. n_rows: how many have their rows in memory; restorable: the deepest offset that a
  /// sequence could begin with from memory alone, which what is found should pass.
  virtual Found find(std::span<const Key> keys, int n_rows, int restorable) = 0;

  /// Of all that it has.
  virtual std::uint64_t size_bytes() const { return 0; }

  /// What it has, in numbers: a JSON object.
  virtual nlohmann::json report() const { return nlohmann::json::object(); }
};

}  // namespace memoir::prefix
