#include "memoir/server/prompt.h"

#include <utility>

#include "memoir/base/error.h"
#include "memoir/engine/conversation.h"
#include "memoir/server/tool_schemas.h"

namespace memoir::server {
namespace {

constexpr std::size_t kMaxMessages = 10'000;
constexpr std::size_t kMaxTools = 512;
// A rendering may be as much work as a long chat needs, and no more: some tenths of a second.
constexpr std::uint64_t kMaxTemplateSteps = 20'000'000;

constexpr const char* kToolsIntroduction = "You may call functions. Here they are, one JSON object a line:\n<tools>\n";
constexpr const char* kToolsInstruction =
    "</tools>\nTo call a function, answer with its name and arguments as JSON between these tags:\n"
    "<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {}}\n</tool_call>";

std::string text_of_parts(const Json& parts, const std::string& field) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string place = field + "[" + std::to_string(i) + "]";
    const Fields part(parts[i], place);
    const std::string type = part.need_text("type");
    if (type != "text" && type != "input_text" && type != "refusal") {
      throw unsupported_field(place + ".type",
                              "content of type " + type.substr(0, 50) + " is not supported, only text");
    }
    text += (text.empty() ? "" : "\n") + part.need_text(type == "refusal" ? "refusal" : "text");
  }
  return text;
}

Json arguments_object(const Json& value, const std::string& field) {
  if (value.is_object()) return value;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    try {
      return parse_body(text.empty() ? "{}" : text);
    } catch (const ApiError&) {
    }
  }
  throw bad_field(field, "is no JSON object");
}

Json tool_calls_of(const Json& calls, const std::string& field) {
  Json result = Json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string place = field + "[" + std::to_string(i) + "]";
    const Fields call(calls[i], place);
    const Json* function = call.object("function");
    if (!function) throw bad_field(place + ".function", "is missing");
    const Fields fields(*function, place + ".function");
    Json made = Json::object();
    if (const auto id = call.text("id")) made["id"] = *id;
    made["type"] = "function";
    const Json* arguments = fields.find("arguments");
    made["function"] = {
        {"name", fields.need_text("name")},
        {"arguments", arguments ? arguments_object(*arguments, place + ".function.arguments") : Json::object()}};
    result.push_back(std::move(made));
  }
  return result;
}

std::string role_of(const Fields& message) {
  const std::string role = message.need_text("role");
  if (role == "developer") return "system";  // OpenAI's newer word
  if (role == "system" || role == "user" || role == "assistant" || role == "tool") return role;
  throw bad_field(message.name_of("role"), "is none of system, developer, user, assistant, tool");
}

Json template_message(const Json& message, const std::string& place) {
  const Fields fields(message, place);
  Json made = {{"role", role_of(fields)}, {"content", ""}};
  for (const char* name : {"images", "audio"}) {
    const Json* media = fields.find(name);
    if (media && !media->empty()) throw unsupported_field(fields.name_of(name), "only text is supported");
  }
  const Json* content = fields.find("content");
  if (content && content->is_array()) {
    made["content"] = text_of_parts(*content, place + ".content");
  } else if (const auto text = fields.text("content")) {
    made["content"] = *text;
  }
  for (const char* name : {"name", "tool_call_id", "tool_name", "reasoning_content", "thinking"}) {
    if (const auto text = fields.text(name)) made[name] = *text;
  }
  if (made.contains("thinking") && !made.contains("reasoning_content")) made["reasoning_content"] = made["thinking"];
  if (made.contains("tool_name") && !made.contains("name")) made["name"] = made["tool_name"];
  const Json* calls = fields.list("tool_calls");
  if (calls && !calls->empty()) made["tool_calls"] = tool_calls_of(*calls, place + ".tool_calls");
  if (!content && !(made["role"] == "assistant" && made.contains("tool_calls"))) {
    throw bad_field(place + ".content", "is missing");
  }
  return made;
}

// Calls and results as text, for a template that knows neither.
void spell_out_calls(Json& messages) {
  for (Json& message : messages) {
    std::string content = message["content"];
    if (message.contains("tool_calls")) {
      for (const Json& call : message["tool_calls"]) {
        const Json& function = call["function"];
        content += (content.empty() ? "" : "\n") + std::string("<tool_call>\n") + dump(function) + "\n</tool_call>";
      }
      message.erase("tool_calls");
    }
    if (message["role"] == "tool") {
      message["role"] = "user";
      content = "<tool_response>\n" + content + "\n</tool_response>";
    }
    message["content"] = std::move(content);
  }
}

void describe_tools(Json& messages, const Json& tools) {
  std::string text = kToolsIntroduction;
  for (const Json& tool : tools) text += dump(tool["function"]) + "\n";
  text += kToolsInstruction;
  if (!messages.empty() && messages[0]["role"] == "system") {
    messages[0]["content"] = messages[0]["content"].get<std::string>() + "\n\n" + text;
  } else {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", std::move(text)}});
  }
}

std::string render(const ServedModel& model, ChatInput input) {
  text::ChatTemplate::Inputs inputs = engine::template_inputs(model.tokenizer(), std::move(input.messages));
  inputs.tools = std::move(input.tools);
  inputs.extra = std::move(input.extra);
  inputs.max_steps = kMaxTemplateSteps;
  try {
    return model.chat_template()->render(inputs);
  } catch (const text::TemplateRefusal& refusal) {
    throw bad_field("messages", "the model's chat template refuses them: " + refusal.message().substr(0, 500));
  } catch (const InputError& error) {
    throw bad_field("messages", std::string("the model's chat template fails on them: ") + error.what());
  }
}

