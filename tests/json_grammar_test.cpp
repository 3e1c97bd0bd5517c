// Grammars from JSON schemas. What JSON is, nlohmann::json says; what a schema means, the JSON Schema specification
// (draft 2020-12), by hand for each case.

#include "memoir/engine/json_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/engine/grammar_processor.h"
#include "memoir/engine/json_schema.h"
#include "memoir/engine/request_fault.h"

namespace memoir::engine {
namespace {

using Json = nlohmann::ordered_json;

JsonGrammar grammar_of(const char* schema) {
  return JsonGrammar(std::make_shared<const JsonSchema>(JsonSchema::parse(Json::parse(schema))));
}

// Whether all of `text` is taken and may end there.
bool takes(JsonGrammar& grammar, const std::string& text) {
  JsonGrammar::State state = grammar.start();
  for (const char c : text) {
    state = grammar.step(state, static_cast<std::uint8_t>(c));
    if (state == JsonGrammar::kRefused) return false;
  }
  return grammar.can_end(state);
}

void expect(const char* schema, const std::vector<std::string>& taken, const std::vector<std::string>& refused) {
  JsonGrammar grammar = grammar_of(schema);
  for (const std::string& text : taken) EXPECT_TRUE(takes(grammar, text)) << schema << " must take " << text;
  for (const std::string& text : refused) EXPECT_FALSE(takes(grammar, text)) << schema << " must refuse " << text;
}

TEST(JsonGrammar, TakesAnyJsonForAnEmptySchema) {
  expect("{}",
         {"null", "true", "false", "0", "-0", "12", "-1.5e+3", "1E-9", R"("")", R"("a\"\\\/\b\f\n\r\t\u00e9")", "[]",
          "[1, [2], {}]", "{}", R"({"a": {"b": [null]}, "": 1})", " \n\t{ \"a\" :\r1 }",
          "\"h\xc3\xa9 \xf0\x9f\x98\x80\"", R"("\ud83d\ude00")", R"("\ud7ff")"},
         {"",
          "nul",
          "nulll",
          "01",
          "1.",
          ".5",
          "+1",
          "1e",
          "--1",
          "'a'",
          "\"",
          R"("\x")",
          R"("\u12g4")",
          "\"\n\"",
          "[1,]",
          "[,1]",
          "[1 2]",
          "{,}",
          R"({"a"})",
          R"({"a":})",
          R"({"a":1,})",
          "{a:1}",
          "{} {}",
          "[",
          "\"\xff\"",
          "\"\xc3\"",
          "\"\xed\xa0\x80\"",
          R"("\ud83d")",
          R"("\ude00")"});
}

TEST(JsonGrammar, KeepsToTypes) {
  expect(R"({"type": "string"})", {R"("a")"}, {"1", "null", "{}", "[]"});
  expect(R"({"type": "integer"})", {"0", "-17", "123456789012345678"},
         {"1.0", "1e3", "\"1\"", "00", "1234567890123456789"});
  expect(R"({"type": "number"})", {"1", "1.25", "-1e10"}, {"\"1\"", "1.2.3"});
  expect(R"({"type": "boolean"})", {"true", "false"}, {"null", "0"});
  expect(R"({"type": "null"})", {"null"}, {"false"});
  expect(R"({"type": ["string", "null"]})", {R"("a")", "null"}, {"1"});
  expect(R"({"type": "object"})", {"{}", R"({"a": 1})"}, {"[]"});
  expect(R"({"type": "array"})", {"[]", "[1, \"a\"]"}, {"{}"});
}

TEST(JsonGrammar, RequiredPropertiesMustComeOptionalOnesMayAndOrderIsTheSchemas) {
  const char* schema = R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
                           "c": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false})";
  expect(schema,
         {R"({"b": ""})", R"({"a": 1, "b": ""})", R"({"b": "", "c": true})", R"({"a": 1, "b": "x", "c": false})"},
         {"{}", R"({"a": 1})", R"({"a": 1, "c": true})", R"({"b": "", "a": 1})", R"({"b": "", "b": ""})",
          R"({"b": "", "d": 1})", R"({"b": 1})", R"({"a": 1, "b": "",})"});
}

