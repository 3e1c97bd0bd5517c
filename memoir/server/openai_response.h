#pragma once

// OpenAI's answers as JSON: pure functions from what was generated to what is sent.

#include <string>
#include <vector>

#include "memoir/server/generation.h"
#include "memoir/server/request_json.h"

namespace memoir::server {

/// What all parts of one answer have in common.
struct OpenAiStamp {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::int64_t created;
  std::string model;
};

/// One text, whole.
struct TextResult {
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> calls;
  std::vector<TokenLogprob> logprobs;
  std::string finish_reason;
};

/// "stop", "length" or "tool_calls".
std::string openai_finish_reason(engine::FinishReason reason, bool has_calls);

Json openai_usage(const Generation::Usage& usage);

/// choices[].logprobs of a chat: {"content": [..], "refusal": null}.
Json chat_logprobs(const text::Tokenizer& tokenizer, const std::vector<TokenLogprob>& logprobs);
/// The list inside, which Ollama has as well.
Json logprob_list(const text::Tokenizer& tokenizer, const std::vector<TokenLogprob>& logprobs);
/// choices[].logprobs of a completion. offset: characters of the text before the first of these tokens; moved on.
Json completion_logprobs(const text::Tokenizer& tokenizer, const std::vector<TokenLogprob>& logprobs, int& offset);

/// choices[].message.tool_calls, with new ids.
Json chat_tool_calls(const std::vector<ToolCall>& calls);

Json chat_completion(const OpenAiStamp& stamp, const std::vector<TextResult>& results, const Generation::Usage& usage,
                     const text::Tokenizer& tokenizer, bool has_logprobs);
Json text_completion(const OpenAiStamp& stamp, const std::vector<TextResult>& results, const Generation::Usage& usage,
                     const text::Tokenizer& tokenizer, bool has_logprobs);

/// One part of a stream. choice: an object, or null for the last part, which has the usage. usage: null, or left out
/// where `usage` is discarded.
Json openai_chunk(const OpenAiStamp& stamp, bool is_chat, Json choice, const Json* usage);

Json openai_error(const ApiError& error);

/// GET /v1/models and /v1/models/NAME.
Json openai_model(const ListedModel& model);

/// "data: {..}\n\n"
std::string server_sent_event(const Json& value);

/// Letters and digits that no other call of this process returns, most likely.
std::string random_id(const std::string& prefix);

}  // namespace memoir::server
