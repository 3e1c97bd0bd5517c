// Ollama's wire format, field by field, over a fake engine. What the fields mean and look like: Ollama's API document
// (docs/api.md).

#include <gtest/gtest.h>

#include <sstream>

#include "served_fake.h"

namespace memoir::test {
namespace {

class Ollama : public ServedFake {
 protected:
  static Json generate(const std::string& prompt = "Hi") { return {{"model", "fake"}, {"prompt", prompt}}; }
  static Json whole(Json body) {
    body["stream"] = false;
    return body;
  }

  std::vector<Json> stream(const std::string& path, const Json& body) {
    const RawResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.headers.at("content-type"), "application/x-ndjson");
    std::vector<Json> parts;
    std::istringstream lines(response.body);
    for (std::string line; std::getline(lines, line);) parts.push_back(Json::parse(line));
    return parts;
  }

  void expect_bad(const std::string& path, Json body, const Json& changes, const std::string& field) {
    body.update(changes);
    const RawResponse response = post(path, body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    EXPECT_TRUE(response.json().at("error").get<std::string>().starts_with(field + ":")) << response.body;
  }

  static void expect_last(const Json& part) {
    EXPECT_EQ(part.at("done"), true);
    EXPECT_EQ(part.at("done_reason"), "stop");
    EXPECT_GT(part.at("total_duration").get<std::int64_t>(), 0);
    EXPECT_EQ(part.at("load_duration"), 0);
    EXPECT_GT(part.at("prompt_eval_count").get<int>(), 0);
    EXPECT_EQ(part.at("prompt_eval_duration"), 250'000'000);  // the fake's 0.25 s
    EXPECT_GT(part.at("eval_count").get<int>(), 0);
    EXPECT_EQ(part.at("eval_duration"), 500'000'000);
  }
};

TEST_F(Ollama, GenerateStreamsLinesUnlessToldNotTo) {
  start(answering("Hello there!"));
  const std::vector<Json> parts = stream("/api/generate", generate());
  ASSERT_GE(parts.size(), 2U);
  std::string text;
  for (const Json& part : parts) {
    EXPECT_EQ(part.at("model"), "fake");
    EXPECT_EQ(part.at("created_at").get<std::string>().size(), std::string("2026-11-28T09:25:39.123456789Z").size());
    EXPECT_EQ(part.at("done"), &part == &parts.back());
    text += part.at("response");
  }
  EXPECT_EQ(text, "Hello there!");
  expect_last(parts.back());
  EXPECT_EQ(tokenizer_->decode(service_->last().prompt), "<s>user\nHi</s>\n<s>assistant\n");

  const Json answer = post("/api/generate", whole(generate())).json();
  EXPECT_EQ(answer.at("response"), "Hello there!");
  expect_last(answer);
}

TEST_F(Ollama, SystemAndRawShapeThePrompt) {
  start();
  Json body = whole(generate());
  body["system"] = "Be brief.";
  ASSERT_EQ(post("/api/generate", body).status, 200);
  EXPECT_EQ(tokenizer_->decode(service_->last().prompt), "<s>system\nBe brief.</s>\n<s>user\nHi</s>\n<s>assistant\n");
  body["raw"] = true;
  EXPECT_EQ(post("/api/generate", body).status, 400);  // as Ollama answers to both
  body.erase("system");
  ASSERT_EQ(post("/api/generate", body).status, 200);
  EXPECT_EQ(tokenizer_->decode(service_->last().prompt), "Hi");
}

TEST_F(Ollama, ChatStreamsMessages) {
  start(answering("Hello there!"));
  const std::vector<Json> parts = stream("/api/chat", chat());
  std::string text;
  for (const Json& part : parts) {
    EXPECT_EQ(part.at("message").at("role"), "assistant");
    text += part["message"].at("content");
  }
  EXPECT_EQ(text, "Hello there!");
  expect_last(parts.back());
  const Json answer = post("/api/chat", whole(chat())).json();
  EXPECT_EQ(answer.at("message").at("content"), "Hello there!");
  expect_last(answer);
}

TEST_F(Ollama, OptionsReachTheEngineAndTheDefaultsAreOllamas) {
  start();
  Json body = whole(chat());
  ASSERT_EQ(post("/api/chat", body).status, 200);
  auto seen = service_->last();
  EXPECT_EQ(seen.sampler.temperature, 0.8);
  EXPECT_EQ(seen.sampler.top_k, 40);
  EXPECT_EQ(seen.sampler.top_p, 0.9);
  EXPECT_EQ(seen.sampler.repetition_penalty, 1.1);
  EXPECT_EQ(seen.sampler.penalty_window, 64);
  body["options"] = {{"temperature", 0},
                     {"top_k", 3},
                     {"top_p", 0.5},
                     {"min_p", 0.25},
                     {"seed", 7},
                     {"num_predict", 5},
                     {"stop", Json::array({"END"})},
                     {"repeat_penalty", 1.5},
                     {"repeat_last_n", 10},
                     {"presence_penalty", 1},
                     {"frequency_penalty", 0.5},
                     {"num_ctx", 2048},
                     {"num_gpu", 1}};
  ASSERT_EQ(post("/api/chat", body).status, 200);
  seen = service_->last();
  EXPECT_EQ(seen.sampler.temperature, 0);
  EXPECT_EQ(seen.sampler.top_k, 3);
  EXPECT_EQ(seen.sampler.top_p, 0.5);
  EXPECT_EQ(seen.sampler.min_p, 0.25);
  EXPECT_EQ(seen.sampler.seed, 7U);
  EXPECT_EQ(seen.sampler.repetition_penalty, 1.5);
  EXPECT_EQ(seen.sampler.penalty_window, 10);
  EXPECT_EQ(seen.sampler.presence_penalty, 1);
  EXPECT_EQ(seen.sampler.frequency_penalty, 0.5);
  EXPECT_EQ(seen.max_tokens, 5);
  EXPECT_EQ(seen.stop_strings, std::vector<std::string>{"END"});
  body["options"] = {{"num_predict", -1}};
  ASSERT_EQ(post("/api/chat", body).status, 200);
  EXPECT_EQ(service_->last().max_tokens, 4096 - static_cast<int>(service_->last().prompt.size()));
}

TEST_F(Ollama, ToolCallsHaveArgumentsAsObjects) {
  start(answering("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"));
  Json body = chat();
  body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::object()}}}}});
  const Json message = post("/api/chat", whole(body)).json().at("message");
  EXPECT_EQ(message.at("tool_calls"), Json::parse(R"([{"function": {"name": "f", "arguments": {"x": 1}}}])"));
  EXPECT_EQ(message.at("content"), "");
  body["messages"].push_back(message);
  body["messages"].push_back({{"role", "tool"}, {"tool_name", "f"}, {"content", "42"}});
  EXPECT_EQ(post("/api/chat", whole(body)).status, 200);
  EXPECT_NE(tokenizer_->decode(service_->last().prompt).find("<tool_response>\n42"), std::string::npos);
  bool has_calls = false;
  for (const Json& part : stream("/api/chat", body)) has_calls |= part["message"].contains("tool_calls");
  EXPECT_TRUE(has_calls);
}

