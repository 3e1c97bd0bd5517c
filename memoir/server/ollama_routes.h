#pragma once

// Ollama's interface: what is done for each path, whole or as a stream of JSON lines.

#include "memoir/server/generation.h"
#include "memoir/server/http_server.h"
#include "memoir/server/openai_routes.h"

namespace memoir::server {

void answer_ollama_generate(Exchange& exchange, const Backend& backend, const RouteOptions& options);
void answer_ollama_chat(Exchange& exchange, const Backend& backend, const RouteOptions& options);
void answer_ollama_show(Exchange& exchange, const Backend& backend);

}  // namespace memoir::server
