#pragma once

// Ollama's requests: fields checked one by one, and turned into a prompt and options. Any thread.
//
// docs/server.md lists every field with what becomes of it. Throws ApiError everywhere: 400 naming the field, 404 for
// another model.

#include <chrono>
#include <optional>
#include <string>

#include "memoir/server/generation.h"
#include "memoir/server/prompt.h"
#include "memoir/server/request_json.h"

namespace memoir::server {

struct KeepAlive {
  std::optional<std::chrono::milliseconds> time;  // nullopt: for ever
};

struct OllamaRequest {
  std::string model;             // as the client named it
  std::optional<Prompt> prompt;  // nullopt: nothing was asked, only that the model be loaded
  GenerationOptions options;
  bool is_stream = true;
  bool hides_thoughts = false;  // "think": false
};

OllamaRequest read_ollama_generate(const Json& body, const Backend& backend);
OllamaRequest read_ollama_chat(const Json& body, const Backend& backend);

/// The model a request names in "model" or "name". Throws 400 where it names none.
std::string requested_model(const Fields& body);
/// The same. Throws 404 for another.
std::string ollama_model_name(const Fields& body, const ServedModel& model);

/// How long the model is to stay loaded after the request; nullopt: not said. A number of seconds or a duration ("5m",
/// "1h30m", "-1s"); what is negative means for ever. Throws 400 for what is neither.
std::optional<KeepAlive> read_keep_alive(const Fields& body);

}  // namespace memoir::server
