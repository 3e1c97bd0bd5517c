// JSON as model files hold it, and as people write it.

#include "memoir/base/json_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "memoir/base/error.h"

namespace memoir {
namespace {

using nlohmann::json;

std::string refusal(const std::string& text) {
  try {
    parse_json(text, "file");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonText, ReadsInfinityAndNaN) {
  const json value = parse_json(
      R"({"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "d": {"__float__": "Infinity"}, "e": "NaN \" Infinity"})",
      "x");
  EXPECT_EQ(value["a"][1], std::numeric_limits<double>::infinity());
  EXPECT_EQ(value["b"], -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(value["c"].get<double>()));
  EXPECT_EQ(value["d"], std::numeric_limits<double>::infinity());
  EXPECT_EQ(value["e"], "NaN \" Infinity");
  EXPECT_EQ(parse_json(R"({"__float__": "other"})", "x"), json({{"__float__", "other"}}));
}

// The expected text is what python 3.11's json.dumps(..., indent=2) writes.
TEST(JsonText, AModelsFileIsWrittenAsPythonWritesIt) {
  const auto value = parse_ordered_model_json(
      R"({"z": [0.0, {"__float__": "Infinity"}, -Infinity, NaN], "a": {}, "b": [], "c": {"d\"": 1e-05, "e": "NaN"}})",
      "x");
  const std::string text =
      "{\n  \"z\": [\n    0.0,\n    Infinity,\n    -Infinity,\n    NaN\n  ],\n  \"a\": {},\n  \"b\": [],\n"
      "  \"c\": {\n    \"d\\\"\": 1e-05,\n    \"e\": \"NaN\"\n  }\n}";
  EXPECT_EQ(model_json_text(value), text);
  EXPECT_EQ(parse_json(text, "x")["z"][1], std::numeric_limits<double>::infinity());
  EXPECT_EQ(model_json_text(parse_ordered_model_json(text, "x")), text);
}

TEST(JsonText, BoundsDepthAndNumbers) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(kMaxJsonDepth), "x"));
  EXPECT_THROW(parse_json(nested(kMaxJsonDepth + 1), "x"), FormatError);
  EXPECT_THROW(parse_ordered_json(nested(kMaxJsonDepth + 1), "x"), FormatError);
  EXPECT_THROW(parse_json(nested(1'000'000), "x"), FormatError);
  EXPECT_NO_THROW(parse_json("\"" + std::string(200, '[') + "\\\"" + std::string(200, '[') + "\"", "x"));
  EXPECT_THROW(parse_json("Infinit", "x"), FormatError);
}

TEST(JsonText, SaysWhereItIsWrongAndWhy) {
  EXPECT_EQ(refusal("{\n \"a\": 1,\n \"b\" 2}").find("file: is not JSON: parse error at line 3, column 6: "), 0U)
      << refusal("{\n \"a\": 1,\n \"b\" 2}");
  EXPECT_EQ(refusal("[1e999]"), "file: number overflow parsing '1e999'");
}

// The parser takes a NUL for the end of the text.
TEST(JsonText, ANulIsNoEnd) {
  const std::string nul(1, '\0');
  EXPECT_EQ(refusal("{}\n" + nul + "garbage"), "file: is not JSON: a NUL byte at line 2");
  EXPECT_EQ(refusal("\"a" + nul + "\""), "file: is not JSON: a NUL byte at line 1");
  EXPECT_EQ(refusal("\"a\\" + nul + "\""), "file: is not JSON: a NUL byte at line 1");
  EXPECT_EQ(parse_json("\"a\\u0000b\"", "x").get<std::string>(), std::string("a\0b", 3));
}

TEST(JsonText, PlainJsonKeepsItsOrderAndHasNoBareTokens) {
  EXPECT_EQ(json_text(parse_ordered_json(R"({"b": 1, "a": {"__float__": "NaN"}})", "x")),
            R"({"b":1,"a":{"__float__":"NaN"}})");
  EXPECT_THROW(parse_ordered_json("NaN", "x"), FormatError);
}

TEST(JsonText, WritesBytesThatAreNoUtf8AsReplacements) {
  EXPECT_EQ(json_text("a\xff"
                      "b"),
            "\"a\xEF\xBF\xBD"
            "b\"");
}

}  // namespace
}  // namespace memoir