TEST(JsonGrammar, OtherPropertiesFollowTheirSchemaAndNeverSpellADeclaredName) {
  expect(
      R"({"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}})",
      {"{}", R"({"ab": 1})", R"({"ab": 1, "x": "y"})", R"({"a": "y"})", R"({"abc": "y"})", R"({"é": "y"})"},
      {R"({"ab": "y"})", R"({"x": 1})", R"({"x": "y", "ab": 1})", R"({"x": "y", "ab": "y"})", R"({"\u0061b": "y"})"});
  expect(R"({"properties": {}, "additionalProperties": true})", {R"({"\n": 1})"}, {});
  expect(R"({"properties": {"a": {"type": "null"}}})", {"{}", R"({"a": null})"}, {R"({"b": 1})"});
  expect(R"({"properties": {"a": {}}, "required": ["b"]})", {R"({"b": 1})", R"({"a": 1, "b": 2})"}, {R"({"a": 1})"});
  expect(R"({"required": ["a"]})", {R"({"a": 1})", R"({"a": null, "b": 2})"}, {"{}", R"({"b": 2})"});
}

TEST(JsonGrammar, EnumAndConstAreSpelledOut) {
  expect(R"({"enum": ["red", "green", 1, 10, null, {"a": [1]}]})", {R"("red")", "1", "10", "null", R"({"a":[1]})"},
         {R"("re")", "100", "true", R"("blue")"});
  expect(R"({"const": "x"})", {R"("x")", " \"x\""}, {R"("y")", "null"});
  expect(R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"});
}

TEST(JsonGrammar, ListsCountTheirValues) {
  expect(R"({"items": {"type": "integer"}, "minItems": 2, "maxItems": 3})", {"[1,2]", "[1, 2, 3]"},
         {"[]", "[1]", "[1,2,3,4]", "[1,\"a\"]"});
  expect(R"({"type": "array", "minItems": 1})", {"[1]", "[1,2,3,4,5,6,7,8]"}, {"[]"});
  expect(R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"});
}

TEST(JsonGrammar, AlternativesStayOpenUntilTheyDiffer) {
  const char* schema = R"({"anyOf": [
      {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"],
       "additionalProperties": false},
      {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": "string"}}, "required": ["kind", "s"],
       "additionalProperties": false},
      {"type": "null"}]})";
  expect(schema, {R"({"kind": "a", "n": 1})", R"({"kind": "b", "s": ""})", "null"},
         {R"({"kind": "a", "s": ""})", R"({"kind": "b", "n": 1})", R"({"kind": "c"})"});
}

TEST(JsonGrammar, FollowsReferencesAlsoToItself) {
  const char* schema = R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
      "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"],
      "additionalProperties": false}}, "$ref": "#/$defs/node"})";
  expect(schema, {R"({"v": 1, "next": null})", R"({"v": 1, "next": {"v": 2, "next": null}})"},
         {R"({"v": 1, "next": {}})", R"({"v": 1})"});
}

