#pragma once

// Positions that may have to be taken back: drafts are fed to a model as any tokens are, and then exactly those that
// turned out right are kept. Over every layer of a ModelCache at once, whatever its kind:
//   keys and values  an index move: a flat cache takes back any number, a ring or chunk keeps kSlack rows for that
//   recurrent        the state after each forward pass is held while the transaction is open; inside a pass that after
//                    each position (the kernels hand them out) or the pass's inputs, to run the kernels once more
//   slots            one position: the slots as they were at the begin are held
//   composite        all children or none; a layer without a cache has nothing to keep
// So keeping all positions copies and computes nothing, nor does taking all back. Keeping some of a pass's takes a
// compact copy of a recurrent state where that is a part of its kernel's result, or runs the recurrent kernels over
// them, as a part of the next pass's graph: the same bits.
//
// While one is open the cache is used as always (forward, snapshot, view, copy), and rewinds as far as the begin.
// Layers refuse a restore from a snapshot and set_state(); free() ends their part.
//
// What was held (a recurrent layer's states and inputs) stays with the Transaction when it ends, and goes with it: to
// give memory back takes longer than begin and commit, and can wait until the next pass has been scheduled.
//
// Ownership: refers to the cache, which must outlive it; neither may move. Threads: as the cache.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/cache.h"

namespace memoir::cache {

class Transaction {
 public:
  /// Which layer can't, and the name of its kind.
  struct Refusal {
    std::size_t layer;
    std::string kind;
  };

  /// What begin() would refuse for want of a kind's ability; nullopt if every layer can take back n_max positions.
  static std::optional<Refusal> refusal(const ModelCache& cache, int n_max);

  /// Opens one on the live cache, for at most n_max positions: writing more throws std::invalid_argument. `inside`: for
  /// recurrent layers; what is cheaper is right but for tests and measurements.
  /// Throws std::invalid_argument, the cache unchanged, if n_max < 1, one is open already (they don't nest), or a layer
  /// is of a kind that can't (the message names layer and kind).
  static Transaction begin(ModelCache& cache, int n_max, InsideStates inside = InsideStates::kCheaper);

  /// The same on a copy: the live cache is not touched until commit() moves the result into it. The first write to the
  /// copy copies the live buffers. References to the live cache's layers are void after the commit.
  static Transaction begin_isolated(ModelCache& cache, int n_max, InsideStates inside = InsideStates::kCheaper);

  /// Rolls back what has not been committed.
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  /// What to run forward passes on: the live cache, or the copy.
  ModelCache& cache() { return copy_ ? *copy_ : live_; }

  /// Positions that every layer has written since the begin.
  int n_written() const;

  bool is_open() const { return is_open_; }

  /// Keeps exactly the first n positions written since the begin, and ends the transaction. Also where a forward pass
  /// failed and left some layers further than others.
  /// Throws std::invalid_argument, nothing changed, if it has ended, n is negative or above n_written(), a layer's part
  /// has ended (free), or (isolated) the live cache is not at the offset of the begin any more.
  void commit(int n);

  /// Back to the begin, and ends the transaction; nothing if it has ended.
  void roll_back() noexcept;

 private:
  enum class Target { kLive, kCopy };
  Transaction(ModelCache& cache, int n_max, InsideStates inside, Target target);

  const ModelCache& subject() const { return copy_ ? *copy_ : live_; }

  ModelCache& live_;
  std::optional<ModelCache> copy_;
  std::vector<LayerCache::Held> held_;
  int begin_;
  bool is_open_ = true;
};

}  // namespace memoir::cache
