// The server's small parts, each alone.

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "memoir/server/event_queue.h"
#include "memoir/server/log.h"
#include "memoir/server/metrics.h"
#include "memoir/server/openai_request.h"
#include "memoir/server/openai_response.h"
#include "memoir/server/request_json.h"
#include "memoir/server/tool_schemas.h"
#include "memoir/server/worker_threads.h"
#include "served_fake.h"

namespace memoir::server {
namespace {

using namespace std::chrono_literals;

// ---- Requests' JSON

std::string message_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.what();
  }
  return "no error";
}

TEST(RequestJson, NullIsAbsent) {
  const Json body = Json::parse(R"({"a": null, "b": {"c": null}})");
  const Fields fields(body);
  EXPECT_FALSE(fields.number("a", 0, 1));
  EXPECT_FALSE(fields.text("a"));
  EXPECT_FALSE(fields.flag("missing"));
  EXPECT_TRUE(fields.texts("a", 3).empty());
  EXPECT_EQ(fields.find("a"), nullptr);
  EXPECT_NO_THROW(fields.refuse("a", false));
}

TEST(RequestJson, ErrorsNameTheFieldAndItsPlace) {
  const Json body = Json::parse(R"({"o": {"x": "1", "big": 1e300, "n": 1.5, "list": [1]}})");
  const Fields fields(body["o"], "options");
  EXPECT_EQ(message_of([&] { fields.number("x", 0, 2); }), "options.x: is no number from 0.0 to 2.0");
  EXPECT_EQ(message_of([&] { fields.integer("n", 0, 2); }), "options.n: is no whole number from 0 to 2");
  EXPECT_EQ(message_of([&] { fields.integer("big", 0, 2); }), "options.big: is no whole number from 0 to 2");
  EXPECT_EQ(message_of([&] { fields.need_text("missing"); }), "options.missing: is missing");
  EXPECT_EQ(message_of([&] { fields.texts("list", 3); }), "options.list: is neither a string nor a list of strings");
  EXPECT_EQ(message_of([&] { Fields(body["o"]["x"], "x"); }), "x: is not an object");
}

TEST(ApiErrors, MessagesGoOnBehindANulThatTheyQuote) {
  EXPECT_STREQ(ApiError(404, std::string("the model 'a\0b' does not exist", 30)).what(),
               "the model 'a\\x00b' does not exist");
}

TEST(RequestJson, WholeNumbersMayBeWrittenAsFloats) {
  const Json body = Json::parse(R"({"a": 16.0, "max": 18446744073709551615, "min": -9223372036854775808})");
  const Fields fields(body);
  EXPECT_EQ(fields.integer("a", 0, 100), 16);
  EXPECT_EQ(message_of([&] { fields.integer("max", 0, INT64_MAX); }).substr(0, 4), "max:");
  EXPECT_EQ(fields.integer("min", INT64_MIN, INT64_MAX), INT64_MIN);
}

