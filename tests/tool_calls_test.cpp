// Tool calls and thoughts, in the forms that the models' own templates and model cards show. Each text is given whole
// and cut at every place: the pieces must be the same.

#include "memoir/server/tool_calls.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "memoir/server/api_error.h"

namespace memoir::server {
namespace {

struct Parsed {
  std::string content;
  std::string reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parsed&) const = default;
};

void add(Parsed& parsed, const std::vector<OutputPiece>& pieces) {
  for (const OutputPiece& piece : pieces) {
    if (const auto* content = std::get_if<ContentPiece>(&piece)) parsed.content += content->text;
    if (const auto* thought = std::get_if<ReasoningPiece>(&piece)) parsed.reasoning += thought->text;
    if (const auto* call = std::get_if<ToolCall>(&piece)) parsed.calls.emplace_back(call->name, call->arguments);
  }
}

// NOLINTNEXTLINE: printed by gtest
void PrintTo(const Parsed& parsed, std::ostream* out) {
  *out << "content '" << parsed.content << "' reasoning '" << parsed.reasoning << "'";
  for (const auto& [name, arguments] : parsed.calls) *out << " " << name << arguments;
}

void expect(const OutputParser::Options& options, const std::string& text, const Parsed& expected) {
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    OutputParser parser(options);
    Parsed parsed;
    add(parsed, parser.push(std::string_view(text).substr(0, cut)));
    add(parsed, parser.push(std::string_view(text).substr(cut)));
    add(parsed, parser.finish());
    ASSERT_EQ(parsed, expected) << "cut at " << cut << " of " << text;
  }
  OutputParser parser(options);
  Parsed parsed;
  for (const char c : text) add(parsed, parser.push(std::string(1, c)));
  add(parsed, parser.finish());
  EXPECT_EQ(parsed, expected) << "byte by byte: " << text;
}

const OutputParser::Options kHermes{ToolFormat::kHermes, true, false, false};
const OutputParser::Options kQwen3{ToolFormat::kHermes, true, true, false};
const OutputParser::Options kLlama3{ToolFormat::kLlama3, true, false, false};
const OutputParser::Options kMistral{ToolFormat::kMistral, true, false, false};
const OutputParser::Options kHarmony{ToolFormat::kHarmony, true, false, false};

TEST(ToolCalls, HermesCallsStandBetweenTags) {
  expect(kHermes, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
         {"", "", {{"get_weather", R"({"city":"Paris"})"}}});
  expect(
      kHermes,
      "Let me look.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", "
      "\"arguments\": {\"x\": 1}}\n</tool_call>",
      {"Let me look.", "", {{"a", "{}"}, {"b", R"({"x":1})"}}});
  // SmolLM2's model card: a list between the tags.
  expect(kHermes, R"(<tool_call>[{"name": "a", "arguments": {"n": 1}}, {"name": "b", "arguments": {}}]</tool_call>)",
         {"", "", {{"a", R"({"n":1})"}, {"b", "{}"}}});
  // The end token came in the place of the last tag.
  expect(kHermes, "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}", {"", "", {{"a", "{}"}}});
  expect(kHermes, "<tool_call>{\"name\": \"a\", \"arguments\": {\"s\": \"</tool_call>\"}}</tool_call>",
         {"", "", {{"a", R"({"s":"</tool_call>"})"}}});
  expect(kHermes, R"(<tool_call>{"name": "a", "arguments": "{\"x\": 2}"}</tool_call>)",
         {"", "", {{"a", R"({"x":2})"}}});
}

TEST(ToolCalls, WhatIsNoCallStaysText) {
  expect(kHermes, "a < b and <tool", {"a < b and <tool", "", {}});
  expect(kHermes, "<tool_call>oops</tool_call> done", {"<tool_call>oops</tool_call> done", "", {}});
  expect(kHermes, "<tool_call>{\"name\": 1}</tool_call>", {"<tool_call>{\"name\": 1}</tool_call>", "", {}});
  expect({ToolFormat::kHermes, false, false, false}, "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>",
         {"<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>", "", {}});
  std::string deep = "<tool_call>";
  for (int i = 0; i < 5000; ++i) deep += '[';
  OutputParser parser(kHermes);
  Parsed parsed;
  add(parsed, parser.push(deep + "</tool_call>"));
  add(parsed, parser.finish());
  EXPECT_EQ(parsed.content, deep + "</tool_call>");
}

TEST(ToolCalls, ThoughtsStandBetweenTheirTags) {
  expect(kQwen3, "<think>\nHm.\n</think>\n\nHello", {"Hello", "\nHm.\n", {}});
  expect(kQwen3, "<think>so</think>\n<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>",
         {"", "so", {{"a", "{}"}}});
  expect(kQwen3, "Hello <think> is text here", {"Hello <think> is text here", "", {}});
  expect({ToolFormat::kHermes, false, true, true}, "cut off thought", {"", "cut off thought", {}});
  expect({ToolFormat::kHermes, false, true, true}, "thought</think>\n\ntext", {"text", "thought", {}});
}

