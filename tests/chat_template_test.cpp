// Chat templates against jinja2.
//
// Expected texts: tests/data/templates/cases.json is made by jinja2 itself (make_cases.py beside it);
// tests/data/smollm2_chat.json is a real model's template rendered by jinja2; the rest are written out by hand from
// what the header says.

#include "memoir/text/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace memoir::text {
namespace {

using Json = nlohmann::ordered_json;

Json read_json(const std::string& name) {
  std::ifstream in(std::string(MEMOIR_TEST_DATA) + "/" + name);
  return Json::parse(in);
}

std::string render(const std::string& source, Json variables = Json::object()) {
  ChatTemplate::Inputs inputs;
  inputs.extra = std::move(variables);
  inputs.max_steps = 1'000'000;
  return ChatTemplate(source).render(inputs);
}

// The error's message, or "no error".
template <class E>
std::string error_of(const std::string& source, Json variables = Json::object()) {
  try {
    render(source, std::move(variables));
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

// Any of the library's errors will do; other exceptions fail the test.
bool renders_or_refuses(const std::string& source, const Json& variables = Json::object()) {
  try {
    render(source, variables);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// ---- against jinja2 ----

TEST(ChatTemplate, RendersSmolLm2AsJinja2) {
  const Json golden = read_json("smollm2_chat.json");
  const ChatTemplate chat_template(golden["template"].get<std::string>());
  ASSERT_FALSE(golden["conversations"].empty());
  for (const Json& conversation : golden["conversations"]) {
    ChatTemplate::Inputs inputs;
    inputs.messages = conversation["messages"];
    inputs.add_generation_prompt = conversation["add_generation_prompt"].get<bool>();
    EXPECT_EQ(chat_template.render(inputs), conversation["text"].get<std::string>());
  }
}

TEST(ChatTemplate, RendersEveryCaseAsJinja2) {
  const Json data = read_json("templates/cases.json");
  ASSERT_GE(data["cases"].size(), 300U);
  for (const Json& example : data["cases"]) {
    const std::string source = example["template"].get<std::string>();
    if (example.contains("error")) {
      EXPECT_NE(error_of<InputError>(source, data["context"]), "no error") << source;
      continue;
    }
    try {
      EXPECT_EQ(render(source, data["context"]), example["text"].get<std::string>()) << source;
    } catch (const InputError& error) {
      ADD_FAILURE() << source << "\n" << error.what();
    }
  }
}

// ---- inputs ----

TEST(ChatTemplate, GivesTheVariablesThatTransformersGives) {
  const ChatTemplate chat_template(
      "{{ messages|length }} {{ tools }} {{ documents }} {{ add_generation_prompt }} {{ bos_token }} {{ eos_token is "
      "defined }} {{ enable_thinking }}");
  ChatTemplate::Inputs inputs;
  inputs.bos_token = "<s>";
  inputs.extra = {{"enable_thinking", false}};
  EXPECT_EQ(chat_template.render(inputs), "0 None None True <s> False False");
  inputs.tools = Json::array({{{"name", "f"}}});
  inputs.extra["documents"] = Json::array({1});
  inputs.extra["bos_token"] = "other";
  EXPECT_EQ(chat_template.render(inputs), "0 [{'name': 'f'}] [1] True other False False");
}

TEST(ChatTemplate, KeepsTheOrderOfKeys) {
  EXPECT_EQ(render("{{ d|tojson }}", {{"d", Json::parse(R"({"z": 1, "a": {"y": 2, "b": 3}})")}}),
            R"({"z": 1, "a": {"y": 2, "b": 3}})");
}

TEST(ChatTemplate, TellsTheTimeItIsGiven) {
  ChatTemplate::Inputs inputs;
  const std::time_t seconds = 1'700'000'000;
  inputs.now = std::chrono::system_clock::from_time_t(seconds) + std::chrono::microseconds(42);
  char expected[64];
  std::strftime(expected, sizeof expected, "%d %b %Y %H:%M 100%% ", std::localtime(&seconds));
  EXPECT_EQ(ChatTemplate("{{ strftime_now('%d %b %Y %H:%M 100%% %f') }}").render(inputs),
            std::string(expected) + "000042");
}

TEST(ChatTemplate, RefusesExtraThatIsNoObject) {
  ChatTemplate::Inputs inputs;
  inputs.extra = Json::array({1});
  EXPECT_THROW(ChatTemplate("x").render(inputs), std::invalid_argument);
}

TEST(ChatTemplate, RefusesAnIntegerOfTheInputThatItCannotHold) {
  const Json variables = {{"n", 18446744073709551615ULL}};
  EXPECT_THROW(render("{{ n }}", variables), UnsupportedError);
}

TEST(ChatTemplate, RendersFromManyThreadsAtOnce) {
  const ChatTemplate chat_template(
      "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content|upper %}{% endfor %}"
      "{{ ns.t }}");
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&chat_template, &texts, i] {
      ChatTemplate::Inputs inputs;
      for (int k = 0; k < 100; ++k)
        inputs.messages.push_back({{"content", std::string(1, static_cast<char>('a' + i))}});
      for (int k = 0; k < 20; ++k) texts[i] = chat_template.render(inputs);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i], std::string(100, static_cast<char>('A' + i)));
  }
}

TEST(ChatTemplate, RendersALongConversation) {
  Json messages = Json::array();
  std::string expected;
  for (int i = 0; i < 20'000; ++i) {
    const std::string content = "message " + std::to_string(i) + std::string(200, 'x');
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", content}});
    expected += (i % 2 == 0 ? "<user>" : "<assistant>") + content + "\n";
  }
  ChatTemplate::Inputs inputs;
  inputs.messages = std::move(messages);
  const ChatTemplate chat_template(
      "{% for m in messages %}{% if m.role == 'user' %}<user>{% else %}<{{ m['role'] }}>{% endif %}"
      "{{ m.content|trim + '\\n' }}{% endfor %}");
  EXPECT_EQ(chat_template.render(inputs), expected);
}

// ---- errors ----

TEST(ChatTemplateErrors, NamePathAndLine) {
  try {
    ChatTemplate("a\n{% if x %}\n{{ y }}\n{% endfor %}", "model/chat_template.jinja");
    FAIL() << "no error";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.path(), "model/chat_template.jinja");
    EXPECT_EQ(error.key(), "line 4");
  }
  try {
    ChatTemplate("a\n\n{{ x.y.z }}", "t").render({});
    FAIL() << "no error";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.key(), "line 3");
    EXPECT_STREQ(error.what(), "t: line 3: 'x' is undefined");
  }
}