TEST(RequestJson, ShapesThatWouldTakeLongAreRefused) {
  EXPECT_EQ(message_of([] { parse_body(std::string(200, '[')); }), "the JSON nests deeper than 100 levels");
  std::string keys = "{";
  for (int i = 0; i < 11'000; ++i) keys += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  EXPECT_EQ(message_of([&] { parse_body(keys + "}"); }), "an object of the JSON has too many keys");
  EXPECT_EQ(message_of([] { parse_body("[[[]]]"); }), "the body is no JSON object");
  // The message is logged, and a prompt isn't.
  for (const char* body : {R"({"prompt": "secret \ud800 x"})", "{\"prompt\": \"secret\tx\"}", R"({"prompt": secret})",
                           "{\"prompt\": \"secret \xff\"}", R"({"prompt": "a" "secret"})", R"({"prompt": "secret)"}) {
    const std::string message = message_of([&] { parse_body(body); });
    EXPECT_EQ(message.find("the body is not JSON: parse error at line 1, column "), 0U) << message;
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
  }
  EXPECT_NO_THROW(parse_body(R"({"text": "[[[[{{{{::::\"\\"})"));
}

// ---- The queue between engine and client

class NobodyLeaves : public ClientWatch {
 public:
  int socket() const override { return -1; }
  bool client_is_gone() override { return is_gone; }
  bool is_gone = false;
};

TEST(EventQueue, HandsOutInOrderAcrossThreads) {
  EventQueue queue(100'000);
  NobodyLeaves client;
  std::thread engine([&] {
    for (int i = 0; i < 5000; ++i) queue.push(0, engine::TokenEvent{i, "", 0, {}});
    queue.push(0, engine::Finished{engine::FinishReason::kStop, "", {}});
  });
  for (int i = 0; i < 5000; ++i) {
    const auto result = queue.wait(client, 10s);
    ASSERT_EQ(std::get<engine::TokenEvent>(std::get<EventQueue::Item>(result).event).token, i);
  }
  EXPECT_TRUE(std::holds_alternative<engine::Finished>(std::get<EventQueue::Item>(queue.wait(client, 10s)).event));
  engine.join();
}

TEST(EventQueue, SaysWhyThereIsNothing) {
  EventQueue queue(2);
  NobodyLeaves client;
  EXPECT_EQ(std::get<EventQueue::NoItem>(queue.wait(client, 1ms)), EventQueue::NoItem::kTimedOut);
  for (int i = 0; i < 3; ++i) queue.push(0, engine::TokenEvent{i, "", 0, {}});
  EXPECT_EQ(std::get<EventQueue::NoItem>(queue.wait(client, 1ms)), EventQueue::NoItem::kOverflowed);
  client.is_gone = true;
  EXPECT_EQ(std::get<EventQueue::NoItem>(queue.wait(client, 1ms)), EventQueue::NoItem::kClientGone);
}

TEST(EventQueue, KeepsOnlyTheLatestProgressOfAPrefill) {
  EventQueue queue(2);
  NobodyLeaves client;
  for (int i = 0; i < 1000; ++i) queue.push(0, engine::PrefillEvent{i, 1000});
  EXPECT_EQ(std::get<engine::PrefillEvent>(std::get<EventQueue::Item>(queue.wait(client, 1s)).event).n_done, 999);
  EXPECT_EQ(std::get<EventQueue::NoItem>(queue.wait(client, 1ms)), EventQueue::NoItem::kTimedOut);
}

// ---- Threads, log, metrics

TEST(WorkerThreads, RunNoMoreAtOnceThanTheyMay) {
  std::atomic<bool> may_end{false};
  std::atomic<int> n_done{0};
  {
    WorkerThreads workers(2);
    const auto job = [&] {
      while (!may_end) std::this_thread::sleep_for(1ms);
      ++n_done;
    };
    EXPECT_TRUE(workers.run(job));
    EXPECT_TRUE(workers.run(job));
    EXPECT_FALSE(workers.run(job));
    may_end = true;
    while (!workers.run(job)) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(n_done, 3);
}

TEST(Log, LinesAreTextOrJson) {
  std::ostringstream out;
  Log text(out, LogFormat::kText);
  text.write("info", "request", {{"path", "/v1"}, {"status", 200}, {"note", "two words\n\"quoted\""}, {"bad", "\xff"}});
  EXPECT_NE(out.str().find("Z info request path=/v1 status=200 note=\"two words\\n\\\"quoted\\\"\" bad="),
            std::string::npos)
      << out.str();
  EXPECT_EQ(out.str().find('\n'), out.str().size() - 1);
  out.str("");
  Log json(out, LogFormat::kJson);
  json.write("error", "x", {{"a", 1}});
  const Json line = Json::parse(out.str());
  EXPECT_EQ(line.at("level"), "error");
  EXPECT_EQ(line.at("a"), 1);
}

TEST(Log, TimesAreUtc) {
  const auto time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'234'567'890'123));
  EXPECT_EQ(utc_time(time, 3), "2009-02-13T23:31:30.123Z");  // `date -u -d @1234567890`
  EXPECT_EQ(utc_time(time, 0), "2009-02-13T23:31:30Z");
}

TEST(Metrics, HistogramsCountUpToTheirBounds) {
  Histogram histogram;
  for (const double value : {0.001, 0.005, 0.3, 1000.0}) histogram.add(value);
  const std::string text = histogram.text("x", "help");
  EXPECT_NE(text.find("# TYPE x histogram\n"), std::string::npos);
  EXPECT_NE(text.find("x_bucket{le=\"0.005\"} 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("x_bucket{le=\"0.5\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("x_bucket{le=\"120\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("x_bucket{le=\"+Inf\"} 4\n"), std::string::npos);
  EXPECT_NE(text.find("x_count 4\n"), std::string::npos);
}

// ---- Prompts

TEST(Metrics, ThePrefixCachesOfAllModelsAreTold) {
  engine::ServiceStats sum;
  for (const std::uint64_t n : {1, 10}) {
    engine::ServiceStats one;
    one.prefix_cache = {.bytes = n, .directory_bytes = 7, .n_lookups = 4 * n, .n_hits = 3 * n, .n_evicted_bytes = n};
    add_counts(sum, one);
  }
  sum.prefix_cache.bytes = 5;  // of what is there now, which only the pool knows
  sum.prefix_cache.directory_bytes = 7;
  const std::string text = Metrics().text(sum);
  for (const char* const line :
       {"memoir_prefix_cache_bytes{tier=\"memory\"} 5\n", "memoir_prefix_cache_bytes{tier=\"directory\"} 7\n",
        "memoir_prefix_cache_lookups_total 44\n", "memoir_prefix_cache_hits_total 33\n",
        "memoir_prefix_cache_evicted_bytes_total 11\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(Prompt, AForcedCallsSchemaKeepsReferencesInTheirPlace) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"type": "null"}}}}}])");
  const Json schema = forced_call_schema(tools, {"", "arguments", true});
  EXPECT_EQ(schema["$defs"]["tool0"]["properties"]["x"]["$ref"], "#/$defs/tool0/$defs/y");
  EXPECT_EQ(schema["type"], "array");
  EXPECT_EQ(schema["items"]["anyOf"][0]["properties"]["name"]["const"], "f");
  EXPECT_NO_THROW(engine::JsonSchema::parse(schema));
}

TEST(Prompt, EndingInAThoughtIsNoticed) {
  const auto model = test::fake_model(
      test::fake_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}{{ '<s>assistant\\n<think>\\n' }}"));
  const Json messages = Json::parse(R"([{"role": "user", "content": "x"}])");
  EXPECT_TRUE(chat_prompt(model, {messages, nullptr, nullptr}).begins_in_thoughts);
}

TEST(Prompt, AModelWithoutATemplateHasNoChat) {
  const auto model = test::fake_model(test::fake_tokenizer(""));
  const Json messages = Json::parse(R"([{"role": "user", "content": "x"}])");
  EXPECT_THROW(chat_prompt(model, {messages, nullptr, nullptr}), ApiError);
  EXPECT_FALSE(text_prompt(model, "").tokens.empty());
}

TEST(OpenAiUsage, TellsOfDraftsWhereThereWereAny) {
  Generation::Usage usage;
  usage.completion_tokens = 9;
  EXPECT_FALSE(openai_usage(usage).contains("completion_tokens_details"));
  usage.drafted_tokens = 7;
  usage.accepted_tokens = 5;
  const Json details = openai_usage(usage)["completion_tokens_details"];
  EXPECT_EQ(details["accepted_prediction_tokens"], 5);
  EXPECT_EQ(details["rejected_prediction_tokens"], 2);
}

}  // namespace
}  // namespace memoir::server
