#pragma once

// One HTTP request's texts, in the making: asks the engine for them, follows what it tells, and takes apart what the
// model writes. Both interfaces are built on it.
//
// Ownership: belongs to the thread that answers; refers to what is in `Backend`, which must outlive it. Its destructor
// cancels what has not ended, so leaving early by any way is enough.

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "memoir/engine/grammar_processor.h"
#include "memoir/engine/service.h"
#include "memoir/server/api_error.h"
#include "memoir/server/event_queue.h"
#include "memoir/server/metrics.h"
#include "memoir/server/prompt.h"
#include "memoir/server/served_model.h"
#include "memoir/server/tool_calls.h"

namespace memoir::server {

/// The constraints of schemas seen lately, so that what is worked out about one serves all requests with it.
class Constraints {
 public:
  /// Throws ApiError 400 naming `field` where the schema is not taken. A null schema means any object.
  std::shared_ptr<engine::Constraint> of(const ServedModel& model, const Json& schema, const std::string& field);

 private:
  static constexpr std::size_t kMaxKept = 16;

  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<engine::Constraint>>> kept_;  // the latest first
};

struct Backend {
  engine::Service& service;
  const ServedModel& model;
  Metrics& metrics;
  Constraints& constraints;
};

/// Asks the engine. nullopt: its queue is full. Throws ApiError: 400 for what the engine does not take, 503 while it is
/// draining.
std::optional<engine::RequestId> submit_request(engine::Service& service, engine::Request request);

/// 400 naming the field where the request is at fault, else 500.
ApiError failure_of(const engine::Failed& failed);

/// Throws ApiError 400 naming `field` if the prompt has more tokens than fit the context.
void check_length(const Prompt& prompt, int context, const std::string& field);

struct GenerationOptions {
  engine::SamplerOptions sampler;
  std::optional<int> max_tokens;  // nullopt: as many as fit
  std::vector<std::string> stops;
  std::optional<int> n_likeliest;  // log probabilities, with so many alternatives
  int n = 1;
  std::vector<engine::GrammarProcessor::Branch> branches;  // what the text is held to; empty: nothing
  OutputParser::Options output;
  bool parses_output = true;  // false: all of it is text
  int priority = 0;
};

struct TokenLogprob {
  TokenId token;
  float logprob;
  std::vector<std::pair<TokenId, float>> likeliest;
};

/// Something new about one text.
struct Update {
  int index = 0;  // of the text: those of the first prompt, then those of the second, ...
  std::vector<OutputPiece> pieces;
  std::vector<TokenLogprob> logprobs;
  std::optional<engine::FinishReason> finish;
  std::optional<ApiError> failure;
};

class Generation {
 public:
  explicit Generation(const Backend& backend);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Asks for options.n texts. May be called for several prompts before the first next(). field: the prompt's, for
  /// messages. Throws ApiError: 400 for a prompt that does not fit, 429 where the queue is full, 503 while draining.
  void submit(const Prompt& prompt, const GenerationOptions& options, const std::string& field);

  enum class Idle { kTimedOut, kClientGone, kTooSlow };

  /// The next news, or why there is none. Not to be called when is_done().
  std::variant<Update, Idle> next(ClientWatch& client, std::chrono::milliseconds timeout);

  bool is_done() const { return n_open_ == 0; }
  int n_texts() const { return static_cast<int>(texts_.size()); }

  /// Of all texts, as far as they have ended. A prompt counts once, however many texts it has.
  struct Usage {
    int prompt_tokens = 0;
    int cached_tokens = 0;
    int completion_tokens = 0;
    int drafted_tokens = 0;
    int accepted_tokens = 0;  // of those
    double prefill_s = 0;
    double decode_s = 0;
    double queued_s = 0;
  };
  Usage usage() const;

 private:
  struct Text {
    engine::RequestId id;
    OutputParser parser;
    bool parses_output;
    bool is_first;  // of its prompt
    bool has_ended = false;
    std::chrono::steady_clock::time_point submitted;
    bool has_token = false;
    engine::Counts counts;
    int n_tokens = 0;
  };

  void take_token(Text& text, const EventQueue::Item& item, const engine::TokenEvent& event, Update& update);
  void end(Text& text, const engine::Counts& counts);

  const Backend& backend_;
  std::shared_ptr<EventQueue> queue_;
  std::vector<Text> texts_;
  int n_open_ = 0;
};

}  // namespace memoir::server
