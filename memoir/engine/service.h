#pragma once

// What a server asks of the engine: requests in, events out, from any thread. No MLX.
//
// One thread owns the model; requests wait for it in a bounded queue and then run side by side. submit(), cancel() and
// the rest return at once. A request's events come in order, on the engine's thread, through the request's own
// function, which must not block or throw: queue them for whoever waits. The last one is Finished or Failed, exactly
// once for every accepted request, also after cancel() and drain().
// Ownership: an accepted request is owned by the service until its last event.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/finish_reason.h"
#include "memoir/engine/prefix_cache_counts.h"
#include "memoir/engine/sampler.h"

namespace memoir::engine {

using RequestId = std::uint64_t;

/// Changes logits before each token is chosen: a grammar, for example. Used by the engine's thread alone.
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;

  /// logits: [V]; -inf forbids a token.
  virtual void apply(std::span<float> logits) = 0;
  /// The token that was chosen.
  virtual void accept(TokenId token) = 0;
};

struct TokenEvent {
  TokenId token;
  std::string text;                                  // what the token completes: whole characters, maybe none
  float log_probability = 0;                         // ln softmax(logits)[token], if asked for
  std::vector<std::pair<TokenId, float>> likeliest;  // with theirs, the likeliest first, if asked for
};

struct Counts {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt's, not computed again
  int completion_tokens = 0;
  int drafted_tokens = 0;
  int accepted_tokens = 0;  // of those drafted
  double queued_s = 0;      // from submit() until it ran
  double prefill_s = 0;     // from there to the first token
  double decode_s = 0;      // from there to the end
};

/// The prompt has been computed so far; after each slice.
struct PrefillEvent {
  int n_done;
  int n_total;
};
struct Finished {
  FinishReason reason;
  std::string text;  // what was held back for a stop string that did not come
  Counts counts;
};
struct Failed {
  std::string message;
  Counts counts = {};
  std::optional<std::string> faulty_field =
      {};  // the request is at fault (RequestFault): its field; else the engine is
};

/// How the states of a text's tokens, behind the model's final norm, become one vector.
enum class Pooling {
  kMean,
  kLast,  // the last token's
};

/// The prompt's embedding, of length 1; before Finished.
struct EmbeddingEvent {
  std::vector<float> values;
};

using Event = std::variant<PrefillEvent, TokenEvent, EmbeddingEvent, Finished, Failed>;

struct Request {
  std::vector<TokenId> prompt;
  int max_tokens = 256;
  SamplerOptions sampler;
  std::vector<TokenId> stop_tokens;
  std::vector<std::string> stop_strings;
  std::optional<int> n_likeliest;              // log probabilities, and how many likeliest tokens beside the chosen one
  std::unique_ptr<LogitsProcessor> processor;  // may be null
  int priority = 0;                            // higher ones run first
  std::optional<std::chrono::steady_clock::time_point> deadline;  // then it finishes as cancelled
  std::optional<Pooling> embedding;  // the prompt's embedding is wanted, and nothing generated
  std::vector<int> turn_ends;        // offsets in the prompt where a turn of a chat ends: checkpoints
  std::function<void(const Event&)> on_event;
};

/// Why a request was not accepted.
enum class Refusal {
  kQueueFull,
  kDraining,
};

struct ServiceStats {
  int n_running = 0;
  int n_queued = 0;
  std::uint64_t n_submitted = 0;
  std::uint64_t n_refused = 0;
  std::map<FinishReason, std::uint64_t> n_finished;
  std::uint64_t n_failed = 0;
  std::uint64_t n_prompt_tokens = 0;
  std::uint64_t n_cached_tokens = 0;
  std::uint64_t n_completion_tokens = 0;
  std::uint64_t n_drafted_tokens = 0;
  std::uint64_t n_accepted_tokens = 0;
  std::uint64_t n_draft_rounds = 0;  // a request's parts of steps that had drafts
  std::uint64_t n_steps = 0;
  std::size_t cache_bytes = 0;  // of running requests
  PrefixCacheCounts prefix_cache;
};

class Service {
 public:
  virtual ~Service() = default;

  /// Takes the request, or says why not. Throws std::invalid_argument for an empty prompt, a token outside the
  /// vocabulary, a prompt that doesn't fit the context, or an option out of its range; on a throw or a refusal no event
  /// comes.
  virtual std::variant<RequestId, Refusal> submit(Request request) = 0;

  /// The most requests that it ever has at once, those that wait included: more can't be had by waiting.
  virtual int max_requests() const { return std::numeric_limits<int>::max(); }

  /// The request ends as cancelled within a step. Unknown and ended ones are ignored.
  virtual void cancel(RequestId id) = 0;

  virtual ServiceStats stats() const = 0;

  /// What is kept for later requests: a JSON object (docs/prefix-cache.md), "{}" if nothing ever is. Waits for the step
  /// under way; not for on_event to call, as it would wait for itself.
  virtual std::string prefix_cache_report() { return "{}"; }

  /// Drops what is kept for later requests and not used by one that runs. Waits as prefix_cache_report().
  virtual void clear_prefix_cache() {}

  /// No new requests; returns when all accepted ones have ended, or at the deadline, when those left are cancelled.
  virtual void drain(std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace memoir::engine