TEST_F(Ollama, FormatsAreKeptTo) {
  start(answering("no JSON"));
  Json body = whole(generate());
  body["format"] = Json::parse(R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                   "additionalProperties": false})");
  const Json answer = post("/api/generate", body).json();
  EXPECT_TRUE(Json::parse(answer.at("response").get<std::string>()).at("a").is_boolean()) << answer;
  body["format"] = "";
  EXPECT_EQ(post("/api/generate", body).json().at("response"), "no JSON");
  body["format"] = "json";
  body["options"] = {{"num_predict", 200}};
  EXPECT_EQ(post("/api/generate", body).status, 200);
}

TEST_F(Ollama, ThinkingIsToldApartOrHidden) {
  start(answering("<think>Hm.</think>Yes."), {}, std::string(kPlainTemplate) + "{# <think> #}");
  Json body = whole(chat());
  body["think"] = true;
  Json message = post("/api/chat", body).json().at("message");
  EXPECT_EQ(message.at("thinking"), "Hm.");
  EXPECT_EQ(message.at("content"), "Yes.");
  body["think"] = false;
  message = post("/api/chat", body).json().at("message");
  EXPECT_FALSE(message.contains("thinking"));
  EXPECT_EQ(message.at("content"), "Yes.");
}

TEST_F(Ollama, LogprobsComeWhereAskedFor) {
  start(answering("Hi"));
  Json body = whole(generate());
  body.update({{"logprobs", true}, {"top_logprobs", 1}});
  const Json answer = post("/api/generate", body).json();
  ASSERT_TRUE(answer.contains("logprobs")) << answer;
  EXPECT_EQ(answer["logprobs"].size(), tokenizer_->encode("Hi").size());
  EXPECT_EQ(answer["logprobs"][0].at("logprob"), -0.5);
  EXPECT_EQ(answer["logprobs"][0].at("top_logprobs").size(), 1U);
}

TEST_F(Ollama, NothingAskedLoadsTheModel) {
  start();
  const Json answer = post("/api/generate", whole(Json{{"model", "fake"}, {"keep_alive", "5m"}})).json();
  EXPECT_EQ(answer.at("done"), true);
  EXPECT_EQ(answer.at("done_reason"), "load");
  EXPECT_EQ(post("/api/chat", Json{{"model", "fake:latest"}, {"messages", Json::array()}}).status, 200);
  EXPECT_EQ(service_->stats().n_submitted, 0U);
}

