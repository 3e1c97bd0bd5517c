#pragma once

// What the scheduler needs of a model: sequences with caches, and one call that runs a step over several of them. No
// MLX.
//
// Threads: made, used and destroyed on the scheduler's thread. model_runner.h has the real one; tests have a fake.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/cache_cost.h"
#include "memoir/engine/prefix_cache_counts.h"

namespace memoir::engine {

using SequenceId = std::uint64_t;

class StepRunner {
 public:
  /// The next tokens of a sequence, at the positions that follow its offset.
  struct Slice {
    SequenceId sequence;
    std::span<const TokenId> tokens;  // at least one
    bool wants_logits;                // of the last token, with drafts of every token
    bool wants_states = false;        // of every token, behind the final norm; not together with logits
    int n_drafts = 0;                 // the last of the tokens, behind a single other one: keep_drafts() settles them
  };

  /// A sequence that begins, or goes on without the cache that it had.
  struct NewSequence {
    SequenceId id;
    std::span<const TokenId> tokens;      // known of it: the prompt, and what was generated; at least one
    int n_prompt;                         // of them, >= 1
    std::span<const int> turn_ends = {};  // offsets in the prompt where a turn of a chat ends
    std::size_t max_cache_bytes = std::numeric_limits<std::size_t>::max();  // what its cache may take now
    bool is_shared = true;  // false: it begins empty, and nothing of it is kept for others
  };

  virtual ~StepRunner() = default;

  // Constant.
  virtual int n_vocab() const = 0;
  virtual int context() const = 0;  // the most tokens of a sequence
  virtual CacheCost cost() const = 0;
  virtual int max_drafts() const = 0;      // in a slice; 0: it has nothing to draft with
  virtual bool adapts_drafts() const = 0;  // as many as pay; else always as many as are of use

  /// Begins a sequence: with what is kept of its tokens from others, or empty. Returns its offset, at most
  /// tokens.size() - 1.
  virtual int create(const NewSequence& sequence) = 0;

  /// Others may have computed, since this sequence began, what it has still before it. Moves it there if that saves
  /// min_gain tokens at least. Returns its offset, at most tokens.size() - 1.
  virtual int catch_up(const NewSequence& sequence, int min_gain) = 0;

  /// Guesses at what follows `text`, at most n_max (1 to max_drafts()), maybe none. text: what the sequence holds, and
  /// one token more. On a throw the sequence is as before.
  virtual std::vector<TokenId> propose(SequenceId sequence, std::span<const TokenId> text, int n_max) = 0;

  /// Runs all slices, each of another sequence. Returns for each a row of V logits (1 + n_drafts rows, one after the
  /// other), or the states of its tokens likewise, or nothing, as it wants; rows belong to the runner, may be written
  /// to, and live until the next call of run(). On a throw no sequence has moved, except that one whose cache is lost
  /// has offset 0.
  virtual std::vector<std::span<float>> run(std::span<const Slice> slices) = 0;

  /// Of a slice with drafts that was run the token and the first n_drafts of these stay. To be called before anything
  /// else is asked of the sequence but its offset, its bytes and its end, where it then holds none of that slice.
  virtual void keep_drafts(SequenceId sequence, int n_drafts) = 0;

  /// Tokens in the sequence's cache.
  virtual int offset(SequenceId sequence) const = 0;
  virtual std::size_t cache_bytes(SequenceId sequence) const = 0;

  /// Ends the sequence, if there is one, and may keep what it has computed for later ones.
  virtual void retire(SequenceId sequence) noexcept = 0;

  /// Ends the sequence, if there is one, and keeps nothing more of it than is kept already.
  virtual void drop(SequenceId sequence) noexcept = 0;

  /// Of what is kept for later sequences.
  virtual PrefixCacheCounts kept() const = 0;

  /// What is kept, as a JSON object.
  virtual std::string kept_report() = 0;

  /// Drops what is kept and not used by a sequence.
  virtual void clear_kept() = 0;
};

}  // namespace memoir::engine