TEST(JsonGrammar, NothingGoesOnForEverButWhatMay) {
  JsonGrammar grammar = grammar_of("{}");
  EXPECT_TRUE(takes(grammar, std::string(20, ' ') + "1"));
  EXPECT_FALSE(takes(grammar, std::string(21, ' ') + "1"));
  EXPECT_FALSE(takes(grammar, "1." + std::string(19, '1')));
  EXPECT_FALSE(takes(grammar, "1e111"));
  EXPECT_TRUE(takes(grammar, std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(takes(grammar, std::string(65, '[') + std::string(65, ']')));
  EXPECT_TRUE(takes(grammar, "\"" + std::string(100'000, 'x') + "\""));
}

// Any text that the grammar takes, nlohmann::json takes: random changes of valid texts.
TEST(JsonGrammar, TakesNothingThatIsNoJson) {
  JsonGrammar grammar = grammar_of("{}");
  const std::string seed = R"({"a": [1, -2.5e3, "x\u00e9\ud83d\ude00\n", true, null, {"é": {}}], "b": ""})";
  ASSERT_TRUE(takes(grammar, seed));
  const std::string kBytes = "{}[],:\"\\0123456789.eE+-tfnu \xc3\xa9";
  std::mt19937 random(7);
  int n_taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = seed;
    for (int change = 0; change < 2; ++change) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1 + random() % 3);
      } else {
        text[at] = kBytes[random() % kBytes.size()];
      }
    }
    if (!takes(grammar, text)) continue;
    ++n_taken;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
  EXPECT_GT(n_taken, 300);
}

TEST(JsonSchema, RefusesWhatItDoesNotKeepToByName) {
  const auto key_of = [](const char* schema) {
    try {
      JsonSchema::parse(Json::parse(schema));
    } catch (const InputError& error) {
      return error.key();
    }
    return std::string("taken");
  };
  EXPECT_EQ(key_of(R"({"type": "string", "pattern": "a"})"), "#/pattern");
  EXPECT_EQ(key_of(R"({"properties": {"x": {"type": "integer", "minimum": 1}}})"), "#/properties/x/minimum");
  EXPECT_EQ(key_of(R"({"allOf": [{}]})"), "#/allOf");
  EXPECT_EQ(key_of(R"({"items": {"oneOf": []}})"), "#/items/oneOf");
  EXPECT_EQ(key_of(R"({"anyOf": [{}], "type": "string"})"), "#/type");
  EXPECT_EQ(key_of(R"({"type": "text"})"), "#/type");
  EXPECT_EQ(key_of(R"({"type": 3})"), "#/type");
  EXPECT_EQ(key_of(R"({"properties": []})"), "#/properties");
  EXPECT_EQ(key_of(R"({"enum": []})"), "#/enum");
  EXPECT_EQ(key_of(R"({"$ref": "http://x"})"), "#/$ref");
  EXPECT_EQ(key_of(R"({"$ref": "#/$defs/none"})"), "#/$ref");
  EXPECT_EQ(key_of(R"({"required": ["a"], "additionalProperties": false})"), "#/required");
  EXPECT_EQ(key_of(R"({"type": "array", "minItems": -1})"), "#/minItems");
  EXPECT_EQ(key_of(R"({"type": "array", "minItems": 2, "maxItems": 1})"), "#/maxItems");
  EXPECT_EQ(key_of("[]"), "#");
  EXPECT_EQ(
      key_of(R"({"title": "t", "description": "d", "default": 1, "examples": [], "$schema": "s", "type": "null"})"),
      "taken");
}

TEST(JsonSchema, RefusesOneThatIsItsOwnAlternative) {
  EXPECT_THROW(JsonSchema::parse(Json::parse(R"({"$ref": "#"})")), UnsupportedError);
  EXPECT_THROW(JsonSchema::parse(Json::parse(R"({"anyOf": [{"type": "null"}, {"anyOf": [{"$ref": "#"}]}]})")),
               UnsupportedError);
}

TEST(JsonSchema, AnyObjectIsAnyObject) {
  JsonGrammar grammar(std::make_shared<const JsonSchema>(JsonSchema::any_object()));
  EXPECT_TRUE(takes(grammar, R"({"a": [1, {"b": null}]})"));
  EXPECT_TRUE(takes(grammar, "{}"));
  EXPECT_FALSE(takes(grammar, "[]"));
  EXPECT_FALSE(takes(grammar, "1"));
}

TEST(JsonGrammar, AnotherGrammarGoesOnWhereThisOneStood) {
  const auto schema = std::make_shared<const JsonSchema>(JsonSchema::parse(Json::parse("{}")));
  JsonGrammar first(schema);
  JsonGrammar second(schema);
  JsonGrammar::State state = first.start();
  for (const char c : std::string(R"({"a": [1, {"b": "x)")) state = first.step(state, static_cast<std::uint8_t>(c));
  state = second.adopt(first, state);
  for (const char c : std::string(R"(y"}, 2]})")) state = second.step(state, static_cast<std::uint8_t>(c));
  EXPECT_TRUE(second.can_end(state));
}

TEST(JsonGrammar, TooManyAlternativesAreAnErrorNotAnEndlessWait) {
  // Each level doubles what is open: 2^n lists of alternatives.
  JsonGrammar grammar = grammar_of(R"({"$defs": {"a": {"anyOf": [{"items": {"$ref": "#/$defs/a"}},
                                       {"items": {"$ref": "#/$defs/a"}, "type": "array"}]}}, "$ref": "#/$defs/a"})");
  JsonGrammar::State state = grammar.start();
  EXPECT_THROW(
      {
        for (int i = 0; i < 60; ++i) state = grammar.step(state, '[');
      },
      RequestFault);
}

// ---- What has a value at all

// `n` lists or objects inside each other, each of which must be there.
Json nested(int n, bool as_objects) {
  Json schema = {{"type", "null"}};
  for (int i = 0; i < n; ++i) {
    if (as_objects) {
      schema = {{"properties", {{"a", std::move(schema)}}}, {"required", Json::array({"a"})}};
    } else {
      schema = {{"items", std::move(schema)}, {"minItems", 1}};
    }
  }
  return schema;
}

std::string key_without_value(const Json& schema) {
  try {
    JsonSchema::parse(schema);
  } catch (const NoValueError& error) {
    return error.key();
  }
  return "has one";
}

TEST(JsonSchema, WithoutAFiniteValueIsRefusedByItsPlace) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"$ref": "#/$defs/n", "$defs": {"n": {"items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 1}}})",
       "#/$defs/n/items"},
      {R"({"properties": {"next": {"$ref": "#"}}, "required": ["next"]})", "#/properties/next"},
      {R"({"required": ["a"], "additionalProperties": {"$ref": "#"}})", "#/additionalProperties"},
      {R"({"anyOf": [{"items": {"$ref": "#"}, "minItems": 2}, {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}]})",
       "#"},
      {R"({"properties": {"a": false}, "required": ["a"]})", "#/properties/a"},
      {R"({"items": {"anyOf": [false, false]}, "minItems": 1})", "#/items"},
      {"false", "#"},
      {R"({"properties": {"a": {"type": "null"}, "b": {"$ref": "#/$defs/b"}}, "required": ["a", "b"],
           "$defs": {"b": {"items": {"$ref": "#/$defs/c"}, "minItems": 1},
                     "c": {"properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]}}})",
       "#/$defs/c/properties/b"},
  };
  for (const auto& [schema, key] : cases) {
    EXPECT_EQ(key_without_value(Json::parse(schema)), key) << schema;
  }
}

TEST(JsonSchema, WhatMustNestDeeperThanCanBeWrittenIsRefused) {
  for (const bool as_objects : {false, true}) {
    EXPECT_EQ(key_without_value(nested(64, as_objects)), "has one");
    EXPECT_EQ(key_without_value(nested(65, as_objects)), "#");
  }
  // The shallowest alternative counts, and of an object the deepest that it must have.
  EXPECT_EQ(key_without_value({{"anyOf", {nested(70, true), nested(64, false)}}}), "has one");
  EXPECT_EQ(key_without_value({{"properties", {{"a", {{"type", "null"}}}, {"b", nested(64, false)}}},
                               {"required", Json::array({"a", "b"})}}),
            "#");
}

TEST(JsonGrammar, WhatHasNoValueIsLeftOutWhereItNeedNotBe) {
  expect(R"({"properties": {"a": false, "b": {"type": "null"}}})", {"{}", R"({"b": null})"},
         {R"({"a": null})", R"({"a)"});
  expect(R"({"properties": {"a": false}, "additionalProperties": true})", {"{}", R"({"b": 1})", R"({"aa": 1})"},
         {R"({"a": 1})", R"({"b": 1, "a": 1})"});
  expect(R"({"items": false})", {"[]", "[ ]"}, {"[1]", "[null]"});
  expect(R"({"anyOf": [false, {"type": "null"}]})", {"null"}, {"1", "[]", "{}"});
  expect(R"({"properties": {"a": {"$ref": "#/$defs/n"}}, "additionalProperties": {"$ref": "#/$defs/n"},
             "$defs": {"n": {"items": {"$ref": "#/$defs/n"}, "minItems": 1}}})",
         {"{}", "{ }"}, {R"({"a": [[]]})", R"({"b": []})"});
}

// Bytes at random, most often those that open something: there is always one more, or the text may end. Returns how
// deep it went.
int walk_at_random(JsonGrammar& grammar, unsigned seed) {
  constexpr std::size_t kEnough = 3000;
  std::mt19937 random(seed);
  JsonGrammar::State state = grammar.start();
  std::string text;
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  while (text.size() < kEnough) {
    std::string next;
    for (const char* bytes : {"[{\"", "[{\",:}]abcdenlptux0", "rsf"}) {  // the first two by chance, the last if need be
      if (!next.empty() && random() % 8 != 0) break;
      for (const char c : std::string(bytes)) {
        if (grammar.step(state, static_cast<std::uint8_t>(c)) != JsonGrammar::kRefused) next += c;
      }
    }
    if (next.empty()) break;
    const char c = next[random() % next.size()];
    state = grammar.step(state, static_cast<std::uint8_t>(c));
    text += c;
    if (c == '"') in_string = !in_string;
    if (!in_string) depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    deepest = std::max(deepest, depth);
  }
  if (text.size() < kEnough) {
    EXPECT_TRUE(grammar.can_end(state)) << "nothing may come behind " << text;
    EXPECT_TRUE(Json::accept(text)) << text;
  }
  return deepest;
}

TEST(JsonGrammar, NeverOpensWhatItCannotEnd) {
  const std::vector<const char*> schemas = {
      R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#/$defs/n"},
          {"type": "object", "properties": {"a": {"type": "array", "minItems": 1, "items": {"type": "null"}}},
           "required": ["a"], "additionalProperties": false}]}}}})",
      R"({"properties": {"deep": {"items": {"items": {"type": "null"}, "minItems": 1}, "minItems": 1}, "next": {"$ref": "#"},
                         "last": {"required": ["x"]}}})",
      R"({"additionalProperties": {"anyOf": [{"$ref": "#"}, {"items": {"items": {"$ref": "#"}, "minItems": 2}}]}})",
      R"({"items": {"anyOf": [{"$ref": "#"}, {"items": {"items": {"type": "boolean"}, "minItems": 1}, "minItems": 1}]}})",
      R"({"properties": {"a": {"$ref": "#"}, "b": {"items": {"$ref": "#"}, "minItems": 1}, "c": false},
          "additionalProperties": {"items": {"$ref": "#"}, "minItems": 3}})",
      "{}",
  };
  for (const char* schema : schemas) {
    JsonGrammar grammar = grammar_of(schema);
    int deepest = 0;
    for (unsigned seed = 0; seed < 30; ++seed) deepest = std::max(deepest, walk_at_random(grammar, seed));
    EXPECT_GE(deepest, 60) << schema;
    EXPECT_LE(deepest, 64) << schema;
  }
}

