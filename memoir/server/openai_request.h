#pragma once

// OpenAI's requests: fields checked one by one, and turned into prompts and options. Any thread.
//
// docs/server.md lists every field with what becomes of it. Throws ApiError everywhere: 400 naming the field, 404 for
// another model.

#include <string>
#include <vector>

#include "memoir/server/generation.h"
#include "memoir/server/prompt.h"
#include "memoir/server/request_json.h"

namespace memoir::server {

struct OpenAiRequest {
  std::vector<Prompt> prompts;  // one for a chat
  GenerationOptions options;
  bool is_stream = false;
  bool includes_usage = false;  // at the end of a stream
  bool allows_several_calls = true;
};

OpenAiRequest read_chat_request(const Json& body, const Backend& backend);
OpenAiRequest read_completion_request(const Json& body, const Backend& backend);

/// Throws 404 unless `model` (a request's field, may be absent) is the one that is served.
void check_model_name(const Fields& body, const ServedModel& model);

}  // namespace memoir::server
