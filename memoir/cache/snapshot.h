#pragma once

// Paged-out state of one layer, to be restored later into a cache of the same kind.
//
// Ownership: whoever holds the unique_ptr. What is written to the cache later never shows in a snapshot: a lazy one
// shares the cache's rows until they are about to be overwritten, and is given a copy then.
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

  /// The earliest offset e such that a cache can be restored with this snapshot to every offset of [e, to()], whatever
  /// rows it holds itself. A flat cache must reach from() for that.
  virtual int earliest() const { return to(); }

  /// Bytes of array data that are held for this snapshot alone: 0 while it is lazy.
  virtual std::size_t size_bytes() const = 0;

  /// True while the rows are still those of the cache that it was taken of.
  virtual bool is_lazy() const { return false; }

  /// Copies the rows of a lazy one out now; the cache's hook is called. Afterwards all arrays are evaluated.
  virtual void materialize() {}
};

/// The two halves of a split; either may be null.
struct SnapshotPair {
  std::unique_ptr<Snapshot> parent;
  std::unique_ptr<Snapshot> child;
};

}  // namespace memoir::cache