TEST(ToolCalls, LlamaCallsAreTheWholeAnswer) {
  expect(kLlama3, R"({"name": "get_weather", "parameters": {"city": "Paris"}})",
         {"", "", {{"get_weather", R"({"city":"Paris"})"}}});
  expect(kLlama3, R"(<|python_tag|>{"name": "a", "parameters": {}})", {"", "", {{"a", "{}"}}});
  expect(kLlama3, R"(<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": "}"}})",
         {"", "", {{"a", "{}"}, {"b", R"({"x":"}"})"}}});
  expect(kLlama3, R"({"answer": 42})", {R"({"answer": 42})", "", {}});
  expect(kLlama3, R"(Use {"name": "a", "parameters": {}})", {R"(Use {"name": "a", "parameters": {}})", "", {}});
  expect(kLlama3, "{\"name\": \"a\", \"parameters\"", {"{\"name\": \"a\", \"parameters\"", "", {}});
}

TEST(ToolCalls, MistralCallsFollowTheirMarker) {
  expect(kMistral, R"([TOOL_CALLS][{"name": "a", "arguments": {"x": [1]}}, {"name": "b", "arguments": {}}])",
         {"", "", {{"a", R"({"x":[1]})"}, {"b", "{}"}}});
  expect(kMistral, R"([TOOL_CALLS] [{"name": "a", "arguments": {}, "id": "123456789"}])", {"", "", {{"a", "{}"}}});
  expect(kMistral, R"([TOOL_CALLS]get_weather[ARGS]{"city": "Paris"})",
         {"", "", {{"get_weather", R"({"city":"Paris"})"}}});
  expect(kMistral, R"([TOOL_CALLS]a[CALL_ID]abc[ARGS]{}[TOOL_CALLS]b[ARGS]{"x": 1})",
         {"", "", {{"a", "{}"}, {"b", R"({"x":1})"}}});
  expect(kMistral, "Sure. [TOOL_CALLS]nothing", {"Sure. [TOOL_CALLS]nothing", "", {}});
}

// The examples of the Harmony format's documentation.
TEST(ToolCalls, HarmonyHasChannels) {
  expect(kHarmony,
         "<|channel|>analysis<|message|>User asks a sum.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.",
         {"2 + 2 = 4.", "User asks a sum.", {}});
  expect(kHarmony,
         "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.get_current_weather <|constrain|>json<|message|>{\"location\":\"San Francisco\"}<|call|>",
         {"", "Need weather.", {{"get_current_weather", R"({"location":"San Francisco"})"}}});
  expect(kHarmony, "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}", {"", "", {{"f", "{}"}}});
  expect(kHarmony, "<|channel|>commentary<|message|>I will call.<|end|>", {"I will call.", "", {}});
  expect(kHarmony, "plain text", {"plain text", "", {}});
}

TEST(ToolCalls, FormatsAreKnownByTheTemplatesMarkers) {
  EXPECT_EQ(tool_format_of("...{{ '<tool_call>' }}..."), ToolFormat::kHermes);
  EXPECT_EQ(tool_format_of("...{{ '[TOOL_CALLS]' }}..."), ToolFormat::kMistral);
  EXPECT_EQ(tool_format_of("Environment: ipython ... '\"parameters\": '"), ToolFormat::kLlama3);
  EXPECT_EQ(tool_format_of("{{ '<|python_tag|>' }}"), ToolFormat::kLlama3);
  EXPECT_EQ(tool_format_of("<|start|>assistant<|channel|>final"), ToolFormat::kHarmony);
  EXPECT_EQ(tool_format_of("nothing"), ToolFormat::kHermes);
}

TEST(ToolCalls, OnlyMarkersOfTheFormatAreWanted) {
  EXPECT_TRUE(OutputParser(kMistral).wants("[TOOL_CALLS]"));
  EXPECT_TRUE(OutputParser(kHarmony).wants("<|channel|>"));
  EXPECT_FALSE(OutputParser(kHermes).wants("<|im_end|>"));
  EXPECT_FALSE(OutputParser({ToolFormat::kMistral, false, false, false}).wants("[TOOL_CALLS]"));
  EXPECT_TRUE(OutputParser(kQwen3).wants("<think>"));
}

TEST(ToolCalls, ACallCanBeForcedInEveryFormat) {
  EXPECT_EQ(forced_call(ToolFormat::kHermes).prefix, "<tool_call>\n");
  EXPECT_STREQ(forced_call(ToolFormat::kLlama3).arguments_key, "parameters");
  EXPECT_TRUE(forced_call(ToolFormat::kMistral).is_list);
  // As the published template writes it behind <|start|>assistant.
  const ForcedCall harmony = forced_call(ToolFormat::kHarmony);
  EXPECT_EQ(harmony.arguments_key, nullptr);
  EXPECT_EQ(harmony.prefix + "f" + harmony.behind_name,
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>");
}

// However often an end tag comes in vain: linear, and nothing is lost.
TEST(ToolCalls, ManyFalseEndsAreReadButAFewTimes) {
  std::string text = "<tool_call>";
  for (int i = 0; i < 20'000; ++i) text += "x</tool_call>";
  OutputParser parser(kHermes);
  Parsed parsed;
  add(parsed, parser.push(text));
  add(parsed, parser.finish());
  EXPECT_EQ(parsed.content, text);
}

}  // namespace
}  // namespace memoir::server
