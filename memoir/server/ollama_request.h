#pragma once

// Ollama's requests: fields checked one by one, and turned into a prompt and options. Any thread.
//
// docs/server.md lists every field with what becomes of it. Throws ApiError everywhere: 400 naming the field, 404 for
// another model.

#include <optional>
#include <string>

#include "memoir/server/generation.h"
#include "memoir/server/prompt.h"
#include "memoir/server/request_json.h"

namespace memoir::server {

struct OllamaRequest {
  std::string model;             // as the client named it
  std::optional<Prompt> prompt;  // nullopt: nothing was asked, only that the model be loaded
  GenerationOptions options;
  bool is_stream = true;
  bool hides_thoughts = false;  // "think": false
};

OllamaRequest read_ollama_generate(const Json& body, const Backend& backend);
OllamaRequest read_ollama_chat(const Json& body, const Backend& backend);

/// The model a request names in "model" or "name". Throws 400 where it names none, 404 for another.
std::string ollama_model_name(const Fields& body, const ServedModel& model);

/// Throws 400 where keep_alive is neither a number nor a duration ("5m", "1h30m"). Returns whether it is zero.
bool check_keep_alive(const Fields& body);

}  // namespace memoir::server
