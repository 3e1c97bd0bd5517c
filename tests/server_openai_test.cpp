// OpenAI's wire format, field by field, over a fake engine. What the fields mean and look like: OpenAI's API reference
// (chat completions, completions, models, errors).

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "served_fake.h"

namespace memoir::test {
namespace {

class OpenAi : public ServedFake {
 protected:
  RawResponse complete(const Json& body) { return post("/v1/chat/completions", body); }

  std::vector<Json> stream(const std::string& path, Json body, bool expects_done = true) {
    body["stream"] = true;
    const RawResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    std::vector<std::string> data = event_data(response.body);
    if (expects_done) {
      EXPECT_EQ(data.empty() ? "" : data.back(), "[DONE]");
      if (!data.empty()) data.pop_back();
    }
    std::vector<Json> chunks;
    for (const std::string& one : data) chunks.push_back(Json::parse(one));
    return chunks;
  }

  // 400, the field in `param`, and in the message.
  void expect_bad(const std::string& path, const Json& body, const std::string& param) {
    const RawResponse response = post(path, body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    const Json error = response.json().at("error");
    EXPECT_EQ(error.at("param"), Json(param)) << body << error;
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_FALSE(error.at("message").get<std::string>().empty());
  }
  void expect_bad(const Json& changes, const std::string& param) {
    Json body = chat();
    body.update(changes);
    expect_bad("/v1/chat/completions", body, param);
  }
};

TEST_F(OpenAi, AChatCompletionHasEveryField) {
  start(answering("Hello there!"));
  const RawResponse response = complete(chat());
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const Json answer = response.json();
  EXPECT_TRUE(answer.at("id").get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_GT(answer.at("created").get<std::int64_t>(), 1'700'000'000);
  EXPECT_EQ(answer.at("model"), "fake");
  ASSERT_EQ(answer.at("choices").size(), 1U);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice.at("index"), 0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice["message"].at("content"), "Hello there!");
  EXPECT_TRUE(choice["message"].at("refusal").is_null());
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  const auto n_prompt = static_cast<int>(service_->last().prompt.size());
  const auto n_tokens = static_cast<int>(tokenizer_->encode("Hello there!").size());
  const Json usage = answer.at("usage");
  EXPECT_EQ(usage.at("prompt_tokens"), n_prompt);
  EXPECT_EQ(usage.at("completion_tokens"), n_tokens);
  EXPECT_EQ(usage.at("total_tokens"), n_prompt + n_tokens);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), n_prompt / 2);
}

TEST_F(OpenAi, ThePromptIsTheRenderedChatWithItsTurnEnds) {
  start();
  Json body = chat();
  body["messages"] = Json::array(
      {{{"role", "developer"}, {"content", "Be brief."}},
       {{"role", "user"},
        {"content", Json::array({{{"type", "text"}, {"text", "one"}}, {{"type", "text"}, {"text", "two"}}})}}});
  ASSERT_EQ(complete(body).status, 200);
  const auto seen = service_->last();
  const std::string text = "<s>system\nBe brief.</s>\n<s>user\none\ntwo</s>\n<s>assistant\n";
  EXPECT_EQ(seen.prompt, tokenizer_->encode(text, {.add_special = false, .parse_special = true}));
  ASSERT_EQ(seen.turn_ends.size(), 2U);
  for (const int end : seen.turn_ends) {
    EXPECT_EQ(seen.prompt[static_cast<std::size_t>(end) - 1], *tokenizer_->eos());
  }
  EXPECT_EQ(seen.stop_tokens, std::vector<TokenId>{*tokenizer_->eos()});
}

TEST_F(OpenAi, AStreamIsTheSameAnswerInParts) {
  start(answering("Hello there!"));
  Json body = chat();
  body["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> chunks = stream("/v1/chat/completions", body);
  ASSERT_GE(chunks.size(), 4U);
  std::string content;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Json& chunk = chunks[i];
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    EXPECT_EQ(chunk.at("id"), chunks[0].at("id"));
    EXPECT_EQ(chunk.at("created"), chunks[0].at("created"));
    EXPECT_EQ(chunk.at("model"), "fake");
    if (i + 1 == chunks.size()) break;
    EXPECT_TRUE(chunk.at("usage").is_null());
    const Json& choice = chunk.at("choices").at(0);
    EXPECT_EQ(choice.at("index"), 0);
    if (choice.at("delta").contains("content")) content += choice["delta"]["content"];
    const bool is_last = i + 2 == chunks.size();
    EXPECT_EQ(choice.at("finish_reason"), is_last ? Json("stop") : Json());
  }
  EXPECT_EQ(chunks[0]["choices"][0]["delta"].at("role"), "assistant");
  EXPECT_EQ(content, "Hello there!");
  EXPECT_EQ(chunks.back().at("choices"), Json::array());
  EXPECT_GT(chunks.back().at("usage").at("completion_tokens").get<int>(), 0);
}

TEST_F(OpenAi, WithoutAskingAStreamHasNoUsage) {
  start();
  for (const Json& chunk : stream("/v1/chat/completions", chat())) {
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_EQ(chunk.at("choices").size(), 1U);
  }
}

TEST_F(OpenAi, SamplingFieldsReachTheEngine) {
  start();
  Json body = chat();
  body.update({{"temperature", 0.25},
               {"top_p", 0.5},
               {"seed", 42},
               {"presence_penalty", 1.5},
               {"frequency_penalty", -2},
               {"stop", Json::array({"END", "\n\n"})},
               {"max_tokens", 3},
               {"max_completion_tokens", 7},
               {"top_k", 5},
               {"min_p", 0.125},
               {"repetition_penalty", 1.25},
               {"priority", 3},
               {"logit_bias", {{"5", 2.5}, {"7", -100}}}});
  ASSERT_EQ(complete(body).status, 200);
  const auto seen = service_->last();
  EXPECT_EQ(seen.sampler.temperature, 0.25);
  EXPECT_EQ(seen.sampler.top_p, 0.5);
  EXPECT_EQ(seen.sampler.seed, 42U);
  EXPECT_EQ(seen.sampler.presence_penalty, 1.5);
  EXPECT_EQ(seen.sampler.frequency_penalty, -2);
  EXPECT_EQ(seen.sampler.top_k, 5);
  EXPECT_EQ(seen.sampler.min_p, 0.125);
  EXPECT_EQ(seen.sampler.repetition_penalty, 1.25);
  EXPECT_EQ(seen.sampler.logit_bias.at(5), 2.5F);
  EXPECT_EQ(seen.sampler.logit_bias.at(7), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(seen.stop_strings, (std::vector<std::string>{"END", "\n\n"}));
  EXPECT_EQ(seen.max_tokens, 7);
  EXPECT_EQ(seen.priority, 3);
}

TEST_F(OpenAi, WithoutThemTheDefaultsAreOpenAis) {
  start({}, {}, kPlainTemplate, {}, 200);
  ASSERT_EQ(complete(chat()).status, 200);
  const auto seen = service_->last();
  EXPECT_EQ(seen.sampler.temperature, 1);
  EXPECT_EQ(seen.sampler.top_p, 1);
  EXPECT_FALSE(seen.sampler.seed);
  EXPECT_EQ(seen.max_tokens, 200 - static_cast<int>(seen.prompt.size()));
  EXPECT_FALSE(seen.n_likeliest);
}

TEST_F(OpenAi, LengthAndStopStringsAreTold) {
  start(answering("one two END three"));
  Json body = chat();
  body["max_tokens"] = 2;
  const Json cut = complete(body).json();
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(cut["usage"]["completion_tokens"], 2);
  body = chat();
  body["stop"] = "END";
  const Json stopped = complete(body).json();
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped["choices"][0]["message"]["content"], "one two ");
}

TEST_F(OpenAi, SeveralChoicesHaveTheirOwnTextsAndSeeds) {
  FakeService::Options engine;
  engine.answer = [](const engine::Request& request) { return "seed " + std::to_string(*request.sampler.seed); };
  start(std::move(engine));
  Json body = chat();
  body.update({{"n", 3}, {"seed", 10}});
  const Json answer = complete(body).json();
  ASSERT_EQ(answer["choices"].size(), 3U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(answer["choices"][static_cast<std::size_t>(i)]["index"], i);
    EXPECT_EQ(answer["choices"][static_cast<std::size_t>(i)]["message"]["content"], "seed " + std::to_string(10 + i));
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], static_cast<int>(service_->last().prompt.size()));  // once
  std::vector<std::string> texts(3);
  for (const Json& chunk : stream("/v1/chat/completions", body)) {
    const Json& choice = chunk["choices"][0];
    if (choice["delta"].contains("content")) texts.at(choice["index"]) += choice["delta"]["content"];
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"seed 10", "seed 11", "seed 12"}));
}

