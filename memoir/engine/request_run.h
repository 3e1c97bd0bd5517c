#pragma once

// One request on its way from logits to events: sampling, stopping, text, log probabilities, counts. No MLX.
//
// Events go to the request's on_event. Should it throw, nothing more is sent but the last event, and push() ends the
// request as cancelled.
// Threads: made anywhere, then used by one thread. Ownership: owns the request; refers to nothing.

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memoir/engine/sampler.h"
#include "memoir/engine/service.h"
#include "memoir/engine/text_stream.h"

namespace memoir::engine {

class RequestRun {
 public:
  using Clock = std::chrono::steady_clock;

  /// What a request must fit.
  struct Limits {
    int n_vocab;
    int n_context;  // the most tokens of prompt and answer together that a cache may hold
  };

  /// tokenizer: may be null, then there is no text. Throws as Service::submit.
  RequestRun(Request request, const Limits& limits, const text::Tokenizer* tokenizer, Clock::time_point submitted);

  /// The prompt and what was generated.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int n_prompt() const { return counts_.prompt_tokens; }
  const std::vector<int>& turn_ends() const { return request_.turn_ends; }
  int priority() const { return request_.priority; }
  const std::optional<Clock::time_point>& deadline() const { return request_.deadline; }
  const Counts& counts() const { return counts_; }

  /// It has a cache with its first n_cached tokens; also called when it goes on after having lost one.
  void start(int n_cached, Clock::time_point now);

  /// So many more of the prompt's tokens need not be computed.
  void add_cached(int n_tokens) { counts_.cached_tokens += n_tokens; }

  /// n_done of its tokens are computed. Sends PrefillEvent until the first token.
  void report_prefill(int n_done);

  /// The states of its next tokens, of each as many values, of a request for an embedding.
  void add_states(std::span<const float> states, int n_tokens);

  /// All states are there: sends the embedding. Throws std::runtime_error if a state is not finite or all are zero.
  FinishReason push_embedding(Clock::time_point now);

  /// What a row of logits and the drafts behind it came to.
  struct Round {
    int n_judged = 0;                    // drafts that were compared with the token that was chosen
    int n_accepted = 0;                  // of these, now in tokens()
    std::optional<FinishReason> reason;  // why the request ends; nullopt: it goes on, with a token behind the accepted
  };

  /// Chooses the tokens that follow tokens() and sends them: one, and one more for each draft that is right
  /// (speculate.h). rows: [1 + drafts, V], scratch, row i computed behind the first i drafts. Throws what sampling, the
  /// request's processor and detokenizing throw: it can only fail then.
  Round push(std::span<float> rows, std::span<const TokenId> drafts, Clock::time_point now);

  /// The most drafts that are of use behind tokens(): the last token asked for, and any behind the context's end, need
  /// no place in a cache.
  int max_drafts() const;

  /// The last event: Finished, for a stop string if the last characters complete one; Failed if they can't be
  /// detokenized.
  Event ending(FinishReason reason, Clock::time_point now);
  /// The same with its counts.
  Event failure(Failed failed, Clock::time_point now);

  /// Sends one of these.
  void send_last(const Event& event);

  bool is_embedding() const { return request_.embedding.has_value(); }
  bool is_started() const { return started_.has_value(); }
  /// on_event has thrown.
  bool is_deaf() const { return is_deaf_; }

 private:
  void check(const Limits& limits, bool has_text) const;
  struct Choice {
    bool is_draft = false;  // and in tokens()
    std::optional<FinishReason> reason;
  };
  Choice choose(std::span<float> logits, std::optional<TokenId> draft, Clock::time_point now);
  bool is_stop_token(TokenId token) const;
  void emit(const Event& event);
  void close(Clock::time_point now);

  Request request_;
  Limits limits_;
  std::vector<TokenId> tokens_;
  Sampler sampler_;
  std::optional<TextStream> text_;
  std::vector<double> state_sum_;  // of the tokens so far, or the last one's state
  Counts counts_;
  Clock::time_point submitted_;
  std::optional<Clock::time_point> started_;
  std::optional<Clock::time_point> first_token_;
  bool is_deaf_ = false;
};

}  // namespace memoir::engine