TEST_F(Ollama, WrongAndUnsupportedFieldsAreNamed) {
  start();
  const std::string path = "/api/generate";
  expect_bad(path, generate(), Json{{"model", nullptr}}, "model");
  expect_bad(path, generate(), Json{{"options", 1}}, "options");
  expect_bad(path, generate(), Json{{"options", {{"temperature", "x"}}}}, "options.temperature");
  expect_bad(path, generate(), Json{{"options", {{"mirostat", 2}}}}, "options.mirostat");
  expect_bad(path, generate(), Json{{"options", {{"stop", 1}}}}, "options.stop");
  expect_bad(path, generate(), Json{{"images", Json::array({"aGk="})}}, "images");
  expect_bad(path, generate(), Json{{"suffix", "x"}}, "suffix");
  expect_bad(path, generate(), Json{{"template", "x"}}, "template");
  expect_bad(path, generate(), Json{{"context", Json::array({1})}}, "context");
  expect_bad(path, generate(), Json{{"format", "xml"}}, "format");
  expect_bad(path, generate(), Json{{"format", {{"pattern", "x"}}}}, "format");
  for (const Json& wrong : {Json("soon"), Json(true), Json::array({5}), Json::object()}) {
    Json body = generate();
    body["keep_alive"] = wrong;
    const auto response = post(path, body);
    EXPECT_EQ(response.status, 400) << wrong;
    EXPECT_EQ(response.json().at("error"), "keep_alive: is neither a number of seconds nor a duration like \"5m\"");
  }
  expect_bad(path, generate(), Json{{"prompt", ""}, {"keep_alive", 0}}, "keep_alive");
  expect_bad(path, generate(), Json{{"think", true}}, "think");
  // Also where nothing is asked but to load the model.
  for (const char* const field : {"raw", "system", "think"}) {
    expect_bad(path, generate(), Json{{"prompt", ""}, {field, Json::object()}}, field);
  }
  const Json nameless = {{{"function", {{"description", "x"}}}}};
  expect_bad("/api/chat", chat(), Json{{"messages", Json::array()}, {"tools", nameless}}, "tools[0].function.name");
  expect_bad("/api/chat", chat(), Json{{"messages", Json::array()}, {"think", "high"}}, "think");
  expect_bad("/api/chat", chat(), Json{{"messages", 1}}, "messages");
  expect_bad("/api/chat", chat(),
             Json{{"messages", Json::array({{{"role", "user"}, {"content", "x"}, {"images", Json::array({"a"})}}})}},
             "messages[0].images");
}

TEST_F(Ollama, ErrorsHaveOllamasForm) {
  start();
  Json body = generate();
  body["model"] = "llama3";
  const RawResponse response = post("/api/generate", body);
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.json(), (Json{{"error", "model 'llama3' not found"}}));
  EXPECT_EQ(post("/api/pull", generate()).status, 501);
  EXPECT_TRUE(post("/api/nothing", generate()).json().at("error").is_string());
}

TEST_F(Ollama, AFailureInAStreamIsALine) {
  FakeService::Options engine = answering("Hello there!");
  engine.fails_after = 2;
  start(std::move(engine));
  const std::vector<Json> parts = stream("/api/generate", generate());
  ASSERT_FALSE(parts.empty());
  EXPECT_TRUE(parts.back().contains("error"));
  EXPECT_EQ(post("/api/generate", whole(generate())).status, 500);
}

TEST_F(Ollama, TagsShowPsAndVersionDescribeTheModel) {
  start();
  const Json tag = get("/api/tags").json().at("models").at(0);
  EXPECT_EQ(tag.at("name"), "fake:latest");
  EXPECT_EQ(tag.at("model"), "fake:latest");
  EXPECT_EQ(tag.at("size"), 98'000'000);
  EXPECT_EQ(tag.at("modified_at"), "2025-10-09T08:53:20.000000000Z");
  EXPECT_EQ(tag.at("digest").get<std::string>().size(), 64U);
  EXPECT_EQ(tag.at("details").at("family"), "llama");
  EXPECT_EQ(tag["details"].at("format"), "gguf");
  EXPECT_EQ(tag["details"].at("parameter_size"), "135M");
  EXPECT_EQ(tag["details"].at("quantization_level"), "Q4_1");
  const Json running = get("/api/ps").json().at("models").at(0);
  EXPECT_EQ(running.at("name"), "fake:latest");
  EXPECT_TRUE(running.contains("expires_at"));
  EXPECT_EQ(running.at("size_vram"), 0);
  const Json shown = post("/api/show", Json{{"model", "fake"}}).json();
  EXPECT_EQ(shown.at("template"), kPlainTemplate);
  EXPECT_EQ(shown.at("model_info").at("general.architecture"), "llama");
  EXPECT_EQ(shown["model_info"].at("llama.context_length"), 4096);
  EXPECT_EQ(shown["model_info"].at("llama.embedding_length"), kFakeEmbedding);
  EXPECT_EQ(shown.at("capabilities"), Json::array({"completion", "tools"}));
  EXPECT_EQ(post("/api/show", Json{{"name", "none"}}).status, 404);
  EXPECT_EQ(get("/api/version").json(), (Json{{"version", "1.2.3"}}));
}

}  // namespace
}  // namespace memoir::test
