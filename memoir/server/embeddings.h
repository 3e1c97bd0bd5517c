#pragma once

// The embeddings of one HTTP request's texts, in the making: some are asked of the engine at a time, so that a long
// list takes no more of its queue than a few chats do.
//
// Threads: the one that answers.

#include <optional>
#include <vector>

#include "memoir/server/generation.h"
#include "memoir/server/prompt.h"

namespace memoir::server {

struct Embeddings {
  std::vector<std::vector<float>> vectors;  // in the texts' order, each of length 1
  int n_prompt_tokens = 0;
};

/// Returns when all are there; nullopt if the client has gone before. Throws ApiError: 400 for a text that does not
/// fit, naming `field`, 429 where the queue is full, 503 while draining, 500 where the engine fails.
std::optional<Embeddings> embed(const std::vector<Prompt>& texts, const Backend& backend, engine::Pooling pooling,
                                ClientWatch& client, const std::string& field);

}  // namespace memoir::server
