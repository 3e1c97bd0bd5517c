#include "memoir/server/openai_response.h"

#include <random>
#include <utility>

#include "memoir/text/utf8.h"

namespace memoir::server {
namespace {

Json bytes_of(const std::string& piece) {
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

// JSON has no infinity; OpenAI writes this for a token that can't come.
double finite(float logprob) {
  return logprob > -9999.0F ? static_cast<double>(logprob) : -9999.0;
}

Json logprob_entry(const text::Tokenizer& tokenizer, TokenId token, float logprob) {
  const std::string piece = token < tokenizer.n_vocab() ? tokenizer.piece(token) : std::string();
  return {{"token", text::utf8::replace_errors(piece)}, {"logprob", finite(logprob)}, {"bytes", bytes_of(piece)}};
}

std::string piece_text(const text::Tokenizer& tokenizer, TokenId token) {
  return token < tokenizer.n_vocab() ? text::utf8::replace_errors(tokenizer.piece(token)) : std::string();
}

int n_characters(const std::string& text) {
  int count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  return count;
}

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json stamped(const OpenAiStamp& stamp, const char* object) {
  return {{"id", stamp.id}, {"object", object}, {"created", stamp.created}, {"model", stamp.model}};
}

}  // namespace

std::string random_id(const std::string& prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

std::string openai_finish_reason(engine::FinishReason reason, bool has_calls) {
  if (has_calls && reason == engine::FinishReason::kStop) return "tool_calls";
  return std::string(finish_reason_name(reason));
}

Json openai_usage(const Generation::Usage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.drafted_tokens > 0) {
    json["completion_tokens_details"] = {{"accepted_prediction_tokens", usage.accepted_tokens},
                                         {"rejected_prediction_tokens", usage.drafted_tokens - usage.accepted_tokens}};
  }
  return json;
}

Json logprob_list(const text::Tokenizer& tokenizer, const std::vector<TokenLogprob>& logprobs) {
  Json list = Json::array();
  for (const TokenLogprob& one : logprobs) {
    Json entry = logprob_entry(tokenizer, one.token, one.logprob);
    Json likeliest = Json::array();
    for (const auto& [token, logprob] : one.likeliest) likeliest.push_back(logprob_entry(tokenizer, token, logprob));
    entry["top_logprobs"] = std::move(likeliest);
    list.push_back(std::move(entry));
  }
  return list;
}

Json chat_logprobs(const text::Tokenizer& tokenizer, const std::vector<TokenLogprob>& logprobs) {
  return {{"content", logprob_list(tokenizer, logprobs)}, {"refusal", nullptr}};
}

Json completion_logprobs(const text::Tokenizer& tokenizer, const std::vector<TokenLogprob>& logprobs, int& offset) {
  Json tokens = Json::array();
  Json token_logprobs = Json::array();
  Json top_logprobs = Json::array();
  Json offsets = Json::array();
  for (const TokenLogprob& one : logprobs) {
    const std::string text = piece_text(tokenizer, one.token);
    tokens.push_back(text);
    token_logprobs.push_back(finite(one.logprob));
    Json top = Json::object();
    for (const auto& [token, logprob] : one.likeliest) top[piece_text(tokenizer, token)] = finite(logprob);
    top_logprobs.push_back(std::move(top));
    offsets.push_back(offset);
    offset += n_characters(text);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(token_logprobs)},
          {"top_logprobs", std::move(top_logprobs)},
          {"text_offset", std::move(offsets)}};
}

Json chat_tool_calls(const std::vector<ToolCall>& calls) {
  Json list = Json::array();
  for (const ToolCall& call : calls) {
    list.push_back({{"id", random_id("call_")},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return list;
}

Json chat_completion(const OpenAiStamp& stamp, const std::vector<TextResult>& results, const Generation::Usage& usage,
                     const text::Tokenizer& tokenizer, bool has_logprobs) {
  Json choices = Json::array();
  for (const TextResult& result : results) {
    Json message = {{"role", "assistant"}, {"content", result.content}, {"refusal", nullptr}};
    if (result.content.empty() && !result.calls.empty()) message["content"] = nullptr;
    if (!result.reasoning.empty()) message["reasoning_content"] = result.reasoning;
    if (!result.calls.empty()) message["tool_calls"] = chat_tool_calls(result.calls);
    choices.push_back({{"index", choices.size()},
                       {"message", std::move(message)},
                       {"logprobs", has_logprobs ? chat_logprobs(tokenizer, result.logprobs) : Json()},
                       {"finish_reason", result.finish_reason}});
  }
  Json answer = stamped(stamp, "chat.completion");
  answer["choices"] = std::move(choices);
  answer["usage"] = openai_usage(usage);
  return answer;
}

Json text_completion(const OpenAiStamp& stamp, const std::vector<TextResult>& results, const Generation::Usage& usage,
                     const text::Tokenizer& tokenizer, bool has_logprobs) {
  Json choices = Json::array();
  for (const TextResult& result : results) {
    int offset = 0;
    choices.push_back({{"index", choices.size()},
                       {"text", result.content},
                       {"logprobs", has_logprobs ? completion_logprobs(tokenizer, result.logprobs, offset) : Json()},
                       {"finish_reason", result.finish_reason}});
  }
  Json answer = stamped(stamp, "text_completion");
  answer["choices"] = std::move(choices);
  answer["usage"] = openai_usage(usage);
  return answer;
}

Json openai_chunk(const OpenAiStamp& stamp, bool is_chat, Json choice, const Json* usage) {
  Json chunk = stamped(stamp, is_chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = choice.is_null() ? Json::array() : Json::array({std::move(choice)});
  if (usage) chunk["usage"] = *usage;
  return chunk;
}

Json openai_error(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", error_type(error.status())},
            {"param", error.param().empty() ? Json() : Json(error.param())},
            {"code", error.code().empty() ? Json() : Json(error.code())}}}};
}

Json openai_model(const ListedModel& model) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(model.details.modified.time_since_epoch());
  return {{"id", model.name}, {"object", "model"}, {"created", seconds.count()}, {"owned_by", "memoir"}};
}

std::string server_sent_event(const Json& value) {
  return "data: " + dump(value) + "\n\n";
}

}  // namespace memoir::server
