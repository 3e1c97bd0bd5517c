#pragma once

// Caches of ended sequences, for prompts that begin like them.
//
// Threads: the thread that owns MLX's work. Ownership: owns what it is given.

#include <cstddef>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/cache/cache.h"

namespace memoir::engine {

class PrefixStore {
 public:
  struct Restored {
    cache::ModelCache cache;  // at the offset of the tokens that it shares with the prompt
  };

  virtual ~PrefixStore() = default;

  /// A cache that holds a beginning of the prompt, at most all but its last token; nullopt: nothing that helps.
  virtual std::optional<Restored> take(std::span<const TokenId> prompt) = 0;

  /// Keeps a cache, evaluated, that holds these tokens, or drops it. Throws std::invalid_argument if its offset is not
  /// their number.
  virtual void give(std::vector<TokenId> tokens, cache::ModelCache cache) = 0;

  virtual std::size_t bytes() const = 0;
  virtual void clear() = 0;
};

/// Keeps whole caches and hands each to one sequence at a time, which gives it back when it ends: where several want
/// the same at once, the later ones compute. The least recently used go first.
class KeptCaches : public PrefixStore {
 public:
  /// max_bytes 0 keeps nothing.
  explicit KeptCaches(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// The one that shares the most tokens, of those that can go back there. One that would lose more tokens than it
  /// saves is left alone.
  std::optional<Restored> take(std::span<const TokenId> prompt) override;

  /// Replaces those whose tokens begin the new ones; is dropped if its tokens begin another's.
  void give(std::vector<TokenId> tokens, cache::ModelCache cache) override;

  std::size_t bytes() const override { return n_bytes_; }
  void clear() override;
  std::size_t n_caches() const { return entries_.size(); }

 private:
  struct Entry {
    std::vector<TokenId> tokens;
    cache::ModelCache cache;
    std::size_t n_bytes;
  };
  using Place = std::list<Entry>::iterator;

  Place erase(Place place);

  std::size_t max_bytes_;
  std::size_t n_bytes_ = 0;
  std::list<Entry> entries_;  // the most recently given first
};

}  // namespace memoir::engine
