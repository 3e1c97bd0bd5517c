#pragma once

// A model's cache together with the tokens that it holds, so that a prompt which repeats them is not computed again.
//
// With a prefix store it also keeps there what it has computed, and begins with what is there where that is more than
// its own cache can go back to: after an edited turn, or a text that it had left.
//
// Invariant between calls: tokens().size() == cache().offset().
// Ownership: owns its cache; refers to the model and the store, which must outlive it. Threads: the thread that owns
// MLX's work.

#include <mlx/array.h>

#include <memory>
#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/cache/kv.h"
#include "memoir/model/model.h"
#include "memoir/prefix/store.h"

namespace memoir::cache {
class Transaction;
}

namespace memoir::engine {

class Session {
 public:
  /// store: may be null; else of this model with these options (make_prefix_store). Throws as Model::make_cache.
  explicit Session(const model::Model& model, const cache::CacheOptions& options = {}, prefix::Store* store = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const model::Model& model() const { return model_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  const cache::ModelCache& cache() const { return cache_; }

  /// Takes over a cache of this model's, from a file for instance, and the tokens that it holds.
  /// Throws std::invalid_argument, the session unchanged, if it has not as many tokens, more than the model's context,
  /// or layers that the model can't use (cache::fitted).
  void adopt(cache::ModelCache cache, std::vector<TokenId> tokens);

  /// Rewinds the cache to the longest beginning that its tokens share with `prompt`, at most all but the prompt's
  /// last token: at least one token has to be computed to get logits. Where the cache can't go there, it is emptied; or
  /// replaced by what the store has, if that is longer.
  /// turn_ends: offsets in the prompt where a chat's turns end, for the store.
  /// lookahead: go so many tokens further back where the prompt leaves the session's tokens (Drafter::lookahead).
  /// Returns the number of the prompt's tokens that are in the cache now. An open draft is rolled back before.
  int reuse(std::span<const TokenId> prompt, std::span<const int> turn_ends = {}, int lookahead = 0);

  /// Model::forward on the session's cache, with its errors; on a throw the session is as before, or
  /// empty where the cache is. Rows are quantized once there are as many as the options say. With a store, evaluates
  /// what the call before computed of a prompt.
  mlx::core::array forward(std::span<const TokenId> tokens, model::LogitRows rows);

  /// The same with hidden states, as Model::forward_with_hidden.
  model::Pass forward_with_hidden(std::span<const TokenId> tokens, model::LogitRows rows, model::LogitRows hidden_rows);

  /// Opens a transaction (cache/transaction.h) over the next n_max tokens at most, with its errors.
  void begin_draft(int n_max);
  bool has_draft() const { return draft_ != nullptr; }

  /// Tokens taken in since then; 0 if none is open.
  int n_drafted() const;

  /// Keeps the first n_tokens of them. Throws std::invalid_argument, the draft still open, if there are not so many or
  /// none is open.
  void commit_draft(int n_tokens);

  /// As if the draft had not been; nothing if none is open.
  void roll_back_draft() noexcept;

 private:
  void record_pass() noexcept;
  template <typename Run>
  auto take_in(std::span<const TokenId> tokens, const Run& run);

  const model::Model& model_;
  cache::CacheOptions options_;
  cache::ModelCache cache_;
  std::vector<TokenId> tokens_;
  prefix::Store* store_;
  prefix::Lease lease_;
  bool has_pass_ = false;  // which the store was told of, and has not recorded
  std::unique_ptr<cache::Transaction> draft_;
  std::size_t n_before_draft_ = 0;  // tokens
};

}  // namespace memoir::engine