TEST(JsonGrammar, ABranchThatFitsIsTakenAtTheLastLevels) {
  // 62 lists, and an object with a list: 64. One more list leaves no room for that.
  const char* schema = R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "minItems": 1, "items": {"anyOf": [
      {"$ref": "#/$defs/n"}, {"properties": {"a": {"minItems": 1, "items": {"type": "null"}}}, "required": ["a"]}]}}}})";
  const auto lists = [](int n, const std::string& inside) {
    return std::string(static_cast<std::size_t>(n), '[') + inside + std::string(static_cast<std::size_t>(n), ']');
  };
  expect(schema, {lists(62, R"({"a":[null]})"), lists(1, R"({"a":[null, null]})")}, {lists(63, R"({"a":[null]})")});
  JsonGrammar grammar = grammar_of(schema);
  JsonGrammar::State state = grammar.start();
  for (int i = 0; i < 62; ++i) state = grammar.step(state, '[');
  EXPECT_EQ(grammar.step(state, '['), JsonGrammar::kRefused);
  EXPECT_NE(grammar.step(state, '{'), JsonGrammar::kRefused);
}

// ---- Many alternatives

TEST(JsonGrammar, EnumsAreAsLongAsTheyLike) {
  Json values = Json::array();
  Json constants = Json::array();
  for (int i = 0; i < 10'000; ++i) {
    values.push_back("value" + std::to_string(i));
    constants.push_back({{"const", i}});
  }
  expect(Json{{"enum", values}}.dump().c_str(), {R"("value0")", R"("value9999")", R"("value12")"},
         {R"("value")", R"("value10000")", R"("value012")", "0"});
  expect(Json{{"anyOf", constants}}.dump().c_str(), {"0", "1", "12", "9999"}, {"10000", "00", "-1", "1.0"});
}

