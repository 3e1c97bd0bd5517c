#pragma once

// A model's cache together with the tokens that it holds, so that a prompt which repeats them is not computed again.
//
// With a prefix store it also keeps there what it has computed, and begins with what is there where that is more than
// its own cache can go back to: after an edited turn, or a text that it had left.
//
// Invariant between calls: tokens().size() == cache().offset().
// With a ContextShift the context never ends: make_room() drops tokens behind the first ones, from the cache and from
// tokens(), and fitted() drops the same from a prompt that goes on from there.
// Ownership: owns its cache; refers to the model and the store, which must outlive it. Threads: the thread that owns
// MLX's work.

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/cache/kv.h"
#include "memoir/engine/context_shift.h"
#include "memoir/model/model.h"
#include "memoir/prefix/store.h"

namespace memoir::cache {
class Transaction;
}

namespace memoir::engine {

class Session {
 public:
  /// store: may be null; else of this model with these options (make_prefix_store). Throws as Model::make_cache; with a
  /// shift, std::invalid_argument if its numbers are out of range, the options bound the cache's size, there is a store
  /// (rows that were moved are not what computing them would give), or a layer's positions can't shift (the message
  /// names model and kind).
  explicit Session(const model::Model& model, const cache::CacheOptions& options = {}, prefix::Store* store = nullptr,
                   const std::optional<ContextShift>& shift = std::nullopt);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const model::Model& model() const { return model_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  const cache::ModelCache& cache() const { return cache_; }

  /// The most tokens that it holds.
  int context() const { return shift_ ? shift_->context : model_.context(); }

  /// True if tokens are dropped when the context is full.
  bool shifts() const { return shift_.has_value(); }

  /// Says how many tokens it is going to hold (cache::LayerCache::reserve).
  void reserve(int n_tokens) { cache_.reserve(n_tokens); }

  /// With a shift, and no draft open: sees to it that n_tokens more fit, at most context() - keep. Where a window would
  /// see what it has let go, what stays is computed again. On a throw the session is as before, or empty.
  void make_room(int n_tokens);

  /// The prompt as the session can hold it: without what was dropped of a text that it goes on from, and where that is
  /// still more than the context, without as much as make_room() would drop. Without a shift the prompt itself.
  std::vector<TokenId> fitted(std::span<const TokenId> prompt);

  /// Takes over a cache of this model's, from a file for instance, and the tokens that it holds.
  /// Throws std::invalid_argument, the session unchanged, if it has not as many tokens, more than the model's context,
  /// or layers that the model can't use (cache::fitted).
  void adopt(cache::ModelCache cache, std::vector<TokenId> tokens);

  /// Rewinds the cache to the longest beginning that its tokens share with `prompt`, at most all but the prompt's
  /// last token: at least one token has to be computed to get logits. Where the cache can't go there, it is emptied; or
  /// replaced by what the store has, if that is longer.
  /// turn_ends: offsets in the prompt where a chat's turns end, for the store.
  /// lookahead: go so many tokens further back where the prompt leaves the session's tokens (Drafter::lookahead).
  /// companion: of a drafter that is told of what is taken in from now on, for a store that was made for one.
  /// Returns the number of the prompt's tokens that are in the cache now. An open draft is rolled back before.
  int reuse(std::span<const TokenId> prompt, std::span<const int> turn_ends = {}, int lookahead = 0,
            std::shared_ptr<prefix::Companion> companion = nullptr);

  /// Model::forward on the session's cache, with its errors; on a throw the session is as before, or
  /// empty where the cache is. Rows are quantized once there are as many as the options say. With a store, evaluates
  /// what the call before computed of a prompt.
  mlx::core::array forward(std::span<const TokenId> tokens, model::LogitRows rows);

  /// The same with hidden states, as Model::forward_with_hidden.
  model::Pass forward_with_hidden(std::span<const TokenId> tokens, model::LogitRows rows, model::LogitRows hidden_rows);

  /// The most tokens that a pass may take in for rows to be quantized just at the number that the options say, so that
  /// chunks and drafts change no bits: what is missing to it; once there are as many, or where none is said, any
  /// number.
  int n_until_quantized() const;

  /// What a pass over the beginning of `rest` may take in: n_most tokens, all there are, or as many as
  /// n_until_quantized().
  std::span<const TokenId> first_chunk(std::span<const TokenId> rest, std::size_t n_most) const;

  /// Opens a transaction (cache/transaction.h) over the next n_max tokens at most, with its errors.
  void begin_draft(int n_max);
  bool has_draft() const { return draft_ != nullptr; }

  /// Tokens taken in since then; 0 if none is open.
  int n_drafted() const;

  /// Keeps the first n_tokens of them. Throws std::invalid_argument, the draft still open, if there are not so many or
  /// none is open.
  void commit_draft(int n_tokens);

  /// Gives back the memory that was held for drafts that have been committed: for a moment that has time for it, as
  /// when a pass is computed.
  void let_go_of_drafts() noexcept;

  /// As if the draft had not been; nothing if none is open.
  void roll_back_draft() noexcept;

 private:
  void record_pass() noexcept;
  template <typename Run>
  auto take_in(std::span<const TokenId> tokens, const Run& run);
  void check_shift() const;
  void drop(int n_tokens);
  void begin_anew();
  void quantize_if_due();
  bool goes_on(std::span<const TokenId> prompt) const;

  const model::Model& model_;
  cache::CacheOptions options_;
  std::optional<ContextShift> shift_;
  cache::ModelCache cache_;
  std::vector<TokenId> tokens_;
  prefix::Store* store_;
  prefix::Lease lease_;
  bool has_pass_ = false;         // which the store was told of, and has not recorded
  std::vector<TokenId> dropped_;  // all that stood between the kept tokens and those behind them
  std::unique_ptr<cache::Transaction> draft_;
  std::unique_ptr<cache::Transaction> ended_draft_;  // the last one, with what it held
  std::size_t n_before_draft_ = 0;                   // tokens
};

}  // namespace memoir::engine
