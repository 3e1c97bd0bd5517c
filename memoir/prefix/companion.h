#pragma once

// What a drafter keeps of a text beside the model's cache, for the store to keep and restore together with that: a row
// for each token and a state. Row i may depend on the tokens up to i, and on nothing behind; the state after n tokens
// on these n.
//
// Threads: the thread that owns MLX's work.

#include <memory>
#include <span>

#include "memoir/base/types.h"
#include "memoir/cache/cache.h"
#include "memoir/cache/kv_snapshot.h"
#include "memoir/prefix/keys.h"

namespace memoir::prefix {

class Companion {
 public:
  virtual ~Companion() = default;

  /// Computes what is missing of the rows of these tokens. False if it was not told of them all, or of others: then
  /// nothing of it can be kept.
  virtual bool settle(std::span<const Key> keys) = 0;

  /// The rows [from, to) of what was settled, 0 <= from < to, with arrays of their own. Lazy.
  virtual std::unique_ptr<cache::KVSnapshot> rows(int from, int to) const = 0;

  /// Null where it is not known any more.
  virtual std::unique_ptr<cache::Snapshot> state_at(int offset) const = 0;

  /// The text begins with these tokens, at least one. kept: one of CompanionCaches::make (companion_caches.h) with
  /// their rows and state. Throws std::bad_alloc; then it knows of no text.
  virtual void restore(std::span<const TokenId> tokens, const cache::ModelCache& kept) = 0;
};

}  // namespace memoir::prefix