TEST(JsonSchema, MoreAlternativesThanCanBeOpenAreRefusedByTheirPlace) {
  const auto key_of = [](const Json& schema) {
    try {
      JsonSchema::parse(schema);
    } catch (const UnsupportedError& error) {
      return error.key();
    }
    return std::string("taken");
  };
  const auto objects = [](int n) {
    Json list = Json::array();
    for (int i = 0; i < n; ++i) list.push_back({{"properties", {{"p" + std::to_string(i), {{"type", "null"}}}}}});
    return Json{{"anyOf", list}};
  };
  EXPECT_EQ(key_of(objects(4096)), "taken");
  EXPECT_EQ(key_of({{"items", objects(4097)}}), "#/items");
  const auto optional = [](int n) {
    Json properties = Json::object();
    for (int i = 0; i < n; ++i) properties["p" + std::to_string(i)] = {{"type", "null"}};
    return Json{{"properties", properties}};
  };
  EXPECT_EQ(key_of(optional(4096)), "taken");
  EXPECT_EQ(key_of(optional(4097)), "#/properties");
  // Another name counts as one, and one that must come ends the choice.
  Json schema = optional(4096);
  JsonGrammar most = grammar_of(schema.dump().c_str());
  EXPECT_TRUE(takes(most, R"({"p4095": null})"));
  schema["additionalProperties"] = true;
  EXPECT_EQ(key_of(schema), "#/properties");
  schema = optional(8000);
  schema["required"] = Json::array({"p4000"});
  EXPECT_EQ(key_of(schema), "taken");
}

