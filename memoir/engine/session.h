#pragma once

// A model's cache together with the tokens that it holds, so that a prompt which repeats them is not computed again.
//
// Invariant between calls: tokens().size() == cache().offset().
// Ownership: owns its cache; refers to the model, which must outlive it. Threads: the thread that owns MLX's work.

#include <mlx/array.h>

#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/cache/kv.h"
#include "memoir/model/model.h"

namespace memoir::engine {

class Session {
 public:
  /// Throws as Model::make_cache.
  explicit Session(const model::Model& model, const cache::CacheOptions& options = {});

  const model::Model& model() const { return model_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  const cache::ModelCache& cache() const { return cache_; }

  /// Rewinds the cache to the longest beginning that its tokens share with `prompt`, at most all but the prompt's
  /// last token: at least one token has to be computed to get logits. Where the cache can't go there, it is emptied.
  /// Returns the number of the prompt's tokens that are in the cache now.
  int reuse(std::span<const TokenId> prompt);

  /// Model::forward on the session's cache, with its errors; on a throw the session is as before, or
  /// empty where the cache is. Rows are quantized once there are as many as the options say.
  mlx::core::array forward(std::span<const TokenId> tokens, model::LogitRows rows);

 private:
  const model::Model& model_;
  cache::CacheOptions options_;
  cache::ModelCache cache_;
  std::vector<TokenId> tokens_;
};

}  // namespace memoir::engine
