#pragma once

// The prefix cache of one model in one cache format: what has been computed for any prompt, for every later one that
// begins alike. A trie (trie.h) over tokens, with the rows of flat layers (row_blocks.h) and checkpoints of all others
// (state_checkpoint.h), within a budget of bytes.
//
// A sequence that runs has a Lease, its place in the store, beside its own ModelCache:
//
//   Lease lease;
//   ModelCache cache = store.begin(lease, prompt);   // restored as far as can be, or empty
//   for each forward pass:
//     store.prepare(lease, cache, tokens);           // asks for the checkpoints that are due in it
//     ... forward, evaluate ...                      // should that throw: store.cancel_pass(lease, cache)
//     store.record(lease, cache);                    // keeps what is new
//   store.end(lease, cache);                         // keeps the rest; or just let the lease go
//
// Where a drafter keeps something of a text (companion.h), the store may be made for that too. Then it is kept and
// restored with the cache, at the same offsets, and of a sequence whose companion lacks something nothing is kept.
//
// Any number of sequences may run, also from one prefix: each restores into buffers of its own, in one copy, and each
// row is copied into the store once.
//
// Invariants:
//   1. A restored cache holds exactly what computing its tokens would have made, or begin() gives a shorter one. (With
//      narrow_rows its rows are only near to that.)
//   2. size_bytes() <= max_bytes: what finds no room beside what is pinned is not kept.
// Keeping state never fails a sequence: errors on the way are counted and what could not be kept is computed again.
// Threads: the thread that owns MLX's work. A lease may outlive the store, and is of no use then.

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/cache/cache.h"
#include "memoir/prefix/companion.h"
#include "memoir/prefix/eviction.h"
#include "memoir/prefix/narrow_rows.h"
#include "memoir/prefix/policy.h"
#include "memoir/prefix/report.h"
#include "memoir/prefix/row_blocks.h"
#include "memoir/prefix/state_checkpoint.h"
#include "memoir/prefix/store_format.h"
#include "memoir/prefix/tail_habit.h"
#include "memoir/prefix/tier.h"
#include "memoir/prefix/trie.h"

namespace memoir::prefix {

struct StoreOptions {
  std::size_t max_bytes = 0;  // 0: nothing is kept, and nothing is spent on it
  PolicyOptions policy = {};
  RecomputeCost cost = {};
  PerRule<double> prior = EvictionOptions{}.prior;
  StoreFormat format = StoreFormat::kAsComputed;         // for engine::make_prefix_store,
  std::optional<NarrowRows> narrow_rows = std::nullopt;  // which sets this by it: rows are kept as codes
  int n_companion_layers = 0;  // the last ones of what make_cache makes are a companion's: 0, or a KVCache and a state
};

struct StoreCounters {
  std::uint64_t n_failed_restores = 0;  // a shorter hit instead
  std::uint64_t n_failed_inserts = 0;   // something threw
  std::uint64_t n_without_room = 0;     // what is pinned left none
  std::uint64_t n_not_worth_it = 0;     // checkpoints for which something better would have had to go
  std::uint64_t n_failed_tier_calls = 0;
};

/// What is known of a sequence when it begins.
struct KnownTokens {
  std::span<const TokenId> tokens;  // at least one: the prompt, and after a break also what was generated of its answer
  int n_prompt = 0;                 // how many of them are the prompt
  std::span<const int> turn_ends = {};  // of the prompt, ascending: where a chat's turns end
  std::size_t max_cache_bytes = std::numeric_limits<std::size_t>::max();  // what the cache may take now
  std::shared_ptr<Companion> companion = nullptr;  // told of what the model takes in, before record() and end()
};

/// A running sequence's place in the store: what it has there is not dropped.
class Lease {
 public:
  /// Where the sequence began: tokens that were restored.
  int restored() const { return restored_; }

  /// Up to where its tokens are in the store.
  int stored() const { return pin_.position().offset; }

 private:
  friend class Store;

  std::vector<Key> keys_;  // of all tokens fed, and those known at the beginning
  std::shared_ptr<Companion> companion_;
  Pin pin_;
  std::vector<PlannedCheckpoint> plan_;
  std::vector<PlannedCheckpoint> due_;  // in the pass under way
  Capture capture_;
  int n_prompt_ = 0;
  int restored_ = 0;
  int last_checkpoint_ = 0;
  int pass_from_ = 0;
};

class Store {
 public:
  /// make_cache: an empty cache of the model, with the companion's layers behind its own. size: state_size() of one
  /// that has taken in a token, and with narrow_rows their row_bytes(). tier: what is asked where memory ends; may be
  /// null. Throws as checkpoint_spacing() and Eviction.
  Store(std::function<cache::ModelCache()> make_cache, const StateSize& size, const StoreOptions& options,
        std::unique_ptr<Tier> tier = nullptr);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// A cache, evaluated, that holds the longest beginning of the tokens that can be restored, at most all but the last;
  /// or an empty one. It has room for all of the tokens. The companion holds the same, or is left alone. Throws
  /// std::invalid_argument if there are no tokens or n_prompt is not from 1 to their number, and what make_cache
  /// throws.
  cache::ModelCache begin(Lease& lease, const KnownTokens& known);