TEST(ChatTemplateErrors, NameTheLineInsideAMacro) {
  EXPECT_EQ(error_of<FormatError>("{% macro m(a) %}\n{{ a.b.c }}\n{% endmacro %}\n\n{{ m({}) }}"),
            "chat template: line 2: 'dict object' has no attribute 'b'");
}

TEST(ChatTemplateErrors, NameUnsupportedConstructs) {
  for (const char* tag :
       {"include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'", "block b", "autoescape true"}) {
    const std::string message = error_of<UnsupportedError>("\n{% " + std::string(tag) + " %}");
    EXPECT_NE(message.find("line 2"), std::string::npos) << message;
    EXPECT_NE(message.find(std::string(tag).substr(0, std::string(tag).find(' '))), std::string::npos) << message;
  }
  EXPECT_NE(error_of<UnsupportedError>("{{ x|wordwrap }}").find("wordwrap"), std::string::npos);
  EXPECT_NE(error_of<UnsupportedError>("{{ 'a'.encode() }}").find("encode"), std::string::npos);
}

TEST(ChatTemplateErrors, CarryTheTemplatesOwnWords) {
  try {
    render("x\n{{ raise_exception('Roles must ' ~ 'alternate') }}");
    FAIL() << "no error";
  } catch (const TemplateRefusal& refusal) {
    EXPECT_EQ(refusal.message(), "Roles must alternate");
    EXPECT_EQ(refusal.key(), "line 2");
  }
}

TEST(ChatTemplateErrors, ComeFromIntegersThatLeave64Bits) {
  for (const char* expression : {"9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2",
                                 "2 ** 63", "10 ** 100", "9223372036854775808", "'9223372036854775808'|int",
                                 "(-9223372036854775807 - 1) // -1", "-(-9223372036854775807 - 1)", "1e300|int"}) {
    EXPECT_NE(error_of<UnsupportedError>("{{ " + std::string(expression) + " }}"), "no error") << expression;
  }
  EXPECT_EQ(render("{{ 2 ** 62 }} {{ (-9223372036854775807 - 1) % -1 }}"), "4611686018427387904 0");
}

// ---- limits: each of these would otherwise run for ever, fill the memory or overflow the stack ----

TEST(ChatTemplateLimits, EndLoopsThatNeverEnd) {
  EXPECT_NE(error_of<FormatError>("{% for i in range(1000000000) %}{% endfor %}").find("Range too big"),
            std::string::npos);
  EXPECT_NE(
      error_of<UnsupportedError>("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"),
      "no error");
}

