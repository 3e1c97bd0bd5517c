#pragma once

// Embeddings over HTTP: OpenAI's /v1/embeddings, and Ollama's /api/embed and, older, /api/embeddings.

#include "memoir/server/openai_routes.h"

namespace memoir::server {

void answer_embeddings(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options);
void answer_ollama_embed(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options);
void answer_ollama_embeddings(Exchange& exchange, const Json& body, BackendLease backend, const RouteOptions& options);

/// The numbers as JSON, each with as many digits as tell it from its neighbours.
std::string json_list(const std::vector<float>& values);

/// The numbers' bytes, little-endian, in base 64.
std::string base64(const std::vector<float>& values);

}  // namespace memoir::server
