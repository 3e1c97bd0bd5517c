#pragma once

// What the scheduler needs of a model: sequences with caches, and one call that runs a step over several of them. No
// MLX.
//
// Threads: made, used and destroyed on the scheduler's thread. model_runner.h has the real one; tests have a fake.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/cache_cost.h"

namespace memoir::engine {

using SequenceId = std::uint64_t;

class StepRunner {
 public:
  /// The next tokens of a sequence, at the positions that follow its offset.
  struct Slice {
    SequenceId sequence;
    std::span<const TokenId> tokens;  // at least one
    bool wants_logits;                // of the last token
  };

  virtual ~StepRunner() = default;

  // Constant.
  virtual int n_vocab() const = 0;
  virtual int context() const = 0;  // the most tokens of a sequence
  virtual CacheCost cost() const = 0;

  /// Begins a sequence for these tokens: with what is kept of them from earlier ones, or empty. Returns its offset, at
  /// most tokens.size() - 1. max_cache_bytes: what the cache may take now.
  virtual int create(SequenceId sequence, std::span<const TokenId> tokens, std::size_t max_cache_bytes) = 0;

  /// Runs all slices, each of another sequence. Returns for each a row of V logits, empty where none were wanted; rows
  /// belong to the runner, may be written to, and live until the next call of run().
  /// On a throw no sequence has moved, except that one whose cache is lost has offset 0.
  virtual std::vector<std::span<float>> run(std::span<const Slice> slices) = 0;

  /// Tokens in the sequence's cache.
  virtual int offset(SequenceId sequence) const = 0;
  virtual std::size_t cache_bytes(SequenceId sequence) const = 0;

  /// Ends the sequence and may keep its cache for later ones. tokens: those in the cache, offset() of them.
  /// On a throw the sequence is dropped.
  virtual void retire(SequenceId sequence, std::vector<TokenId> tokens) = 0;

  /// Ends the sequence, if there is one, and keeps nothing.
  virtual void drop(SequenceId sequence) noexcept = 0;

  /// Bytes kept for later sequences.
  virtual std::size_t kept_bytes() const = 0;
};

}  // namespace memoir::engine