TEST(ChatTemplateLimits, EndTextsAndListsThatGrowWithoutEnd) {
  const std::string doubling =
      "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
  EXPECT_NE(error_of<UnsupportedError>(doubling), "no error");
  EXPECT_NE(error_of<UnsupportedError>("{{ 'x' * 1000000000000 }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>("{{ [0] * 1000000000000 }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>("{{ 'x'|center(1000000000000) }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>("{{ '%999999999999d' % 1 }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>("{% set l = ['x' * 1000000] * 100 %}{{ (l * 100)|join }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>("{% set x = 'x' * 10000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}"),
            "no error");
}

TEST(ChatTemplateLimits, EndValuesThatShareThemselves) {
  // 2^100 leaves in a hundred lists.
  const std::string lists =
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  EXPECT_NE(error_of<UnsupportedError>(lists + "{{ ns.x }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>(lists + "{{ ns.x|tojson }}"), "no error");
  EXPECT_NE(error_of<InputError>("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}"), "no error");
}

TEST(ChatTemplateLimits, EndDeepNesting) {
  const auto repeated = [](const std::string& text, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  const int n = 100'000;
  for (const std::string& source :
       {"{{ " + repeated("(", n) + "1" + repeated(")", n) + " }}", "{{ " + repeated("[", n),
        "{{ " + repeated("-", n) + "1 }}", "{{ " + repeated("not ", n) + "1 }}", "{{ x" + repeated(".x", n) + " }}",
        "{{ 1" + repeated(" + 1", n) + " }}", "{{ x" + repeated("|upper", n) + " }}",
        "{{ x" + repeated("()", n) + " }}", "{{ 1" + repeated(" if 1 else 1", n) + " }}",
        "{{ 1" + repeated(" is eq 1", n) + " }}", repeated("{% if 1 %}", n) + repeated("{% endif %}", n),
        "{% for " + repeated("(", n) + "x", repeated("{% for x in [1] %}", n), "{{ x" + repeated("[x", n),
        "{{ " + repeated("{1:", n)}) {
    EXPECT_NE(error_of<InputError>(source), "no error") << source.substr(0, 40);
  }
  // What real templates nest is far below the limits, and long chains that do not nest have none.
  EXPECT_EQ(render("{{ " + repeated("(", 60) + "1" + repeated(")", 60) + " }}"), "1");
  EXPECT_EQ(render("{{ 1" + repeated(" + 1", 100) + " }}"), "101");
  EXPECT_EQ(render("{{ 1" + repeated(" ~ 1", 1000) + " }}").size(), 1001U);
  EXPECT_EQ(render("{% if 0 %}" + repeated("{% elif 0 %}", 1000) + "{% else %}x{% endif %}"), "x");
}

TEST(ChatTemplateLimits, EndDeepRecursionAndValues) {
  EXPECT_NE(error_of<UnsupportedError>("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}"), "no error");
  EXPECT_NE(error_of<UnsupportedError>(
                "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}"),
            "no error");
  EXPECT_NE(
      error_of<UnsupportedError>(
          "{% set ns = namespace(x=[1]) %}{% for i in range(10000) %}{% set ns.x = ns.x|map('string') %}{% endfor %}"),
      "no error");
  EXPECT_NE(error_of<InputError>("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), "no error");
  EXPECT_EQ(
      render("{% macro f(n) %}{% if n %}{% if n is number %}{{ n }},{{ f(n - 1) }}{% endif %}{% endif %}{% endmacro %}"
             "{{ f(50) }}")
          .substr(0, 9),
      "50,49,48,");
}

TEST(ChatTemplateLimits, TakeDeepInputsOrRefuseThem) {
  const auto nested = [](int depth) {
    Json variables = Json::object();
    Json* innermost = &variables["x"];
    for (int i = 0; i < depth; ++i) {
      *innermost = Json::array();
      innermost->push_back(1);
      innermost = &innermost->back();
    }
    return variables;
  };
  EXPECT_EQ(render("{{ x|tojson }}", nested(200)), std::string(200, '[') + "1" + std::string(200, ']'));
  EXPECT_NE(error_of<UnsupportedError>("x", nested(100'000)), "no error");
}

// ---- bytes ----

TEST(ChatTemplateBytes, PassThroughWhenTheyAreNoText) {
  const std::string bytes("a\0b\xFF\xC3(\xE4\xB8", 8);
  EXPECT_EQ(render(bytes + "{{ 1 }}"), bytes + "1");
  EXPECT_EQ(render("{{ x }}|{{ x|length }}|{{ x|upper|length }}|{{ x[::-1]|length }}", {{"x", bytes}}),
            bytes + "|8|8|8");
}

TEST(ChatTemplateBytes, NeverCrashTheParser) {
  const Json data = read_json("templates/cases.json");
  std::string all;
  for (const Json& example : data["cases"]) all += example["template"].get<std::string>() + "\n";
  const std::string golden = read_json("smollm2_chat.json")["template"].get<std::string>();
  for (std::size_t n = 0; n < golden.size(); ++n) renders_or_refuses(golden.substr(0, n), data["context"]);

  std::mt19937 random(20240611);  // fixed: the same bytes on every run
  static const std::string kBytes = "{}%#|()[]'\"\\-+.,:=~<>* \n\rabifor in set\x80\xFF\xC3";
  int n_rendered = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string source = all.substr(random() % all.size(), random() % 200);
    for (std::size_t k = random() % 6; k > 0 && !source.empty(); --k) {
      source[random() % source.size()] = kBytes[random() % kBytes.size()];
    }
    if (renders_or_refuses(source, data["context"])) ++n_rendered;
  }
  EXPECT_GT(n_rendered, 0);
}

}  // namespace
}  // namespace memoir::text
