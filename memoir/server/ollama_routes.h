#pragma once

// Ollama's interface: what is done for each path, whole or as a stream of JSON lines.

#include "memoir/server/generation.h"
#include "memoir/server/http_server.h"
#include "memoir/server/openai_routes.h"

namespace memoir::server {

void answer_ollama_generate(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options);
void answer_ollama_chat(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options);

/// Whether a request for one of these asks for nothing but that the model be unloaded: keep_alive 0 and no prompt.
bool only_unloads(const Json& body, bool is_chat);
/// Says that this is done.
void answer_unloaded(Exchange& exchange, const Json& body, bool is_chat);

}  // namespace memoir::server
