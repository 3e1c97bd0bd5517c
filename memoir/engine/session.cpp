#include "memoir/engine/session.h"

#include <algorithm>

namespace mx = mlx::core;

namespace memoir::engine {

Session::Session(const model::Model& model, const cache::CacheOptions& options)
    : model_(model), options_(options), cache_(model.make_cache(options)) {}

int Session::reuse(std::span<const TokenId> prompt) {
  const auto [mine, theirs] = std::mismatch(tokens_.begin(), tokens_.end(), prompt.begin(), prompt.end());
  const std::size_t n_shared = static_cast<std::size_t>(mine - tokens_.begin());
  const std::size_t n_usable = prompt.empty() ? 0 : std::min(n_shared, prompt.size() - 1);
  if (cache_.rewind(static_cast<int>(n_usable))) {
    tokens_.resize(n_usable);
  } else {
    cache_.free();
    tokens_.clear();
  }
  return static_cast<int>(tokens_.size());
}

mx::array Session::forward(std::span<const TokenId> tokens, model::LogitRows rows) {
  // The tokens first: appending can throw, and must not once the cache has moved.
  const std::size_t n_before = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  try {
    const mx::array logits = model_.forward(tokens, cache_, rows);
    if (options_.quantization) cache_.to_quantized(*options_.quantization, options_.quantize_from);
    return logits;
  } catch (...) {
    tokens_.resize(std::min(n_before, static_cast<std::size_t>(cache_.offset())));
    throw;
  }
}

}  // namespace memoir::engine
