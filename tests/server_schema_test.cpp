// What schemas and tools the server takes, and what becomes of a request that can't be answered: over a fake engine,
// for both interfaces. What a schema means, JSON Schema (draft 2020-12) says.

#include <string>
#include <utility>
#include <vector>

#include "served_fake.h"

namespace memoir::test {
namespace {

class Schemas : public ServedFake {
 protected:
  static Json formatted(Json schema) {
    Json body = chat();
    body["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"name", "x"}, {"schema", std::move(schema)}}}};
    return body;
  }

  static Json with_tool(Json parameters, const Json& choice = "auto") {
    Json body = chat();
    body["tools"] =
        Json::array({{{"type", "function"}, {"function", {{"name", "first"}}}},
                     {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", std::move(parameters)}}}}});
    body["tool_choice"] = choice;
    return body;
  }

  // 400, and the field in `param` and in the message. Returns the message.
  std::string bad(const Json& body, const std::string& param) const {
    const RawResponse response = post("/v1/chat/completions", body);
    EXPECT_EQ(response.status, 400) << body.dump().substr(0, 300) << response.body;
    const Json error = response.json().at("error");
    EXPECT_EQ(error.at("param"), param);
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    const std::string message = error.at("message");
    EXPECT_EQ(message.substr(0, param.size() + 2), param + ": ");
    return message;
  }

  Json value_of(const Json& body) const {
    const Json answer = post("/v1/chat/completions", body).json();
    EXPECT_TRUE(answer.contains("choices")) << answer;
    return Json::parse(answer.at("choices").at(0).at("message").at("content").get<std::string>());
  }
};

const char* const kEndless = R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"},
                                 "minItems": 1, "maxItems": 1}}})";

Json deep(int n) {
  Json schema = {{"type", "null"}};
  for (int i = 0; i < n; ++i) schema = {{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}};
  return schema;
}

Json bans(int n) {
  Json biases = Json::object();
  for (int id = 0; id < n; ++id) biases[std::to_string(id)] = -100;
  return biases;
}

TEST_F(Schemas, OneWithoutAFiniteValueIsRefusedAtTheStart) {
  start();
  const std::string field = "response_format.json_schema.schema";
  EXPECT_NE(bad(formatted(Json::parse(kEndless)), field).find("#/$defs/n"), std::string::npos);
  EXPECT_NE(bad(formatted(deep(65)), field).find("64"), std::string::npos);
  Json streamed = formatted(Json::parse(kEndless));
  streamed["stream"] = true;
  bad(streamed, field);
  EXPECT_EQ(service_->last().prompt.size(), 0U);  // the engine was never asked
  for (const char* path : {"/api/generate", "/api/chat"}) {
    Json body = chat();
    body["prompt"] = "Hi";
    body["format"] = Json::parse(kEndless);
    const RawResponse response = post(path, body);
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(response.json().at("error").get<std::string>().substr(0, 8), "format: ");
  }
}

TEST_F(Schemas, ABranchThatCannotBeClosedIsNotOpened) {
  start(answering(std::string(80, '[')));  // what the engine would write
  Json body = formatted(Json::parse(R"({"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#"},
      {"type": "object", "properties": {"a": {"type": "array", "minItems": 1, "items": {"type": "null"}}},
       "required": ["a"], "additionalProperties": false}]}})"));
  body["max_tokens"] = 3000;
  const RawResponse response = post("/v1/chat/completions", body);
  ASSERT_EQ(response.status, 200) << response.body;
  const Json choice = response.json().at("choices").at(0);
  if (choice.at("finish_reason") == "stop") {
    EXPECT_TRUE(Json::accept(choice.at("message").at("content").get<std::string>()));
  } else {
    EXPECT_EQ(choice.at("finish_reason"), "length");
  }
}

TEST_F(Schemas, LongEnumsAreTakenTooManyObjectsNot) {
  start(answering("\"v4999\""));
  Json values = Json::array();
  Json constants = Json::array();
  Json objects = Json::array();
  for (int i = 0; i < 5000; ++i) {
    values.push_back("v" + std::to_string(i));
    constants.push_back({{"const", "v" + std::to_string(i)}});
    objects.push_back({{"type", "object"}, {"properties", {{"p" + std::to_string(i), {{"type", "null"}}}}}});
  }
  EXPECT_EQ(value_of(formatted({{"enum", values}})), "v4999");
  EXPECT_EQ(value_of(formatted({{"anyOf", constants}})), "v4999");
  const std::string field = "response_format.json_schema.schema";
  const Json many = {{"type", "array"}, {"items", {{"anyOf", objects}}}};
  EXPECT_NE(bad(formatted(many), field).find("#/items"), std::string::npos);
  Json body = chat();
  body["stream"] = false;
  body["format"] = {{"enum", values}};
  EXPECT_EQ(post("/api/chat", body).json().at("message").at("content"), "\"v4999\"");
  body["format"] = many;
  EXPECT_EQ(post("/api/chat", body).status, 400);
}

// Each level doubles what is open: nothing at the start tells.
TEST_F(Schemas, AlternativesThatGrowAreTheRequestsFaultToo) {
  start(answering(std::string(60, '[')));
  Json body = formatted(Json::parse(R"({"$defs": {"a": {"anyOf": [{"items": {"$ref": "#/$defs/a"}},
      {"items": {"$ref": "#/$defs/a"}, "type": "array"}]}}, "$ref": "#/$defs/a"})"));
  const RawResponse response = post("/v1/chat/completions", body);
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.json()["error"]["message"].get<std::string>().find("4096"), std::string::npos) << response.body;
  body["response_format"] = nullptr;
  EXPECT_EQ(post("/v1/chat/completions", body).status, 200);
}

