#include "memoir/engine/request_run.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "memoir/engine/log_probabilities.h"
#include "memoir/engine/speculate.h"

namespace memoir::engine {
namespace {

double seconds(RequestRun::Clock::time_point from, RequestRun::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[engine.submit] " + what);
}

}  // namespace

RequestRun::RequestRun(Request request, const Limits& limits, const text::Tokenizer* tokenizer,
                       Clock::time_point submitted)
    : request_(std::move(request)),
      limits_(limits),
      tokens_(std::move(request_.prompt)),
      sampler_(
          tokenizer ? choosing_below(request_.sampler, tokenizer->n_vocab(), request_.stop_tokens) : request_.sampler,
          limits.n_vocab),
      submitted_(submitted) {
  check(limits, tokenizer != nullptr);
  if (tokenizer) text_.emplace(*tokenizer, request_.stop_strings);
  sampler_.prime(tokens_);
  counts_.prompt_tokens = static_cast<int>(tokens_.size());
}

void RequestRun::check(const Limits& limits, bool has_text) const {
  if (tokens_.empty()) refuse("the prompt is empty, expected at least one token");
  if (tokens_.size() > static_cast<std::size_t>(limits.n_context)) {
    refuse("the prompt has " + std::to_string(tokens_.size()) + " tokens, more than the context of " +
           std::to_string(limits.n_context));
  }
  for (const TokenId token : tokens_) {
    if (token >= 0 && token < limits.n_vocab) continue;
    refuse("token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(limits.n_vocab));
  }
  if (request_.max_tokens < 0) {
    refuse("max_tokens is " + std::to_string(request_.max_tokens) + ", expected at least 0");
  }
  if (request_.n_likeliest && (*request_.n_likeliest < 0 || *request_.n_likeliest > limits.n_vocab)) {
    refuse("n_likeliest is " + std::to_string(*request_.n_likeliest) + ", expected 0 to " +
           std::to_string(limits.n_vocab));
  }
  if (!request_.stop_strings.empty() && !has_text) refuse("stop strings need a tokenizer, which the model hasn't");
  if (!request_.on_event) refuse("on_event is empty");
}

void RequestRun::start(int n_cached, Clock::time_point now) {
  state_sum_.clear();
  if (started_) return;
  started_ = now;
  counts_.cached_tokens = n_cached;
  counts_.queued_s = seconds(submitted_, now);
}

void RequestRun::report_prefill(int n_done) {
  if (!first_token_) emit(PrefillEvent{n_done, counts_.prompt_tokens});
}

void RequestRun::add_states(std::span<const float> states, int n_tokens) {
  const std::size_t n_values = states.size() / static_cast<std::size_t>(n_tokens);
  if (request_.embedding == Pooling::kLast) {
    const std::span<const float> last = states.last(n_values);
    state_sum_.assign(last.begin(), last.end());
    return;
  }
  // Token by token, so that the sum does not depend on how the prompt was cut.
  state_sum_.resize(n_values);
  for (std::size_t i = 0; i < states.size(); ++i) state_sum_[i % n_values] += static_cast<double>(states[i]);
}

FinishReason RequestRun::push_embedding(Clock::time_point now) {
  first_token_ = now;
  double square = 0;
  for (const double value : state_sum_) square += value * value;
  const double length = std::sqrt(square);
  if (!std::isfinite(length) || length == 0) throw std::runtime_error("the model's states have no direction");
  EmbeddingEvent event;
  for (const double value : state_sum_) event.values.push_back(static_cast<float>(value / length));
  emit(event);
  return is_deaf_ ? FinishReason::kCancelled : FinishReason::kStop;
}

bool RequestRun::is_stop_token(TokenId token) const {
  const auto& stops = request_.stop_tokens;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

int RequestRun::max_drafts() const {
  const int n_wanted = request_.max_tokens - counts_.completion_tokens - 1;
  const int n_room = limits_.n_context - static_cast<int>(tokens_.size());
  return std::max(0, std::min(n_wanted, n_room));
}

RequestRun::Round RequestRun::push(std::span<float> rows, std::span<const TokenId> drafts, Clock::time_point now) {
  const auto n_vocab = static_cast<std::size_t>(limits_.n_vocab);
  if (rows.size() != n_vocab * (1 + drafts.size())) {
    throw std::invalid_argument("[engine.push] " + std::to_string(rows.size()) + " logits for " +
                                std::to_string(drafts.size()) + " drafts of a vocabulary of " +
                                std::to_string(n_vocab));
  }
  Round round;
  counts_.drafted_tokens += static_cast<int>(drafts.size());
  for (std::size_t i = 0; i <= drafts.size(); ++i) {
    const std::optional<TokenId> draft = i < drafts.size() ? std::optional(drafts[i]) : std::nullopt;
    const Choice choice = choose(rows.subspan(i * n_vocab, n_vocab), draft, now);
    round.reason = choice.reason;
    if (draft && (choice.is_draft || !choice.reason)) ++round.n_judged;
    if (!choice.is_draft) break;
    ++round.n_accepted;
    ++counts_.accepted_tokens;
    if (choice.reason) break;
  }
  return round;
}

RequestRun::Choice RequestRun::choose(std::span<float> logits, std::optional<TokenId> draft, Clock::time_point now) {
  if (is_deaf_) return {false, FinishReason::kCancelled};
  if (!first_token_) first_token_ = now;
  if (request_.max_tokens == 0) return {false, FinishReason::kLength};
  // Log probabilities are the model's, before a processor or the sampler changes anything.
  std::vector<float> as_computed;
  if (request_.n_likeliest) as_computed.assign(logits.begin(), logits.end());
  if (request_.processor) request_.processor->apply(logits);
  const Verdict verdict = draft ? judge(sampler_, logits, *draft) : Verdict{sampler_.sample(logits), false};
  TokenEvent event{verdict.token, {}, 0, {}};
  if (request_.processor) request_.processor->accept(event.token);
  if (is_stop_token(event.token)) return {false, FinishReason::kStop};
  sampler_.accept(event.token);
  tokens_.push_back(event.token);
  ++counts_.completion_tokens;
  if (request_.n_likeliest) {
    LogProbabilities values = log_probabilities(as_computed, event.token, *request_.n_likeliest);
    event.log_probability = values.of_token;
    event.likeliest = std::move(values.likeliest);
  }
  bool is_stopped = false;
  if (text_) {
    TextStream::Piece piece = text_->push(event.token);
    event.text = std::move(piece.text);
    is_stopped = piece.is_stopped;
  }
  emit(event);
  Choice choice{verdict.is_accepted, std::nullopt};
  const bool is_full = tokens_.size() > static_cast<std::size_t>(limits_.n_context);
  if (is_stopped) {
    choice.reason = FinishReason::kStop;
  } else if (is_deaf_) {
    choice.reason = FinishReason::kCancelled;
  } else if (counts_.completion_tokens >= request_.max_tokens || is_full) {
    choice.reason = FinishReason::kLength;
  }
  return choice;
}

Event RequestRun::ending(FinishReason reason, Clock::time_point now) {
  close(now);
  if (!text_) return Finished{reason, {}, counts_};
  try {
    TextStream::Piece rest = text_->finish();
    if (rest.is_stopped) reason = FinishReason::kStop;
    return Finished{reason, std::move(rest.text), counts_};
  } catch (const std::exception& error) {
    return Failed{error.what(), counts_};
  }
}

Event RequestRun::failure(Failed failed, Clock::time_point now) {
  close(now);
  failed.counts = counts_;
  return Event(std::move(failed));
}

void RequestRun::close(Clock::time_point now) {
  if (!started_) {
    counts_.queued_s = seconds(submitted_, now);
    return;
  }
  counts_.prefill_s = seconds(*started_, first_token_.value_or(now));
  if (first_token_) counts_.decode_s = seconds(*first_token_, now);
}

void RequestRun::emit(const Event& event) {
  if (!is_deaf_) send_last(event);
}

void RequestRun::send_last(const Event& event) {
  try {
    request_.on_event(event);
  } catch (...) {
    is_deaf_ = true;
  }
}

}  // namespace memoir::engine
