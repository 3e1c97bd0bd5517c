#include "memoir/engine/session.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/cache/prompt_file.h"
#include "memoir/cache/transaction.h"

namespace mx = mlx::core;

namespace memoir::engine {

Session::Session(const model::Model& model, const cache::CacheOptions& options, prefix::Store* store)
    : model_(model), options_(options), cache_(model.make_cache(options)), store_(store) {}

Session::~Session() {
  roll_back_draft();
  if (!store_) return;
  record_pass();
  store_->end(lease_, cache_);
}

// Once the next pass begins, this one's arrays are needed no more where they are.
void Session::record_pass() noexcept {
  if (store_ && std::exchange(has_pass_, false)) store_->record(lease_, cache_);
}

void Session::adopt(cache::ModelCache cache, std::vector<TokenId> tokens) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument("[engine.adopt] " + what); };
  if (tokens.size() != static_cast<std::size_t>(cache.offset())) {
    refuse(std::to_string(tokens.size()) + " tokens for a cache at offset " + std::to_string(cache.offset()));
  }
  if (cache.offset() > model_.context()) {
    refuse("the cache has " + std::to_string(cache.offset()) + " tokens, more than the model's context of " +
           std::to_string(model_.context()));
  }
  cache::ModelCache adopted = cache::fitted(std::move(cache), model_.make_cache(options_));
  roll_back_draft();
  if (store_) {
    record_pass();
    store_->end(lease_, cache_);
  }
  cache_ = std::move(adopted);
  tokens_ = std::move(tokens);
  if (store_ && !tokens_.empty()) store_->follow(lease_, cache_, {tokens_, static_cast<int>(tokens_.size())});
}

int Session::reuse(std::span<const TokenId> prompt, std::span<const int> turn_ends, int lookahead) {
  roll_back_draft();
  const auto [mine, theirs] = std::mismatch(tokens_.begin(), tokens_.end(), prompt.begin(), prompt.end());
  auto n_shared = static_cast<std::size_t>(mine - tokens_.begin());
  if (mine != tokens_.end()) n_shared -= std::min(n_shared, static_cast<std::size_t>(lookahead));
  const std::size_t n_usable = prompt.empty() ? 0 : std::min(n_shared, prompt.size() - 1);
  if (store_) {
    record_pass();
    store_->end(lease_, cache_);
  }
  if (cache_.rewind(static_cast<int>(n_usable))) {
    tokens_.resize(n_usable);
  } else {
    cache_.free();
    tokens_.clear();
  }
  if (store_ && !prompt.empty()) {
    const prefix::KnownTokens known{prompt, static_cast<int>(prompt.size()), turn_ends};
    if (store_->restorable(prompt) > cache_.offset()) {
      cache_ = store_->begin(lease_, known);
      const auto n_restored = static_cast<std::ptrdiff_t>(cache_.offset());
      tokens_.assign(prompt.begin(), prompt.begin() + n_restored);
    } else {
      store_->follow(lease_, cache_, known);
    }
  }
  return static_cast<int>(tokens_.size());
}

template <typename Run>
auto Session::take_in(std::span<const TokenId> tokens, const Run& run) {
  // The tokens first: appending can throw, and must not once the cache has moved.
  record_pass();
  const std::size_t n_before = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  try {
    if (store_) store_->prepare(lease_, cache_, tokens);
    auto result = run();
    has_pass_ = true;
    if (options_.quantization && !draft_) cache_.to_quantized(*options_.quantization, options_.quantize_from);
    return result;
  } catch (...) {
    if (store_) store_->cancel_pass(lease_, cache_);
    tokens_.resize(std::min(n_before, static_cast<std::size_t>(cache_.offset())));
    throw;
  }
}

mx::array Session::forward(std::span<const TokenId> tokens, model::LogitRows rows) {
  return take_in(tokens, [&] { return model_.forward(tokens, cache_, rows); });
}

model::Pass Session::forward_with_hidden(std::span<const TokenId> tokens, model::LogitRows rows,
                                         model::LogitRows hidden_rows) {
  return take_in(tokens, [&] { return model_.forward_with_hidden(tokens, cache_, rows, hidden_rows); });
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
