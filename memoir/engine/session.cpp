#include "memoir/engine/session.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/cache/prompt_file.h"
#include "memoir/cache/transaction.h"

namespace mx = mlx::core;

namespace memoir::engine {

Session::Session(const model::Model& model, const cache::CacheOptions& options)
    : model_(model), options_(options), cache_(model.make_cache(options)) {}

Session::~Session() = default;

void Session::adopt(cache::ModelCache cache, std::vector<TokenId> tokens) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument("[engine.adopt] " + what); };
  if (tokens.size() != static_cast<std::size_t>(cache.offset())) {
    refuse(std::to_string(tokens.size()) + " tokens for a cache at offset " + std::to_string(cache.offset()));
  }
  if (cache.offset() > model_.context()) {
    refuse("the cache has " + std::to_string(cache.offset()) + " tokens, more than the model's context of " +
           std::to_string(model_.context()));
  }
  roll_back_draft();
  cache_ = cache::fitted(std::move(cache), model_.make_cache(options_));
  tokens_ = std::move(tokens);
}

int Session::reuse(std::span<const TokenId> prompt) {
  roll_back_draft();
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
    if (options_.quantization && !draft_) cache_.to_quantized(*options_.quantization, options_.quantize_from);
    return logits;
  } catch (...) {
    tokens_.resize(std::min(n_before, static_cast<std::size_t>(cache_.offset())));
    throw;
  }
}

void Session::begin_draft(int n_max) {
  draft_.reset(new cache::Transaction(cache::Transaction::begin(cache_, n_max)));
  n_before_draft_ = tokens_.size();
}

int Session::n_drafted() const {
  return draft_ ? draft_->n_written() : 0;
}

void Session::commit_draft(int n_tokens) {
  if (!draft_) throw std::invalid_argument("[session.commit_draft] no draft is open");
  draft_->commit(n_tokens);
  tokens_.resize(n_before_draft_ + static_cast<std::size_t>(n_tokens));
  draft_.reset();
}

void Session::roll_back_draft() noexcept {
  if (!draft_) return;
  draft_.reset();
  tokens_.resize(n_before_draft_);
}

}  // namespace memoir::engine
