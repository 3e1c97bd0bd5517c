#pragma once

// Checkpoint (payload.h) of all parts of a model's cache that can't be kept as rows: one snapshot for each, at one
// offset.
//
// Threads: the thread that owns MLX's work. States never change once they are made, and may be held by others.

#include <memory>
#include <vector>

#include "memoir/cache/snapshot.h"
#include "memoir/prefix/cache_parts.h"
#include "memoir/prefix/payload.h"

namespace memoir::prefix {

class StateCheckpoint final : public Checkpoint {
 public:
  using States = std::vector<std::unique_ptr<cache::Snapshot>>;

  /// One state for each of the other parts, all ending at one offset, at least 1. Evaluates; copies what is lazy.
  explicit StateCheckpoint(States states);

  const States& states() const { return *states_; }
  std::shared_ptr<const States> shared_states() const { return states_; }

  /// Bytes of what the states hold.
  std::size_t size_bytes() const override { return n_bytes_; }
  const void* storage() const override { return states_.get(); }
  int offset() const override { return offset_; }
  int n_rewind() const override { return offset_ - earliest_; }
  std::unique_ptr<Checkpoint> earlier(int at) const override;

 private:
  StateCheckpoint(const StateCheckpoint& other, int at);

  std::shared_ptr<const States> states_;
  std::size_t n_bytes_ = 0;
  int offset_;
  int earliest_;
};

/// Takes checkpoints inside a forward pass. Between begin() and take() the cache may be fed, by one pass, and not
/// rewound.
class Capture {
 public:
  /// Asks for the states at these offsets, ascending and behind the present one.
  void begin(const CacheParts& cache, std::vector<int> offsets);

  /// After the pass: one for each offset; null where a part's state could not be had. The passed arrays need not be
  /// evaluated.
  std::vector<std::unique_ptr<StateCheckpoint>> take(const CacheParts& cache);

  /// Takes nothing.
  void cancel(const CacheParts& cache);

  bool is_empty() const { return offsets_.empty(); }

 private:
  std::vector<int> offsets_;
};

/// The state at the present offset; null if there is none, as at 0.
std::unique_ptr<StateCheckpoint> present_checkpoint(const CacheParts& cache, int offset);

}  // namespace memoir::prefix
