#include "memoir/engine/generate.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "memoir/engine/stop.h"
#include "memoir/text/detokenizer.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void check_options(const GenerateOptions& options) {
  if (options.max_tokens < 0) {
    throw std::invalid_argument("[engine.generate] max_tokens is " + std::to_string(options.max_tokens) +
                                ", expected at least 0");
  }
  if (options.prefill_chunk < 1) {
    throw std::invalid_argument("[engine.generate] prefill_chunk is " + std::to_string(options.prefill_chunk) +
                                ", expected at least 1");
  }
}

void check_prompt(std::span<const TokenId> prompt, const model::Model& model) {
  if (prompt.empty()) throw std::invalid_argument("[engine.generate] the prompt is empty, expected at least one token");
  if (prompt.size() > static_cast<std::size_t>(model.context())) {
    throw std::invalid_argument("[engine.generate] the prompt has " + std::to_string(prompt.size()) +
                                " tokens, more than the model's context of " + std::to_string(model.context()));
  }
  const int n_vocab = model.config().vocab_size;
  for (const TokenId token : prompt) {
    if (token >= 0 && token < n_vocab) continue;
    throw std::invalid_argument("[engine.generate] token " + std::to_string(token) + " is outside the vocabulary of " +
                                std::to_string(n_vocab));
  }
}

// The text of a run: tokens in, pieces that may be shown out.
class TextStream {
 public:
  TextStream(const text::Tokenizer& tokenizer, std::vector<std::string> stop_strings,
             const std::function<void(std::string_view)>& on_text)
      : detokenizer_(tokenizer, {.skip_special = true}), matcher_(std::move(stop_strings)), on_text_(on_text) {}

  /// Returns true if the token completed a stop string.
  bool push(TokenId token) { return match(detokenizer_.push(token)); }

  /// Shows what was held back. Returns true if the last characters completed a stop string.
  bool finish() {
    const bool is_stopped = match(detokenizer_.finish());
    show(matcher_.finish());
    return is_stopped;
  }

  std::string take_text() { return std::move(text_); }

 private:
  bool match(const std::string& piece) {
    StopMatcher::Result result = matcher_.push(piece);
    show(result.text);
    return result.stop.has_value();
  }

  void show(const std::string& piece) {
    if (piece.empty()) return;
    text_ += piece;
    if (on_text_) on_text_(piece);
  }

  text::StreamingDetokenizer detokenizer_;
  StopMatcher matcher_;
  const std::function<void(std::string_view)>& on_text_;
  std::string text_;
};

// Without the tokens that the tokenizer has no text for; those that end the text need none.
GenerateOptions with_text_only(GenerateOptions options, const text::Tokenizer& tokenizer) {
  const int n_asked = options.sampler.n_choosable;
  options.sampler.n_choosable = n_asked > 0 ? std::min(n_asked, tokenizer.n_vocab()) : tokenizer.n_vocab();
  options.sampler.choosable_beyond.insert(options.sampler.choosable_beyond.end(), options.stop_tokens.begin(),
                                          options.stop_tokens.end());
  return options;
}

}  // namespace

Generation::Generation(Session& session, GenerateOptions options)
    : session_(session), options_(std::move(options)), sampler_(options_.sampler, session.model().config().vocab_size) {
  check_options(options_);
}

void Generation::start(std::span<const TokenId> prompt) {
  check_prompt(prompt, session_.model());
  cached_tokens_ = session_.reuse(prompt);
  sampler_.prime(prompt);
  prefill(prompt.subspan(static_cast<std::size_t>(cached_tokens_)), static_cast<int>(prompt.size()));
}

bool Generation::is_cancelled() {
  if (!options_.should_cancel || !options_.should_cancel()) return false;
  finish_reason_ = FinishReason::kCancelled;
  return true;
}

void Generation::prefill(std::span<const TokenId> rest, int n_total) {
  const auto n_chunk = static_cast<std::size_t>(options_.prefill_chunk);
  while (!rest.empty() && !is_cancelled()) {
    const std::size_t n_tokens = std::min(n_chunk, rest.size());
    mx::array logits = session_.forward(rest.first(n_tokens), model::LogitRows::kLast);
    rest = rest.subspan(n_tokens);
    if (rest.empty()) {
      logits_ = mx::astype(logits, mx::float32);
      mx::async_eval(*logits_);
    } else {
      // The chunk's logits are not needed, so they are never computed.
      session_.cache().materialize();
    }
    if (options_.on_prefill) options_.on_prefill(n_total - static_cast<int>(rest.size()), n_total);
  }
}

std::optional<TokenId> Generation::finish(FinishReason reason) {
  finish_reason_ = reason;
  logits_.reset();
  return std::nullopt;
}

TokenId Generation::sample() {
  mx::eval(*logits_);
  row_.assign(logits_->data<float>(), logits_->data<float>() + logits_->size());
  return sampler_.sample(row_);
}

std::optional<TokenId> Generation::next() {
  if (!logits_) return std::nullopt;
  if (is_cancelled()) return finish(FinishReason::kCancelled);
  if (n_generated_ >= options_.max_tokens) return finish(FinishReason::kLength);
  const TokenId token = sample();
  logits_.reset();
  const auto& stops = options_.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return finish(FinishReason::kStop);
  sampler_.accept(token);
  ++n_generated_;
  const bool is_last = n_generated_ == options_.max_tokens;
  const bool is_full = session_.tokens().size() >= static_cast<std::size_t>(session_.model().context());
  if (!is_last && !is_full) {
    logits_ = mx::astype(session_.forward(std::span(&token, 1), model::LogitRows::kLast), mx::float32);
    mx::async_eval(*logits_);
  }
  return token;
}

Completion generate(Session& session, std::span<const TokenId> prompt, const GenerateOptions& options,
                    const text::Tokenizer* tokenizer, const std::function<void(std::string_view)>& on_text) {
  Completion completion;
  completion.prompt_tokens = static_cast<int>(prompt.size());
  std::optional<TextStream> stream;
  if (tokenizer) stream.emplace(*tokenizer, options.stop_strings, on_text);
  const Clock::time_point start = Clock::now();
  Generation generation(session, tokenizer ? with_text_only(options, *tokenizer) : options);
  generation.start(prompt);
  std::optional<TokenId> token = generation.next();
  const Clock::time_point first = Clock::now();
  bool is_stopped = false;
  for (; token && !is_stopped; token = is_stopped ? std::nullopt : generation.next()) {
    completion.tokens.push_back(*token);
    is_stopped = stream && stream->push(*token);
  }
  if (stream) {
    is_stopped = stream->finish() || is_stopped;
    completion.text = stream->take_text();
  }
  completion.cached_tokens = generation.cached_tokens();
  completion.prefill_s = seconds(start, first);
  completion.decode_s = seconds(first, Clock::now());
  completion.finish_reason = is_stopped ? FinishReason::kStop : generation.finish_reason();
  return completion;
}

}  // namespace memoir::engine
