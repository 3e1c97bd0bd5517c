#pragma once

// Paged-out state of one layer, to be restored later into a cache of the same kind.
//
// Ownership: whoever holds the unique_ptr; a snapshot owns its arrays, and what is
// written to the cache later never shows in it.
// Threads: as the cache that made it.

#include <cstddef>
#include <memory>

namespace memoir::cache {

class Snapshot {
 public:
  virtual ~Snapshot() = default;

  /// The positions covered: [from, to), from < to.
  virtual int from() const = 0;
  virtual int to() const = 0;

  /// Bytes of array data held.
  virtual std::size_t size_bytes() const = 0;
};

/// The two halves of a split; either may be null.
struct SnapshotPair {
  std::unique_ptr<Snapshot> parent;
  std::unique_ptr<Snapshot> child;
};

}  // namespace memoir::cache