  /// Begins a sequence with a cache that holds the first tokens of `known` already, all but the last at most (all, if
  /// nothing is to be computed). Throws std::invalid_argument as begin(), and if it holds more tokens than there are.
  void follow(Lease& lease, const cache::ModelCache& cache, const KnownTokens& known);

  /// For a sequence that has still a prompt to compute: others may have computed the same since it began. If begin()
  /// would restore at least min_gain tokens more than the cache holds, it does: cache and lease are replaced. Returns
  /// whether that was so; if not, both are as they were.
  bool catch_up(Lease& lease, cache::ModelCache& cache, const KnownTokens& known, int min_gain);

  /// Brings what the tier has of the tokens into memory, as begin() does.
  void fetch(std::span<const TokenId> tokens);

  /// How many tokens begin() would restore from memory; changes nothing.
  int restorable(std::span<const TokenId> tokens);

  /// Tells of the tokens that the next forward pass feeds to the cache.
  void prepare(Lease& lease, const cache::ModelCache& cache, std::span<const TokenId> tokens);

  /// After the pass, evaluated. Keeps the checkpoints that were due, and of a prompt also the rows.
  void record(Lease& lease, const cache::ModelCache& cache) noexcept;

  /// Instead of record(), if the pass failed; the cache is where it was, or lost.
  void cancel_pass(Lease& lease, const cache::ModelCache& cache) noexcept;

  /// The sequence ends, or pauses. Keeps what it has computed and is not kept yet, with a checkpoint at its end where
  /// that is worth one. The cache holds the tokens it was told of, or a beginning of them.
  void end(Lease& lease, const cache::ModelCache& cache) noexcept;

  /// Drops all that no lease pins.
  void clear();

  std::size_t size_bytes() const { return trie_.size_bytes(); }
  std::size_t max_bytes() const { return options_.max_bytes; }
  std::uint64_t tier_bytes() const { return tier_ ? tier_->size_bytes() : 0; }
  int spacing() const { return spacing_; }
  const StoreCounters& counters() const { return counters_; }
  const EvictionCounters& evicted() const { return eviction_.counters(); }
  const Trie& trie() const { return trie_; }

  /// {"max_bytes", "failed": {"restores", "inserts", "without_room", "not_worth_it", "tier"}, "tier":
  /// Tier::report() if there is one, and what report_totals() has; "tree":
  /// report_nodes()}.
  nlohmann::json report(const ReportOptions& options = {});

 private:
  bool is_on() const { return options_.max_bytes > 0; }
  cache::ModelCache begin_with_companion(Lease& lease, const KnownTokens& known);
  cache::ModelCache without_companion(cache::ModelCache all, const KnownTokens& known);
  CacheParts parts_of_both(const Lease& lease, const cache::ModelCache& cache) const;
  std::optional<cache::ModelCache> restore(const Match& match, std::size_t n_tokens) const;
  bool has_all(const Lease& lease, const CacheParts& parts, int to) const;
  void insert(Lease& lease, const CacheParts& parts, int to, std::unique_ptr<StateCheckpoint> checkpoint,
              CheckpointRule rule);
  bool make_room(std::size_t n_bytes, const Newcomer* newcomer = nullptr);
  void open(Lease& lease, const KnownTokens& known) const;
  void settle(Lease& lease, const Match& match, int offset, const KnownTokens& known);
  void go_back(Lease& lease, int offset);
  void tell_tier(std::span<const Key> keys, const CacheParts& parts, int rows_from,
                 const std::shared_ptr<const StateCheckpoint::States>& states, CheckpointRule rule) noexcept;
  void tell_rows(std::span<const Key> keys, const CacheParts& parts, int from, int to);
  void tell_end(std::span<const Key> keys, const CacheParts& parts) noexcept;
  void page_in(std::span<const Key> keys);
  void insert_found(Pin& place, std::span<const Key> keys, std::unique_ptr<Rows> rows,
                    Tier::FoundCheckpoint checkpoint);

  std::function<cache::ModelCache()> make_cache_;
  StoreOptions options_;
  std::unique_ptr<Tier> tier_;  // may be null
  StateSize size_;
  std::size_t n_flat_;
  Needs needs_;
  int spacing_;
  Trie trie_;
  Eviction eviction_;
  TailHabit habit_;
  StoreCounters counters_;
};

}  // namespace memoir::prefix