TEST_F(OpenAi, LogprobsOfAChatHaveTokensBytesAndAlternatives) {
  start(answering("Hé"));
  Json body = chat();
  body.update({{"logprobs", true}, {"top_logprobs", 2}});
  const Json answer = complete(body).json();
  const Json& content = answer["choices"][0]["logprobs"].at("content");
  const std::vector<TokenId> tokens = tokenizer_->encode("Hé");
  ASSERT_EQ(content.size(), tokens.size());
  std::string bytes;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Json& entry = content[i];
    EXPECT_EQ(entry.at("logprob"), -0.5);
    for (const Json& byte : entry.at("bytes")) bytes += static_cast<char>(byte.get<int>());
    EXPECT_TRUE(entry.at("token").is_string());
    ASSERT_EQ(entry.at("top_logprobs").size(), 2U);
    EXPECT_EQ(entry["top_logprobs"][0]["bytes"], entry["bytes"]);
    EXPECT_EQ(entry["top_logprobs"][1].at("logprob"), -1.5);
  }
  EXPECT_EQ(bytes, "Hé");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].at("refusal").is_null());
  std::size_t n_streamed = 0;
  for (const Json& chunk : stream("/v1/chat/completions", body)) {
    const Json& logprobs = chunk["choices"][0]["logprobs"];
    if (!logprobs.is_null()) n_streamed += logprobs["content"].size();
  }
  EXPECT_EQ(n_streamed, tokens.size());
}

