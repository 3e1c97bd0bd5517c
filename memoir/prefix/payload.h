#pragma once

// What the trie keeps for the cache layer without knowing what it is: rows, which belong to an edge and are cut and
// joined with it, and checkpoints, which belong to the end of an edge.
//
// Which is which, by the kind of cache: a flat cache keeps one row for each position: Rows. A ring, a chunked cache and
// a recurrent state are whole at one offset: Checkpoint. One payload holds the state of all layers of its sort.
//
// Ownership: the trie owns what it is given. Threads: as the trie.

#include <cstddef>
#include <memory>

namespace memoir::prefix {

class Payload {
 public:
  virtual ~Payload() = default;

  /// Bytes held. May grow while the trie holds it (a lazy snapshot that gets rows of its own): Trie::recount.
  virtual std::size_t size_bytes() const = 0;

  /// What the bytes lie in. Payloads that answer the same share one allocation, report its whole size, and are counted
  /// once. The answer changes only within the functions below that are not const.
  virtual const void* storage() const { return this; }
};

/// The rows of the positions [from, to), from < to.
class Rows : public Payload {
 public:
  virtual int from() const = 0;
  virtual int to() const = 0;

  /// Keeps [from, at) and returns [at, to), from < at < to. The two may share their storage.
  /// Whatever it throws, nothing has changed then.
  virtual std::unique_ptr<Rows> split_off(int at) = 0;

  /// Appends `next`, which begins at to() and holds nothing of use afterwards. Returns false, both unchanged, if that
  /// can't be done; then the two stay side by side.
  virtual bool append(Rows& next) noexcept = 0;

  /// Drops [at, to), from < at < to, and gives its memory back, which may take a copy of the rest.
  /// Whatever it throws, nothing has changed then.
  virtual void trim(int at) = 0;
};

/// State as it is after `offset` tokens, offset >= 1.
class Checkpoint : public Payload {
 public:
  virtual int offset() const = 0;

  /// How many tokens it can take back by itself: the slack of a ring, 0 for a recurrent state.
  virtual int n_rewind() const { return 0; }

  /// The same state at an earlier offset, offset() - n_rewind() <= at < offset(), in the same storage; null if there is
  /// no such thing. Asked when an edge is split at `at`.
  virtual std::unique_ptr<Checkpoint> earlier(int at) const;
};

inline std::unique_ptr<Checkpoint> Checkpoint::earlier(int) const {
  return nullptr;
}

}  // namespace memoir::prefix