// Each definition names the next one twice: 2^60 ways to the same value.
TEST(JsonSchema, AlternativesThatAreTheSameCountOnce) {
  Json schema = {{"$ref", "#/$defs/d0"}, {"$defs", {{"d60", {{"type", "null"}}}}}};
  for (int i = 0; i < 60; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    schema["$defs"]["d" + std::to_string(i)] = {{"anyOf", {next, next}}};
  }
  // A reference is two levels of the schema's own nesting, which ends at 100.
  schema["$ref"] = "#/$defs/d20";
  expect(schema.dump().c_str(), {"null"}, {"1", "[]"});
}

// ---- What JSON Schema says of numbers and references

TEST(JsonGrammar, WholeNumbersMayBeWrittenWithAPoint) {
  expect(R"({"type": "integer", "const": 1.0})", {"1.0"}, {"2", "true"});
  expect(R"({"type": "integer", "enum": [2.0, 2.5, 3]})", {"2.0", "3"}, {"2.5"});
  expect(R"({"items": {"type": "null"}, "minItems": 1.0, "maxItems": 2.0})", {"[null]", "[null,null]"},
         {"[]", "[null,null,null]"});
  EXPECT_THROW(grammar_of(R"({"minItems": 1.5})"), FormatError);
}

// RFC 6901, section 6: a pointer as a URI's fragment is percent-encoded, ~1 is / and ~0 is ~.
TEST(JsonGrammar, ReferencesAreDecoded) {
  const char* schema = R"({"$defs": {"a b": {"const": 1}, "c/d": {"const": 2}, "e~f": {"const": 3}, "é": {"const": 4},
      "%41": {"const": 5}}, "anyOf": [{"$ref": "#/$defs/a%20b"}, {"$ref": "#/$defs/c~1d"}, {"$ref": "#/$defs/e~0f"},
      {"$ref": "#/%24defs/%C3%A9"}, {"$ref": "#/$defs/%2541"}]})";
  expect(schema, {"1", "2", "3", "4", "5"}, {"6"});
  EXPECT_THROW(grammar_of(R"({"$ref": "#/$defs/A", "$defs": {"%41": {}}})"), FormatError);
}

// ---- Over a vocabulary

std::vector<std::string> vocabulary() {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  for (const char* piece :
       {"{\"", "\":", "\": ", "\", \"", "\"}", "true", "false", "null",     "nu",    "name",  "name\"", "ab",
        "abc", "12",  "12.",  "],",     "[[",  "  ",   "\n  ",  "\xc3\xa9", "x\xc3", "\\u00", "\\\"",   ""}) {
    pieces.emplace_back(piece);
  }
  pieces.emplace_back();  // the end token
  return pieces;
}

bool is_allowed(const std::vector<std::uint64_t>& mask, TokenId id) {
  return (mask[static_cast<std::size_t>(id) / 64] >> (static_cast<std::size_t>(id) % 64) & 1U) != 0;
}

TEST(Constraint, AllowsExactlyTheTokensWhoseBytesTheGrammarTakes) {
  const auto pieces = vocabulary();
  const auto words = std::make_shared<const JsonVocabulary>(pieces);
  const auto schema = std::make_shared<const JsonSchema>(JsonSchema::parse(Json::parse(
      R"({"properties": {"name": {"type": "string"}, "n": {"type": "number"}, "l": {"items": {"type": "boolean"}}},
          "additionalProperties": true})")));
  Constraint constraint(schema, words);
  const std::string text = R"({"name": "aé\"b", "n": -12.5, "l": [true, false], "other": {"x": null}})";
  JsonGrammar& grammar = constraint.grammar();
  JsonGrammar::State state = grammar.start();
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const auto mask = constraint.allowed(state);
    for (TokenId id = 0; id < words->all().n_vocab(); ++id) {
      JsonGrammar::State next = state;
      for (const char c : pieces[static_cast<std::size_t>(id)]) {
        if (next != JsonGrammar::kRefused) next = grammar.step(next, static_cast<std::uint8_t>(c));
      }
      const bool expected = next != JsonGrammar::kRefused && !pieces[static_cast<std::size_t>(id)].empty();
      ASSERT_EQ(is_allowed(mask, id), expected) << "token " << id << " behind " << text.substr(0, i);
    }
    if (i < text.size()) state = grammar.step(state, static_cast<std::uint8_t>(text[i]));
    ASSERT_NE(state, JsonGrammar::kRefused) << text.substr(0, i + 1);
  }
  EXPECT_TRUE(grammar.can_end(state));
}