std::vector<TokenId> encode(const ServedModel& model, std::string_view text, bool add_special) {
  try {
    return model.tokenizer().encode(text, {.add_special = add_special, .parse_special = true});
  } catch (const InputError& error) {
    throw ApiError(400, std::string("the text can't be encoded: ") + error.what());
  }
}

std::vector<TokenId> tokens_of(const Json& list, const std::string& field) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (const Json& one : list) {
    const std::optional<std::int64_t> token = whole_number(one);
    if (!token || *token < 0 || *token > kMaxVocab) throw bad_field(field, "has a member that is no token");
    tokens.push_back(static_cast<TokenId>(*token));
  }
  return tokens;
}

}  // namespace

Prompt chat_prompt(const ServedModel& model, ChatInput input) {
  if (!model.chat_template()) throw ApiError(400, "the model has no chat template: use completions", "messages");
  if (!model.template_has_tools()) {
    spell_out_calls(input.messages);
    if (!input.tools.is_null()) describe_tools(input.messages, input.tools);
    input.tools = nullptr;
  }
  const std::string text = render(model, std::move(input));
  Prompt prompt;
  prompt.tokens = encode(model, text, false);
  if (prompt.tokens.empty()) throw bad_field("messages", "the prompt is empty");
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  prompt.begins_in_thoughts =
      model.may_think() && end != std::string::npos && std::string_view(text).substr(0, end + 1).ends_with("<think>");
  prompt.turn_ends = engine::turn_ends(prompt.tokens, model.end_tokens());
  return prompt;
}

Prompt text_prompt(const ServedModel& model, std::string_view text) {
  Prompt prompt;
  prompt.tokens = encode(model, text, true);
  if (prompt.tokens.empty()) {  // begin a text where the model has a token for that
    const auto begin = model.tokenizer().bos() ? model.tokenizer().bos() : model.tokenizer().eos();
    if (!begin) throw bad_field("prompt", "is empty");
    prompt.tokens.push_back(*begin);
  }
  prompt.turn_ends = engine::turn_ends(prompt.tokens, model.end_tokens());
  return prompt;
}

Prompt token_prompt(const ServedModel& model, std::vector<TokenId> tokens, const std::string& field) {
  if (tokens.empty()) throw bad_field(field, "is empty");
  for (const TokenId token : tokens) {
    if (token < 0 || token >= model.n_vocab()) {
      throw bad_field(
          field, "token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(model.n_vocab()));
    }
  }
  Prompt prompt;
  prompt.tokens = std::move(tokens);
  prompt.turn_ends = engine::turn_ends(prompt.tokens, model.end_tokens());
  return prompt;
}

std::vector<Prompt> read_prompts(const Fields& body, const char* name, const ServedModel& model, std::size_t max_count,
                                 const std::string& why) {
  const std::string field = body.name_of(name);
  const Json* prompt = body.find(name);
  if (!prompt) throw bad_field(field, "is missing");
  if (prompt->is_string()) return {text_prompt(model, prompt->get_ref<const std::string&>())};
  if (!prompt->is_array()) throw bad_field(field, "is neither a text nor a list");
  if (prompt->empty()) throw bad_field(field, "is an empty list: expected a text, tokens, or a list of either");
  if ((*prompt)[0].is_number()) return {token_prompt(model, tokens_of(*prompt, field), field)};
  if (prompt->size() > max_count) {
    throw bad_field(field, "has " + std::to_string(prompt->size()) + " texts, more than " + std::to_string(max_count) +
                               (why.empty() ? "" : " (" + why + ")"));
  }
  std::vector<Prompt> prompts;
  for (const Json& one : *prompt) {
    if (one.is_string()) {
      prompts.push_back(text_prompt(model, one.get_ref<const std::string&>()));
    } else if (one.is_array()) {
      prompts.push_back(token_prompt(model, tokens_of(one, field), field));
    } else {
      throw bad_field(field, "has a member that is neither a text nor a list of tokens");
    }
  }
  return prompts;
}

Json template_messages(const Json& messages, const std::string& field) {
  if (!messages.is_array() || messages.empty()) throw bad_field(field, "is no list with at least one message");
  if (messages.size() > kMaxMessages)
    throw bad_field(field, "has more than " + std::to_string(kMaxMessages) + " members");
  Json made = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    made.push_back(template_message(messages[i], field + "[" + std::to_string(i) + "]"));
  }
  return made;
}

void check_tools(const Json& tools) {
  if (tools.size() > kMaxTools) throw bad_field("tools", "has more than " + std::to_string(kMaxTools) + " members");
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string place = "tools[" + std::to_string(i) + "]";
    const Fields tool(tools[i], place);
    if (tool.text("type").value_or("function") != "function") {
      throw unsupported_field(place + ".type", "only function is supported");
    }
    const Json* function = tool.object("function");
    if (!function) throw bad_field(place + ".function", "is missing");
    const Fields fields(*function, place + ".function");
    if (fields.need_text("name").empty()) throw bad_field(place + ".function.name", "is empty");
    fields.text("description");
    if (const Json* parameters = fields.object("parameters"))
      check_parameters(*parameters, place + ".function.parameters");
    fields.flag("strict");
  }
}

Json tool_parameters(const Json& tool) {
  const Json* parameters = Fields(tool["function"]).object("parameters");
  return parameters && !parameters->empty() ? *parameters : Json{{"type", "object"}};
}

std::string tool_name(const Json& tool) {
  return tool["function"]["name"];
}

}  // namespace memoir::server
