#include "memoir/engine/session.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/cache/prompt_file.h"
#include "memoir/cache/transaction.h"

namespace mx = mlx::core;

namespace memoir::engine {

Session::Session(const model::Model& model, const cache::CacheOptions& options, prefix::Store* store,
                 const std::optional<ContextShift>& shift)
    : model_(model), options_(options), shift_(shift), cache_(model.make_cache(options)), store_(store) {
  if (shift_) check_shift();
}

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

void Session::check_shift() const {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument("[engine.Session] " + what); };
  if (shift_->context < 2 || shift_->context > model_.context() || shift_->keep < 0 ||
      shift_->keep >= shift_->context) {
    refuse("a context of " + std::to_string(shift_->context) + " that keeps " + std::to_string(shift_->keep) +
           " tokens, expected 2 to the model's " + std::to_string(model_.context()) + ", and to keep less");
  }
  if (store_) refuse("a context that shifts and a prefix store, expected one of both at most");
  if (options_.max_size) refuse("a context that shifts and a cache of bounded size, expected one of both at most");
  const std::string model = "a " + model_.config().model_type + " can't shift its context: ";
  for (std::size_t layer = 0; layer < cache_.n_layers(); ++layer) {
    const std::string_view unfit = cache::unfit_for_cells(cache_, layer);
    if (!unfit.empty()) refuse(model + "layer " + std::to_string(layer) + " has a " + std::string(unfit));
  }
  if (!model_.key_turn()) refuse(model + "its keys can't be turned to other positions");
}

// Behind the kept tokens, from the cache too.
void Session::drop(int n_tokens) {
  const int begin = shift_->keep;
  const cache::Removal result = remove_positions(cache_, begin, begin + n_tokens, model_.key_turn());
  const auto first = tokens_.begin() + begin;
  dropped_.insert(dropped_.end(), first, first + n_tokens);
  tokens_.erase(first, first + n_tokens);
  if (result == cache::Removal::kDone) return;
  const std::vector<TokenId> rest = std::exchange(tokens_, {});
  cache_.free();
  constexpr std::size_t kChunk = 512;
  for (std::size_t done = 0; done < rest.size(); done = tokens_.size()) {
    forward(first_chunk(std::span(rest).subspan(done), kChunk), model::LogitRows::kNone);
    cache_.materialize();
  }
}

void Session::make_room(int n_tokens) {
  if (!shift_) return;
  const auto n_held = static_cast<int>(tokens_.size());
  const int n_missing = n_held + n_tokens - shift_->context;
  if (n_missing <= 0) return;
  const int n_dropped = std::min(std::max(n_to_discard(*shift_, n_held), n_missing), n_held - shift_->keep);
  drop(n_whole(*shift_, tokens_, n_dropped));
}

// True if the prompt begins as the whole text does, dropped tokens included, and goes on behind them.
bool Session::goes_on(std::span<const TokenId> prompt) const {
  const auto n_kept = static_cast<std::size_t>(shift_->keep);
  if (prompt.size() <= n_kept + dropped_.size() || tokens_.size() < n_kept) return false;
  const std::span<const TokenId> kept = prompt.first(n_kept);
  return std::equal(kept.begin(), kept.end(), tokens_.begin()) &&
         std::equal(dropped_.begin(), dropped_.end(), prompt.begin() + shift_->keep);
}