// Tokens chosen at random among those allowed make JSON of the schema, whenever they may end.
TEST(GrammarProcessor, RandomTokensMakeJsonOfTheSchema) {
  const auto pieces = vocabulary();
  const auto end = static_cast<TokenId>(pieces.size() - 1);
  const auto words = std::make_shared<const JsonVocabulary>(pieces);
  const auto schema = std::make_shared<const JsonSchema>(JsonSchema::parse(Json::parse(
      R"({"type": "object", "properties": {"name": {"enum": ["ab", "abc"]}, "n": {"type": "integer"},
          "l": {"items": {"type": "boolean"}, "maxItems": 3}}, "required": ["name", "l"], "additionalProperties": false})")));
  const auto constraint = std::make_shared<Constraint>(schema, words);
  int n_whole = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    GrammarProcessor processor({{constraint}}, {end});
    std::string text;
    for (int step = 0; step < 300; ++step) {
      std::vector<float> logits(pieces.size() + 3, 1);  // models have more logits than tokens
      processor.apply(logits);
      std::vector<TokenId> allowed;
      for (std::size_t id = 0; id < logits.size(); ++id) {
        if (logits[id] > 0) allowed.push_back(static_cast<TokenId>(id));
      }
      ASSERT_FALSE(allowed.empty()) << text;
      if (std::find(allowed.begin(), allowed.end(), end) != allowed.end()) {
        const Json value = Json::parse(text);
        const std::set<std::string> names = {"ab", "abc"};
        EXPECT_TRUE(names.contains(value.at("name").get<std::string>())) << text;
        EXPECT_LE(value.at("l").size(), 3U);
        for (const Json& one : value["l"]) {
          EXPECT_TRUE(one.is_boolean()) << text;
        }
        EXPECT_TRUE(!value.contains("n") || value["n"].is_number_integer()) << text;
        ++n_whole;
      }
      const TokenId token = allowed[random() % allowed.size()];
      processor.accept(token);
      if (token == end) break;
      ASSERT_LT(static_cast<std::size_t>(token), pieces.size());
      text += pieces[static_cast<std::size_t>(token)];
    }
  }
  EXPECT_GT(n_whole, 50);
}

