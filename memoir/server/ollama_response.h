#pragma once

// Ollama's answers as JSON: pure functions.

#include <chrono>
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

Json ollama_error(const ApiError& error);

/// GET /api/tags, GET /api/ps, POST /api/show.
Json ollama_tags(const ServedModel& model);
Json ollama_ps(const ServedModel& model);
Json ollama_show(const ServedModel& model);

}  // namespace memoir::server
