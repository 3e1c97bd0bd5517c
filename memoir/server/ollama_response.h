#pragma once

// Ollama's answers as JSON: pure functions.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "memoir/server/generation.h"
#include "memoir/server/request_json.h"

namespace memoir::server {

/// A part of an answer: what is new, or all of it.
struct OllamaPart {
  std::string content;
  std::string thinking;
  std::vector<ToolCall> calls;
  std::vector<TokenLogprob> logprobs;
};

/// {"model", "created_at", "message" or "response", "done": false}
Json ollama_part(const std::string& model, bool is_chat, const OllamaPart& part, const text::Tokenizer& tokenizer,
                 bool has_logprobs);

/// Makes a part the last one: done, done_reason, counts, and durations in nanoseconds.
void finish_ollama(Json& part, const std::string& reason, const Generation::Usage& usage,
                   std::chrono::nanoseconds total);

/// The answer to a request that only unloads its model.
Json ollama_unloaded(const std::string& model, bool is_chat);

Json ollama_error(const ApiError& error);

/// GET /api/tags, one entry of GET /api/ps, POST /api/show. expires_in: nullopt for a model that stays.
Json ollama_tags(const std::vector<ListedModel>& models);
Json ollama_running(const ListedModel& listed, const ServedModel& model,
                    std::optional<std::chrono::milliseconds> expires_in);
Json ollama_show(const ServedModel& model);

}  // namespace memoir::server