TEST_F(Schemas, BansThatLeaveNothingAreTheRequestsFault) {
  start(answering("Hello there!"));
  Json body = chat();
  body["response_format"] = {{"type", "json_object"}};
  body["logit_bias"] = bans(526);
  bad(body, "logit_bias");
  body["stream"] = true;
  const RawResponse streamed = post("/v1/chat/completions", body);
  EXPECT_EQ(streamed.status, 200);
  const std::vector<std::string> events = event_data(streamed.body);
  ASSERT_FALSE(events.empty());
  const Json error = Json::parse(events.back()).at("error");
  EXPECT_EQ(error.at("param"), "logit_bias");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  // Also without a grammar; a ban that leaves something is none.
  Json plain = chat();
  plain["logit_bias"] = bans(526);
  bad(plain, "logit_bias");
  plain["logit_bias"] = bans(5);
  EXPECT_EQ(post("/v1/chat/completions", plain).status, 200);
}

// ---- Tools

TEST_F(Schemas, ParametersThatAreNoObjectAreRefused) {
  start(answering("I would rather talk."));
  const std::vector<const char*> wrong = {
      R"({"type": "array", "items": {"type": "string"}})",
      R"({"type": "string"})",
      R"({"const": 5})",
      R"({"type": ["null"]})",
      R"({"enum": ["a"]})",
      R"({"anyOf": [{"type": "integer"}]})",
      R"({"oneOf": [{"type": "integer"}, {"enum": [1]}]})",
      R"({"allOf": [{"type": "object"}, {"type": "string"}]})",
      R"({"type": "string", "pattern": "x"})",
      R"({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "null"}}})",
      R"({"type": "object", "properties": {"a": false}, "required": ["a"]})",
      R"({"anyOf": [{"type": "null"}, {"properties": {"a": {"$ref": "#/anyOf/1"}}, "required": ["a"]}]})",
  };
  for (const char* parameters : wrong) {
    for (const Json& choice : {Json("auto"), Json("required"), Json("none"),
                               Json{{"type", "function"}, {"function", {{"name", "first"}}}}}) {
      Json body = with_tool(Json::parse(parameters), choice);
      bad(body, "tools[1].function.parameters");
      body["tools"][1]["function"]["strict"] = true;
      bad(body, "tools[1].function.parameters");
    }
    Json body = with_tool(Json::parse(parameters));
    EXPECT_EQ(post("/api/chat", body).status, 400) << parameters;
  }
}

TEST_F(Schemas, ParametersThatMayBeAnObjectAreHeldToOne) {
  start(answering("I would rather talk."));
  const std::vector<const char*> right = {
      R"({"type": ["null", "object"], "properties": {"a": {"type": "boolean"}}, "required": ["a"],
          "additionalProperties": false})",
      R"({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/o"}], "$defs": {"o": {"properties": {"a": {"enum": [true, false]}},
          "required": ["a"]}}})",
      R"({"enum": [1, "x", {"a": true}]})",
      R"({"const": {"a": false}})",
      R"({"$ref": "#/$defs/o~1o", "$defs": {"o/o": {"type": ["string", "object"], "properties": {"a": {"type": "boolean"}},
          "required": ["a"]}}})",
      // Inside, it may be null.
      R"({"type": ["null", "object"], "properties": {"a": {"type": "boolean"}, "next": {"$ref": "#"}},
          "required": ["a", "next"]})",
  };
  for (const char* parameters : right) {
    Json body = with_tool(Json::parse(parameters), {{"type", "function"}, {"function", {{"name", "f"}}}});
    body["tools"][1]["function"]["strict"] = true;
    body["max_tokens"] = 3000;
    const Json answer = post("/v1/chat/completions", body).json();
    ASSERT_TRUE(answer.contains("choices")) << parameters << answer;
    ASSERT_EQ(answer["choices"][0]["finish_reason"], "tool_calls") << parameters << answer;
    const Json& call = answer["choices"][0]["message"]["tool_calls"][0]["function"];
    EXPECT_TRUE(Json::parse(call["arguments"].get<std::string>()).at("a").is_boolean()) << parameters << answer;
  }
}

// One tool's keywords that a grammar doesn't know free its own arguments alone.
TEST_F(Schemas, EachToolIsHeldToItsOwnParameters) {
  start(answering(R"(f", "arguments": {"b": 1}})"));
  const Json parameters = Json::parse(R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                          "additionalProperties": false})");
  Json body = with_tool(parameters, "required");
  body["tools"][0]["function"] = {
      {"name", "first"}, {"parameters", {{"properties", {{"day", {{"type", "string"}, {"format", "date"}}}}}}}};
  for (const bool is_strict : {false, true}) {
    body["tools"][1]["function"]["strict"] = is_strict;
    const Json answer = post("/v1/chat/completions", body).json();
    ASSERT_TRUE(answer.contains("choices")) << answer;
    const Json& call = answer["choices"][0]["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(call["name"], "f") << answer;
    EXPECT_TRUE(Json::parse(call["arguments"].get<std::string>()).at("a").is_boolean()) << answer;
  }
  body["tools"][0]["function"]["strict"] = true;
  bad(body, "tools");
}

TEST_F(Schemas, ParametersMayBeMissingOrEmpty) {
  start(answering("I would rather talk."));
  for (const Json& parameters : {Json(nullptr), Json::object(), Json{{"description", "none"}}}) {
    EXPECT_EQ(post("/v1/chat/completions", with_tool(parameters)).status, 200) << parameters;
  }
}

}  // namespace
}  // namespace memoir::test