TEST_F(OpenAi, ACompletionContinuesTextsAndTokens) {
  start(answering(" world"));
  const RawResponse response = post("/v1/completions", Json{{"model", "fake"}, {"prompt", "Hello"}, {"logprobs", 1}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  EXPECT_TRUE(answer.at("id").get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(answer.at("object"), "text_completion");
  EXPECT_EQ(answer["choices"][0].at("text"), " world");
  EXPECT_EQ(answer["choices"][0].at("finish_reason"), "stop");
  EXPECT_EQ(service_->last().max_tokens, 16);
  EXPECT_EQ(service_->last().prompt, tokenizer_->encode("Hello", {.add_special = true, .parse_special = true}));
  const Json& logprobs = answer["choices"][0].at("logprobs");
  const std::size_t n_tokens = tokenizer_->encode(" world").size();
  EXPECT_EQ(logprobs.at("tokens").size(), n_tokens);
  EXPECT_EQ(logprobs.at("token_logprobs").size(), n_tokens);
  EXPECT_EQ(logprobs.at("top_logprobs")[0].size(), 1U);
  EXPECT_EQ(logprobs.at("text_offset")[0], 0);

  ASSERT_EQ(post("/v1/completions", Json{{"prompt", Json::array({1, 2, 3})}}).status, 200);
  EXPECT_EQ(service_->last().prompt, (std::vector<TokenId>{1, 2, 3}));
  ASSERT_EQ(post("/v1/completions", Json{{"prompt", Json::array({4.0, 5})}}).status, 200);
  EXPECT_EQ(service_->last().prompt, (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(post("/v1/completions", Json{{"prompt", Json::array({4.5, 5})}}).status, 400);
  const Json several =
      post("/v1/completions", Json{{"prompt", Json::array({"a", Json::array({4, 5})})}, {"n", 2}}).json();
  ASSERT_EQ(several["choices"].size(), 4U);
  EXPECT_EQ(several["choices"][3]["index"], 3);
  std::string text;
  for (const Json& chunk : stream("/v1/completions", Json{{"prompt", "x"}})) {
    EXPECT_EQ(chunk["object"], "text_completion");
    text += chunk["choices"][0]["text"];
  }
  EXPECT_EQ(text, " world");
}

TEST_F(OpenAi, ToolCallsAreParsedOutOfTheText) {
  start(answering("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"));
  Json body = chat();
  body["tools"] = Json::array(
      {{{"type", "function"}, {"function", {{"name", "get_weather"}, {"parameters", {{"type", "object"}}}}}}});
  const Json answer = complete(body).json();
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const Json& call = choice["message"].at("tool_calls").at(0);
  EXPECT_TRUE(call.at("id").get<std::string>().starts_with("call_"));
  EXPECT_EQ(call.at("type"), "function");
  EXPECT_EQ(call.at("function").at("name"), "get_weather");
  EXPECT_EQ(Json::parse(call["function"].at("arguments").get<std::string>()), (Json{{"city", "Paris"}}));
  // The template knows no tools: the system message tells of them.
  EXPECT_NE(tokenizer_->decode(service_->last().prompt).find("get_weather"), std::string::npos);

  Json streamed;
  std::string finish;
  for (const Json& chunk : stream("/v1/chat/completions", body)) {
    const Json& part = chunk["choices"][0];
    if (part["delta"].contains("tool_calls")) streamed = part["delta"]["tool_calls"][0];
    if (!part["finish_reason"].is_null()) finish = part["finish_reason"];
  }
  EXPECT_EQ(streamed.at("index"), 0);
  EXPECT_EQ(streamed.at("function").at("name"), "get_weather");
  EXPECT_EQ(finish, "tool_calls");

  body["tool_choice"] = "none";
  EXPECT_EQ(complete(body).json()["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(tokenizer_->decode(service_->last().prompt).find("get_weather"), std::string::npos);
}

TEST_F(OpenAi, CallsAndResultsOfEarlierTurnsReachTheTemplate) {
  start({}, {}, "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}");
  Json body = chat();
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls",
        Json::array(
            {{{"id", "call_1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{\"x\": 1}"}}}}})}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "42"}});
  body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  ASSERT_EQ(complete(body).status, 200);
  const std::string prompt = tokenizer_->decode(service_->last().prompt);
  EXPECT_NE(prompt.find(R"("arguments": {"x": 1})"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find(R"("tool_call_id": "call_1")"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find(R"([{"type": "function", "function": {"name": "f"}}])"), std::string::npos) << prompt;
}

TEST_F(OpenAi, ACallCanBeRequired) {
  start(answering("I would rather talk."));
  Json body = chat();
  body["tools"] =
      Json::array({{{"type", "function"},
                    {"function", {{"name", "a"}, {"parameters", Json::parse(R"({"type": "object", "properties":
         {"n": {"enum": [1, 2]}, "r": {"$ref": "#/$defs/r"}}, "required": ["n", "r"], "additionalProperties": false,
         "$defs": {"r": {"type": "boolean"}}})")}}}},
                   {{"type", "function"},
                    {"function", {{"name", "b"}, {"parameters", Json::parse(R"({"type": "object", "properties":
         {"s": {"type": "string", "pattern": "x"}}})")}}}}});
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "a"}}}};
  const Json answer = complete(body).json();
  ASSERT_EQ(answer["choices"][0]["finish_reason"], "tool_calls") << answer;
  const Json& call = answer["choices"][0]["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(call["name"], "a");
  const Json arguments = Json::parse(call["arguments"].get<std::string>());
  EXPECT_TRUE(arguments.at("n") == 1 || arguments.at("n") == 2);
  EXPECT_TRUE(arguments.at("r").is_boolean());

  body["tool_choice"] = "required";  // b's keyword is not taken: any object will do
  body["max_tokens"] = 2000;
  const Json any = complete(body).json();
  ASSERT_TRUE(any.contains("choices")) << any;
  if (any["choices"][0]["finish_reason"] != "length") {
    const std::set<std::string> names = {"a", "b"};
    EXPECT_TRUE(names.contains(any["choices"][0]["message"]["tool_calls"][0]["function"]["name"].get<std::string>()));
  }
}

// The name stands before the JSON there: it is chosen first, and then its own parameters hold.
TEST_F(OpenAi, ACallCanBeRequiredOfAModelWithChannels) {
  start(answering("I would rather talk."), {},
        "{% if tools %}<|channel|>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant",
        {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"});
  Json body = chat();
  body["tools"] = Json::array();
  for (const char* name : {"weather", "water"}) {
    body["tools"].push_back({{"type", "function"},
                             {"function",
                              {{"name", name},
                               {"parameters",
                                {{"type", "object"},
                                 {"properties", {{"of", {{"const", name}}}}},
                                 {"required", Json::array({"of"})},
                                 {"additionalProperties", false}}}}}});
  }
  const std::vector<Json> choices = {"required", {{"type", "function"}, {"function", {{"name", "water"}}}}};
  for (const Json& choice : choices) {
    body["tool_choice"] = choice;
    const Json answer = complete(body).json();
    ASSERT_TRUE(answer.contains("choices")) << answer;
    ASSERT_EQ(answer["choices"][0]["finish_reason"], "tool_calls") << answer;
    const Json& calls = answer["choices"][0]["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), 1U);
    const std::string name = calls[0]["function"]["name"];
    EXPECT_TRUE(name == "water" || (name == "weather" && choice == "required"));
    EXPECT_EQ(Json::parse(calls[0]["function"]["arguments"].get<std::string>()), (Json{{"of", name}}));
  }
  body["tools"][0]["function"]["name"] = "the weather";
  body["tool_choice"] = "required";
  expect_bad("/v1/chat/completions", body, "tools");
}

TEST_F(OpenAi, MarkersThatAreSpecialTokensAreSeen) {
  start(answering("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]"), {},
        "{% if tools %}[TOOL_CALLS]{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}", {"[TOOL_CALLS]"});
  Json body = chat();
  body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const Json answer = complete(body).json();
  ASSERT_TRUE(answer["choices"][0]["message"].contains("tool_calls")) << answer;
  EXPECT_EQ(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f");
}

TEST_F(OpenAi, ThoughtsAreToldApart) {
  start(answering("<think>Hm.</think>\n\nYes."), {}, std::string(kPlainTemplate) + "{# <think> #}");
  const Json message = complete(chat()).json()["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Yes.");
  EXPECT_EQ(message["reasoning_content"], "Hm.");
}

TEST_F(OpenAi, AResponseFormatIsKeptTo) {
  start(answering("Not JSON at all, whatever you ask."));
  Json body = chat();
  body["response_format"] =
      Json::parse(R"({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema":
      {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}, "ok": {"type": "boolean"}},
       "required": ["color", "ok"], "additionalProperties": false}}})");
  const Json answer = complete(body).json();
  const Json value = Json::parse(answer["choices"][0]["message"]["content"].get<std::string>());
  EXPECT_TRUE(value.at("color") == "red" || value.at("color") == "blue");
  EXPECT_TRUE(value.at("ok").is_boolean());

  body["response_format"] = {{"type", "json_object"}};
  body["max_tokens"] = 3000;
  const Json object = complete(body).json();
  const std::string text = object["choices"][0]["message"]["content"];
  EXPECT_EQ(text[text.find_first_not_of(" \t\r\n")], '{');
  body["response_format"] = {{"type", "text"}};
  EXPECT_EQ(complete(body).json()["choices"][0]["message"]["content"], "Not JSON at all, whatever you ask.");
}

TEST_F(OpenAi, WrongFieldsAreNamed) {
  start();
  expect_bad(Json{{"temperature", -1}}, "temperature");
  expect_bad(Json{{"temperature", "hot"}}, "temperature");
  expect_bad(Json{{"top_p", 1.5}}, "top_p");
  expect_bad(Json{{"n", 0}}, "n");
  expect_bad(Json{{"n", 17}}, "n");
  expect_bad(Json{{"max_tokens", -1}}, "max_tokens");
  expect_bad(Json{{"max_completion_tokens", 1.5}}, "max_completion_tokens");
  expect_bad(Json{{"stop", 3}}, "stop");
  expect_bad(Json{{"stop", ""}}, "stop");
  expect_bad(Json{{"stream", "yes"}}, "stream");
  expect_bad(Json{{"stream_options", {{"include_usage", true}}}}, "stream_options");
  expect_bad(Json{{"logit_bias", {{"x", 1}}}}, "logit_bias");
  expect_bad(Json{{"logit_bias", {{"5", 101}}}}, "logit_bias");
  expect_bad(Json{{"logit_bias", {{"99999", 1}}}}, "logit_bias");
  expect_bad(Json{{"top_logprobs", 2}}, "top_logprobs");
  expect_bad(Json{{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs");
  expect_bad(Json{{"messages", nullptr}}, "messages");
  expect_bad(Json{{"messages", Json::array()}}, "messages");
  expect_bad(Json{{"messages", Json::array({"hi"})}}, "messages[0]");
  expect_bad(Json{{"messages", Json::array({{{"role", "alien"}, {"content", "x"}}})}}, "messages[0].role");
  expect_bad(Json{{"messages", Json::array({{{"role", "user"}}})}}, "messages[0].content");
  expect_bad(Json{{"messages", Json::array({{{"role", "user"}, {"content", 3}}})}}, "messages[0].content");
  expect_bad(Json{{"messages", Json::array({{{"role", "user"}, {"content", Json::array({{{"type", "image_url"}}})}}})}},
             "messages[0].content[0].type");
  expect_bad(Json{{"tools", 1}}, "tools");
  expect_bad(Json{{"tools", Json::array({{{"type", "function"}}})}}, "tools[0].function");
  for (const char* const field : {"description", "parameters", "strict"}) {
    const Json function = {{"name", "f"}, {field, 1}};
    expect_bad(Json{{"tools", Json::array({{{"function", function}}})}}, std::string("tools[0].function.") + field);
  }
  expect_bad(Json{{"tool_choice", "required"}}, "tool_choice");
  expect_bad(Json{{"response_format", {{"type", "xml"}}}}, "response_format.type");
  expect_bad(Json{{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema");
  expect_bad(Json{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"pattern", "x"}}}}}}}},
             "response_format.json_schema.schema");
  expect_bad("/v1/completions", Json{{"prompt", nullptr}}, "prompt");
  expect_bad("/v1/completions", Json{{"prompt", Json::array({1, 600})}}, "prompt");
  expect_bad("/v1/completions", Json{{"prompt", Json::array({-1})}}, "prompt");
}

TEST_F(OpenAi, KnownButUnsupportedIsRefusedUnknownIsIgnored) {
  start();
  for (const char* name :
       {"functions", "function_call", "audio", "web_search_options", "guided_json", "chat_template"}) {
    expect_bad(Json{{name, {{"x", 1}}}}, name);
  }
  expect_bad(Json{{"modalities", Json::array({"text", "audio"})}}, "modalities");
  expect_bad("/v1/completions", Json{{"prompt", "x"}, {"echo", true}}, "echo");
  expect_bad("/v1/completions", Json{{"prompt", "x"}, {"suffix", "y"}}, "suffix");
  expect_bad("/v1/completions", Json{{"prompt", "x"}, {"best_of", 2}}, "best_of");
  Json body = chat();
  body.update({{"user", "me"},
               {"metadata", {{"a", "b"}}},
               {"store", false},
               {"service_tier", "auto"},
               {"brand_new", 1},
               {"modalities", Json::array({"text"})},
               {"seed", nullptr},
               {"tools", nullptr},
               {"stop", nullptr}});
  EXPECT_EQ(complete(body).status, 200);
}

TEST_F(OpenAi, HowManyPromptsThereMayBeIsSaid) {
  start();
  const auto message = [&](const Json& body) {
    const RawResponse response = post("/v1/completions", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(response.json().at("error").at("param"), "prompt") << body;
    return response.json()["error"]["message"].get<std::string>();
  };
  EXPECT_NE(message({{"prompt", Json::array()}}).find("is an empty list"), std::string::npos);
  const Json five = Json::array({"a", "b", "c", "d", "e"});
  EXPECT_NE(message({{"prompt", five}, {"n", 16}}).find("has 5 texts, more than 4 (64 / n, where n is 16)"),
            std::string::npos);
  EXPECT_NE(message({{"prompt", Json(65, "a")}}).find("has 65 texts, more than 64 (64 / n, where n is 1)"),
            std::string::npos);
}

TEST_F(OpenAi, AnotherModelIsNotFound) {
  start();
  Json body = chat();
  body["model"] = "gpt-4";
  const RawResponse response = complete(body);
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(get("/v1/models/gpt-4").status, 404);
  EXPECT_EQ(get("/v1/models/fake").json()["id"], "fake");
  const Json models = get("/v1/models").json();
  EXPECT_EQ(models.at("object"), "list");
  EXPECT_EQ(models.at("data").at(0).at("id"), "fake");
  EXPECT_EQ(models["data"][0].at("object"), "model");
  body.erase("model");
  EXPECT_EQ(complete(body).status, 200);
}

TEST_F(OpenAi, APromptThatDoesNotFitSaysHowLongItIs) {
  start({}, {}, kPlainTemplate, {}, 20);
  const RawResponse response = complete(chat(std::string(100, 'x')));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["code"], "context_length_exceeded");
  EXPECT_NE(response.json()["error"]["message"].get<std::string>().find("context of 20"), std::string::npos);
}

TEST_F(OpenAi, TheTemplatesRefusalIsTheClientsToKnow) {
  start({}, {}, "{{ raise_exception('roles must alternate') }}");
  const RawResponse response = complete(chat());
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.json()["error"]["message"].get<std::string>().find("roles must alternate"), std::string::npos);
}

TEST_F(OpenAi, AFailureOfTheEngineIs500OrAnErrorInTheStream) {
  FakeService::Options engine = answering("Hello there!");
  engine.fails_after = 2;
  start(std::move(engine));
  const RawResponse response = complete(chat());
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.json()["error"]["type"], "server_error");
  const std::vector<Json> chunks = stream("/v1/chat/completions", chat(), /* expects_done = */ false);
  ASSERT_FALSE(chunks.empty());
  EXPECT_TRUE(chunks.back().contains("error"));
}

TEST_F(OpenAi, AFullQueueIs429AtOnce) {
  FakeService::Options engine = answering(long_text());
  engine.token_delay = std::chrono::milliseconds(5);
  engine.max_running = 1;
  engine.max_queued = 1;
  start(std::move(engine));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    clients.back()->send_request("POST", "/v1/chat/completions", chat().dump());
  }
  ASSERT_TRUE(eventually([&] { return service_->n_open() == 2; }));
  const RawResponse response = complete(chat());
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("retry-after"), "1");
  EXPECT_EQ(response.json()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(OpenAi, OfSeveralTextsThatDoNotAllFitNoneStays) {
  FakeService::Options engine = answering(long_text());
  engine.token_delay = std::chrono::milliseconds(2);
  engine.max_running = 2;
  engine.max_queued = 2;
  start(std::move(engine));
  RawClient other(port_);
  other.send_request("POST", "/v1/chat/completions", chat().dump());
  ASSERT_TRUE(eventually([&] { return service_->n_open() == 1; }));
  Json body = chat();
  body["n"] = 4;
  EXPECT_EQ(complete(body).status, 429);
  EXPECT_TRUE(eventually([&] { return service_->n_open() <= 1; }));
}

TEST_F(OpenAi, MoreTextsThanEverFitAreNotWorthAnotherTry) {
  FakeService::Options engine;
  engine.max_running = 2;
  engine.max_queued = 1;
  start(std::move(engine));
  Json body = chat();
  body["n"] = 4;
  const RawResponse refused = complete(body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "n");
  EXPECT_FALSE(refused.headers.contains("retry-after"));
  const Json prompts{{"prompt", {"a", "b", "c", "d"}}, {"max_tokens", 2}};
  EXPECT_EQ(post("/v1/completions", prompts).json()["error"]["param"], "prompt");
  body["n"] = 3;
  EXPECT_EQ(complete(body).status, 200);
}

TEST_F(OpenAi, ResponsesAreNotImplemented) {
  start();
  const RawResponse response = post("/v1/responses", Json{{"input", "x"}});
  EXPECT_EQ(response.status, 501);
  EXPECT_EQ(response.json()["error"]["code"], "not_supported");
}

}  // namespace
}  // namespace memoir::test