TEST(GrammarProcessor, BeginsWithItsPrefixAndEndsOnlyWhereTheTextMay) {
  const auto pieces = vocabulary();
  const auto end = static_cast<TokenId>(pieces.size() - 1);
  const auto schema = std::make_shared<const JsonSchema>(JsonSchema::parse(Json::parse(R"({"const": 1})")));
  const auto constraint = std::make_shared<Constraint>(schema, std::make_shared<const JsonVocabulary>(pieces));
  GrammarProcessor processor({{constraint, {'h', 'i'}}}, {end});
  const auto only = [&](TokenId expected) {
    std::vector<float> logits(pieces.size(), 0.5F);
    processor.apply(logits);
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (id == static_cast<std::size_t>(expected)) continue;
      if (std::string(" \t\r\n").find(pieces[id].empty() ? 'x' : pieces[id][0]) != std::string::npos) continue;
      EXPECT_EQ(logits[id], -std::numeric_limits<float>::infinity()) << id;
    }
    EXPECT_GE(logits[static_cast<std::size_t>(expected)], 0);
  };
  only('h');
  EXPECT_THROW(processor.accept('x'), std::invalid_argument);
  processor.accept('h');
  only('i');
  processor.accept('i');
  only('1');
  EXPECT_THROW(processor.accept('2'), std::invalid_argument);
  processor.accept('1');
  only(end);
}

// Of "hot" with 1 behind it, "hip" with 2 and "x" with 3 the tokens that are chosen decide.
TEST(GrammarProcessor, OfSeveralPrefixesTheModelTakesOneWithItsGrammar) {
  const auto pieces = vocabulary();
  const auto end = static_cast<TokenId>(pieces.size() - 1);
  const auto words = std::make_shared<const JsonVocabulary>(pieces);
  const auto constant = [&](int value) {
    return std::make_shared<Constraint>(std::make_shared<const JsonSchema>(JsonSchema::parse({{"const", value}})),
                                        words);
  };
  const std::vector<GrammarProcessor::Branch> branches = {
      {constant(1), {'h', 'o', 't'}}, {constant(2), {'h', 'i', 'p'}}, {constant(3), {'x'}}};
  const auto allowed = [&](GrammarProcessor& processor) {
    std::vector<float> logits(pieces.size(), 0.5F);
    processor.apply(logits);
    std::set<TokenId> result;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      const bool is_blank = !pieces[id].empty() && std::string(" \t\r\n").find(pieces[id][0]) != std::string::npos;
      if (logits[id] > -1e9F && !is_blank) result.insert(static_cast<TokenId>(id));
    }
    return result;
  };
  const std::vector<std::pair<std::string, char>> texts = {{"hot", '1'}, {"hip", '2'}, {"x", '3'}};
  for (const auto& [text, value] : texts) {
    GrammarProcessor processor(branches, {end});
    EXPECT_EQ(allowed(processor), (std::set<TokenId>{'h', 'x'}));
    for (const char c : text) {
      EXPECT_TRUE(allowed(processor).contains(c));
      EXPECT_THROW(processor.accept('z'), std::invalid_argument);
      processor.accept(c);
    }
    EXPECT_EQ(allowed(processor), (std::set<TokenId>{value}));
    processor.accept(value);
    EXPECT_EQ(allowed(processor), (std::set<TokenId>{end}));
  }
  EXPECT_THROW(GrammarProcessor({}, {end}), std::invalid_argument);
  EXPECT_THROW(GrammarProcessor({{constant(1), {'h'}}, {constant(2), {'h', 'i'}}}, {end}), std::invalid_argument);
  EXPECT_THROW(GrammarProcessor({{constant(1)}, {constant(2)}}, {end}), std::invalid_argument);
}

TEST(TokenTrie, HoldsEveryTokenOnceBehindItsBytes) {
  const auto pieces = vocabulary();
  const TokenTrie trie(pieces);
  std::set<TokenId> seen;
  std::string path;
  for (const TokenTrie::Node& node : trie.nodes()) {
    path.resize(node.depth);
    path += static_cast<char>(node.byte);
    for (const TokenId id : trie.ids().subspan(node.first_token, node.n_tokens)) {
      EXPECT_EQ(pieces[static_cast<std::size_t>(id)], path);
      EXPECT_TRUE(seen.insert(id).second);
    }
  }
  std::size_t n_named = 0;
  for (const auto& piece : pieces) n_named += !piece.empty();
  EXPECT_EQ(seen.size(), n_named);
}

}  // namespace
}  // namespace memoir::engine
