#pragma once

// OpenAI's interface: what is done for each path, whole or as a stream of server-sent events.

#include <chrono>
#include <functional>
#include <memory>

#include "memoir/server/generation.h"
#include "memoir/server/http_server.h"

namespace memoir::server {

struct RouteOptions {
  std::chrono::milliseconds keep_alive_interval{10'000};  // of comments in a stream that has nothing else to say
  bool logs_prompts = false;
  engine::Pooling pooling = engine::Pooling::kMean;  // of embeddings
};

/// What is asked of a model for the length of an answer, which may be a stream behind the function's end; counts and
/// tokens go to the exchange's notes. body: the request's.
using BackendLease = std::shared_ptr<const Backend>;
void answer_chat_completions(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options);
void answer_completions(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options);

/// Takes each update of the texts until all have ended, and returns true; false if the client has gone, which is
/// answered (499). Throws what failure_of() tells.
bool follow(Exchange& exchange, Generation& generation, const std::function<void(Update&)>& take);

/// The answer to a client that has gone: for the log.
void reply_gone(Exchange& exchange);

/// Adds prompt, cached and completion tokens to the log line.
void note_usage(Exchange& exchange, const Generation::Usage& usage);

/// The error that a text's failure, or its end for another reason than its own, stands for; nullopt for a good end.
std::optional<ApiError> failure_of(const Update& update);

}  // namespace memoir::server
