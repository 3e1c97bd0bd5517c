#pragma once

// From a client's messages or text to the tokens of a prompt. Any thread.

#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/server/request_json.h"
#include "memoir/server/served_model.h"

namespace memoir::server {

struct ChatInput {
  /// As templates want them: role, content as text, tool_calls with arguments as objects.
  Json messages = Json::array();
  Json tools;  // a list as OpenAI's, or null
  Json extra;  // further variables of the template, an object or null
};

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<int> turn_ends;       // offsets behind the tokens that end a turn
  bool begins_in_thoughts = false;  // it ends with <think>
};

/// Renders and encodes a chat. A model whose template knows no tools gets them described in the system message, and
/// calls and their results as text. Throws ApiError 400 where the model has no template or it refuses the messages.
Prompt chat_prompt(const ServedModel& model, ChatInput input);

/// A text as it is, with what the tokenizer puts around one.
Prompt text_prompt(const ServedModel& model, std::string_view text);

/// Tokens as they are. Throws ApiError 400 naming `field` for one outside the vocabulary.
Prompt token_prompt(const ServedModel& model, std::vector<TokenId> tokens, const std::string& field);

/// A field that is a text, a list of tokens, or a list of either, of max_count at most. why: where that number is from,
/// for the message. Throws ApiError 400 naming the field.
std::vector<Prompt> read_prompts(const Fields& body, const char* name, const ServedModel& model, std::size_t max_count,
                                 const std::string& why = "");

/// OpenAI's messages (Ollama's differ in little) in the form of ChatInput. Throws ApiError 400 naming what is wrong.
Json template_messages(const Json& messages, const std::string& field);

/// Checks a list of tools: each {"type": "function", "function": {"name": .., ..}}.
void check_tools(const Json& tools);

/// OpenAI's tools that a schema can be made of: the parameters of the named one; {} where it gives none.
Json tool_parameters(const Json& tool);
std::string tool_name(const Json& tool);

}  // namespace memoir::server