std::vector<TokenId> Session::fitted(std::span<const TokenId> prompt) {
  std::vector<TokenId> result(prompt.begin(), prompt.end());
  if (!shift_) return result;
  const auto erase = [&](std::size_t n) {
    const auto first = result.begin() + shift_->keep;
    result.erase(first, first + static_cast<std::ptrdiff_t>(n));
  };
  if (!dropped_.empty()) {
    if (goes_on(prompt)) {
      erase(dropped_.size());
    } else {
      // What is behind the kept tokens was computed behind others.
      reuse(std::span(tokens_).first(std::min(tokens_.size(), static_cast<std::size_t>(shift_->keep) + 1)));
      dropped_.clear();
    }
  }
  const auto n_tokens = static_cast<int>(result.size());
  if (n_tokens <= shift_->context) return result;
  const int n_dropped =
      n_whole(*shift_, result, std::min(n_to_discard(*shift_, n_tokens), n_tokens - shift_->keep - 1), 1);
  const int n_until = shift_->keep + n_dropped;
  const bool holds_them =
      std::ssize(tokens_) > n_until && std::equal(result.begin(), result.begin() + n_until, tokens_.begin());
  if (holds_them) {
    drop(n_dropped);  // the rows behind them can be used on
  } else {
    dropped_.insert(dropped_.end(), result.begin() + shift_->keep, result.begin() + n_until);
  }
  erase(static_cast<std::size_t>(n_dropped));
  return result;
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
  cache::CacheOptions in_the_end = options_;
  in_the_end.quantize_from = 0;
  const bool is_still_dense = options_.quantize_from > cache.offset();
  const auto forms = !options_.dtype && !options_.quantization ? cache::RowForms::kAny
                     : is_still_dense                          ? cache::RowForms::kAskedOrDense
                                                               : cache::RowForms::kAsked;
  cache::ModelCache adopted = cache::fitted(std::move(cache), model_.make_cache(in_the_end), forms);
  roll_back_draft();
  if (store_) {
    record_pass();
    store_->end(lease_, cache_);
  }
  cache_ = std::move(adopted);
  tokens_ = std::move(tokens);
  if (store_ && !tokens_.empty()) store_->follow(lease_, cache_, {tokens_, static_cast<int>(tokens_.size())});
  dropped_.clear();
}

// Also in the form that the options ask for, which what was adopted or quantized need not have had.
void Session::begin_anew() {
  if (cache_.offset() > 0) cache_ = model_.make_cache(options_);
  tokens_.clear();
}

int Session::reuse(std::span<const TokenId> prompt, std::span<const int> turn_ends, int lookahead,
                   std::shared_ptr<prefix::Companion> companion) {
  roll_back_draft();
  const auto [mine, theirs] = std::mismatch(tokens_.begin(), tokens_.end(), prompt.begin(), prompt.end());
  auto n_shared = static_cast<std::size_t>(mine - tokens_.begin());
  if (mine != tokens_.end()) n_shared -= std::min(n_shared, static_cast<std::size_t>(lookahead));
  const std::size_t n_usable = prompt.empty() ? 0 : std::min(n_shared, prompt.size() - 1);
  if (store_) {
    record_pass();
    store_->end(lease_, cache_);
  }
  if (n_usable > 0 && cache_.rewind(static_cast<int>(n_usable))) {
    tokens_.resize(n_usable);
  } else {
    begin_anew();
  }
  if (store_ && !prompt.empty()) {
    prefix::KnownTokens known{prompt, static_cast<int>(prompt.size()), turn_ends};
    known.companion = std::move(companion);
    store_->fetch(prompt);
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

int Session::n_until_quantized() const {
  const int n = options_.quantization ? options_.quantize_from - cache_.offset() : 0;
  return n > 0 ? n : std::numeric_limits<int>::max();
}

std::span<const TokenId> Session::first_chunk(std::span<const TokenId> rest, std::size_t n_most) const {
  return rest.first(std::min({n_most, rest.size(), static_cast<std::size_t>(n_until_quantized())}));
}

void Session::quantize_if_due() {
  if (options_.quantization && !draft_) cache_.to_quantized(*options_.quantization, options_.quantize_from);
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
    quantize_if_due();
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
  ended_draft_ = std::move(draft_);
  quantize_if_due();
}

void Session::let_go_of_drafts() noexcept {
  ended_draft_.reset();
}

void Session::roll_back_draft() noexcept {
  if (!draft_) return;
  draft_.reset();
  tokens_.resize(n_before_draft_);
}

}  // namespace memoir::engine
