// Several models over one server: who is loaded, who has to go, and what requests meanwhile get. Fake engines.

#include "memoir/server/model_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>

#include "memoir/base/error.h"
#include "served_fake.h"

namespace memoir::test {
namespace {

using std::chrono::milliseconds;

/// What a source of models does and has done. Outlives the server.
struct SourceControl {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::uint64_t>> models = {{"a", 100}, {"b", 100}, {"c", 100}};
  std::set<std::string> broken;
  std::function<void(const std::string&)> before_load;
  FakeService::Options engine;
  std::vector<std::string> loads;
  std::atomic<int> n_alive = 0;  // engines
  std::atomic<int> max_alive = 0;
  std::atomic<int> n_unloaded = 0;

  std::size_t n_loads() {
    const std::lock_guard lock(mutex);
    return loads.size();
  }
};

class CountedService : public FakeService {
 public:
  CountedService(const text::Tokenizer& tokenizer, const FakeService::Options& options, SourceControl& control)
      : FakeService(tokenizer, options), control_(control) {
    control_.max_alive = std::max(control_.max_alive.load(), ++control_.n_alive);
  }
  ~CountedService() override { --control_.n_alive; }

 private:
  SourceControl& control_;
};

class FakeSource : public server::ModelSource {
 public:
  FakeSource(SourceControl& control, const text::Tokenizer& tokenizer) : control_(control), tokenizer_(tokenizer) {}

  std::vector<server::ListedModel> list() override {
    const std::lock_guard lock(control_.mutex);
    std::vector<server::ListedModel> listed;
    for (const auto& [name, n_bytes] : control_.models) listed.push_back({name, details(n_bytes)});
    return listed;
  }

  server::ServedModel describe(const std::string& name) override { return served(name); }

  Loaded load(const std::string& name) override {
    if (control_.before_load) control_.before_load(name);
    const std::lock_guard lock(control_.mutex);
    control_.loads.push_back(name);
    if (control_.broken.contains(name)) throw FormatError(name, "weights", "are damaged");
    return {served(name), std::make_shared<CountedService>(tokenizer_, control_.engine, control_), {}};
  }

  void unloaded() override { ++control_.n_unloaded; }

 private:
  static server::ModelDetails details(std::uint64_t n_bytes) {
    server::ModelDetails details;
    details.family = "llama";
    details.size_bytes = n_bytes;
    return details;
  }

  server::ServedModel served(const std::string& name) const {
    std::uint64_t n_bytes = 0;
    for (const auto& [known, size] : control_.models) {
      if (known == name) n_bytes = size;
    }
    return server::ServedModel(
        {name, tokenizer_, {*tokenizer_.eos()}, 4096, tokenizer_.n_vocab(), details(n_bytes), kFakeEmbedding});
  }

  SourceControl& control_;
  const text::Tokenizer& tokenizer_;
};

class SeveralModels : public ServedFake {
 protected:
  ~SeveralModels() override { EXPECT_EQ(control_.n_alive, 0); }

  void serve(server::PoolOptions pool = {}) {
    tokenizer_ = std::make_unique<text::Tokenizer>(fake_tokenizer(kPlainTemplate));
    server::ServerOptions options;
    options.http.port = 0;
    server_ = std::make_unique<server::ApiServer>(std::move(options), log_);
    port_ = server_->start();
    server_->set_models(std::make_unique<FakeSource>(control_, *tokenizer_), std::move(pool));
  }

  void TearDown() override { server_.reset(); }

  RawResponse ask(const std::string& model, Json changes = Json::object()) {
    Json body = chat();
    body["model"] = model;
    body.update(changes);
    return post("/v1/chat/completions", body);
  }
  RawResponse ollama(const std::string& model, Json changes = Json::object()) {
    Json body = {{"model", model}, {"stream", false}, {"prompt", "Hi"}};
    body.update(changes);
    return post("/api/generate", body);
  }

  std::vector<std::string> running() const {
    std::vector<std::string> names;
    const Json answer = get("/api/ps").json();
    for (const Json& one : answer.at("models")) names.push_back(one.at("name"));
    return names;
  }

  SourceControl control_;
};

using Names = std::vector<std::string>;

TEST_F(SeveralModels, AreListedAndLoadedWhenAskedFor) {
  serve();
  EXPECT_EQ(get("/health").status, 200);
  Names names;
  const Json listed = get("/v1/models").json();
  for (const Json& one : listed.at("data")) names.push_back(one.at("id"));
  EXPECT_EQ(names, (Names{"a", "b", "c"}));
  EXPECT_EQ(get("/api/tags").json().at("models").size(), 3U);
  EXPECT_EQ(get("/v1/models/b").json().at("id"), "b");
  EXPECT_EQ(get("/v1/models/d").status, 404);
  EXPECT_EQ(running(), Names{});
  EXPECT_EQ(control_.n_loads(), 0U);

  const RawResponse answer = ask("b");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json().at("model"), "b");
  EXPECT_EQ(ask("b:latest").status, 200);
  EXPECT_EQ(running(), Names{"b:latest"});
  EXPECT_EQ(ollama("a").json().at("model"), "a");
  EXPECT_EQ(running(), (Names{"a:latest", "b:latest"}));
  EXPECT_EQ(control_.loads, (Names{"b", "a"}));
}

TEST_F(SeveralModels, UnknownOnesAre404AndNoneNamedIsTheDefault) {
  serve({.default_model = "c"});
  EXPECT_EQ(ask("d").status, 404);
  EXPECT_EQ(ask("d").json().at("error").at("code"), "model_not_found");
  EXPECT_EQ(ollama("d").status, 404);
  Json body = chat();
  body.erase("model");
  EXPECT_EQ(post("/v1/chat/completions", body).json().at("model"), "c");
  TearDown();
  serve();
  EXPECT_EQ(post("/v1/chat/completions", body).status, 400);
  EXPECT_EQ(post("/v1/chat/completions", body).json().at("error").at("param"), "model");
}

TEST_F(SeveralModels, ShowTellsWithoutLoading) {
  serve();
  EXPECT_EQ(post("/api/show", Json{{"model", "a"}}).json().at("template"), kPlainTemplate);
  EXPECT_EQ(post("/api/show", Json{{"model", "d"}}).status, 404);
  EXPECT_EQ(control_.n_loads(), 0U);
}

TEST_F(SeveralModels, OneThatCameLaterIsFoundAndOneThatIsGoneIsNot) {
  serve();
  EXPECT_EQ(ask("late").status, 404);
  {
    const std::lock_guard lock(control_.mutex);
    control_.models = {{"late", 100}, {"a", 100}};
  }
  EXPECT_EQ(ask("late").status, 200);
  EXPECT_EQ(get("/v1/models").json().at("data").size(), 2U);
  EXPECT_EQ(ask("b").status, 404);
}

// Also when its going was seen while it was loaded.
TEST_F(SeveralModels, OneThatIsPutBackIsFoundAgain) {
  serve();
  EXPECT_EQ(ask("b").status, 200);
  const auto set_models = [&](std::vector<std::pair<std::string, std::uint64_t>> models) {
    const std::lock_guard lock(control_.mutex);
    control_.models = std::move(models);
  };
  set_models({{"a", 100}});
  EXPECT_EQ(get("/v1/models").json().at("data").size(), 2U);  // b answers still
  EXPECT_EQ(post("/api/generate", Json{{"model", "b"}, {"keep_alive", 0}}).status, 200);
  ASSERT_TRUE(eventually([&] { return control_.n_unloaded == 1; }));
  EXPECT_EQ(ask("b").status, 404);
  set_models({{"a", 100}, {"b", 100}});
  EXPECT_EQ(ask("b").status, 200);
}

TEST_F(SeveralModels, LatestIsLeftOutOfAccountOnlyWhereThereIsNoSuchName) {
  control_.models = {{"a", 100}, {"b:latest", 100}, {"c", 100}, {"c:latest", 100}};
  serve();
  for (const auto& [asked, answers] : {std::pair<std::string, std::string>{"a:latest", "a"},
                                       {"b", "b:latest"},
                                       {"b:latest", "b:latest"},
                                       {"c", "c"},
                                       {"c:latest", "c:latest"}}) {
    const RawResponse response = ask(asked);
    EXPECT_EQ(response.status, 200) << asked;
    const std::lock_guard lock(control_.mutex);
    EXPECT_EQ(std::count(control_.loads.begin(), control_.loads.end(), answers), 1) << asked;
  }
}

TEST_F(SeveralModels, TheLeastRecentlyUsedGoesForAnother) {
  serve({.max_loaded = 2});
  ask("a");
  ask("b");
  ask("a");
  ask("c");
  EXPECT_EQ(running(), (Names{"a:latest", "c:latest"}));
  EXPECT_EQ(control_.max_alive, 2);
  EXPECT_EQ(control_.n_unloaded, 1);
}

TEST_F(SeveralModels, BytesBoundWhatIsLoaded) {
  control_.models = {{"a", 60}, {"b", 60}, {"large", 100}, {"huge", 121}};
  serve({.max_loaded = 10, .max_bytes = 120});
  ask("a");
  ask("b");
  EXPECT_EQ(running(), (Names{"a:latest", "b:latest"}));
  EXPECT_EQ(ask("large").status, 200);
  EXPECT_EQ(running(), Names{"large:latest"});
  const RawResponse answer = ask("huge");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.json().at("error").at("code"), "model_too_large");
  EXPECT_FALSE(answer.headers.contains("retry-after"));
  EXPECT_EQ(running(), Names{"large:latest"});
}

TEST_F(SeveralModels, AModelInUseStaysAndOthersGet503WithRetryAfter) {
  control_.engine.prefill_delay = std::chrono::hours(1);
  serve({.keep_alive = milliseconds(0), .max_loaded = 1, .load_wait = std::chrono::seconds(2)});
  RawClient client(port_);
  Json body = chat();
  body["model"] = "a";
  client.send_request("POST", "/v1/chat/completions", body.dump(), "");
  ASSERT_TRUE(eventually([&] { return running() == Names{"a:latest"}; }));
  const RawResponse answer = ask("b");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.at("retry-after"), "2");
  EXPECT_EQ(running(), Names{"a:latest"});
  client.close();
  EXPECT_TRUE(eventually([&] { return running().empty(); }));
  EXPECT_EQ(control_.n_loads(), 1U);
}

TEST_F(SeveralModels, WhoDoesNotWaitFindsItLoadedLater) {
  serve({.load_wait = std::chrono::seconds(0)});
  const RawResponse first = ask("b");
  EXPECT_EQ(first.status, 503);
  EXPECT_NE(first.json()["error"]["message"].get<std::string>().find("is being loaded"), std::string::npos);
  ASSERT_TRUE(eventually([&] { return running() == Names{"b:latest"}; }));
  EXPECT_EQ(ask("b").status, 200);
}

TEST_F(SeveralModels, AStreamKeepsItsModelToTheEnd) {
  control_.engine.answer = [](const engine::Request&) { return long_text(); };
  control_.engine.token_delay = milliseconds(1);
  serve({.keep_alive = milliseconds(0), .max_loaded = 1});
  RawClient client(port_);
  Json body = chat();
  body["model"] = "a";
  body["stream"] = true;
  body["max_tokens"] = 100;
  client.send_request("POST", "/v1/chat/completions", body.dump(), "");
  ASSERT_TRUE(eventually([&] { return running() == Names{"a:latest"}; }));
  EXPECT_EQ(ask("b", {{"max_tokens", 1}}).status, 200);  // waits for it
  const std::vector<std::string> events = event_data(client.read_response().body);
  ASSERT_GT(events.size(), 50U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(control_.max_alive, 1);
}

TEST_F(SeveralModels, UnusedOnesGoAfterTheirTime) {
  serve({.keep_alive = milliseconds(100)});
  ask("a");
  ollama("b", {{"keep_alive", -1}});
  ollama("c", {{"keep_alive", "1h"}});
  EXPECT_TRUE(eventually([&] { return running() == (Names{"b:latest", "c:latest"}); }));
  const Json models = get("/api/ps").json().at("models");
  EXPECT_EQ(models[0].at("expires_at"), "2300-01-01T00:00:00Z");
  EXPECT_LT(models[1].at("expires_at"), "2300-01-01T00:00:00Z");
  EXPECT_EQ(ollama("b", {{"keep_alive", 0}}).status, 200);
  EXPECT_TRUE(eventually([&] { return running() == Names{"c:latest"}; }));
  EXPECT_EQ(ollama("c", {{"keep_alive", "5 minutes"}}).status, 400);
}

TEST_F(SeveralModels, KeepAliveZeroWithoutAPromptUnloads) {
  serve();
  ask("a");
  const Json generate = ollama("a", {{"prompt", ""}, {"keep_alive", 0}}).json();
  EXPECT_EQ(generate.at("done_reason"), "unload");
  EXPECT_EQ(generate.at("done"), true);
  EXPECT_TRUE(eventually([&] { return running().empty(); }));
  const Json of_chat = {{"model", "b"}, {"messages", Json::array()}, {"keep_alive", "0s"}};
  EXPECT_EQ(post("/api/chat", of_chat).json().at("done_reason"), "unload");
  EXPECT_EQ(control_.loads, Names{"a"});  // b was not loaded for that
  EXPECT_EQ(ollama("d", {{"prompt", ""}, {"keep_alive", 0}}).status, 404);
  EXPECT_EQ(ollama("b", {{"prompt", ""}}).json().at("done_reason"), "load");
  EXPECT_EQ(running(), Names{"b:latest"});
}

TEST_F(SeveralModels, WhileOneLoadsItsRequestsWaitAndOthersDoNot) {
  std::promise<void> may_load;
  const std::shared_future<void> loads = may_load.get_future().share();
  control_.before_load = [&](const std::string& name) {
    if (name == "b") loads.wait();
  };
  serve({.load_wait = milliseconds(200)});
  ask("a");
  EXPECT_EQ(ask("b").status, 503);
  EXPECT_EQ(ask("b").headers.at("retry-after"), "2");
  EXPECT_EQ(ask("a").status, 200);
  EXPECT_EQ(get("/v1/models").status, 200);
  EXPECT_EQ(get("/health").status, 200);
  may_load.set_value();
  EXPECT_TRUE(eventually([&] { return ask("b").status == 200; }));
  EXPECT_EQ(control_.loads, (Names{"a", "b"}));  // once
}

TEST_F(SeveralModels, OneThatCannotBeLoadedIsTriedAnew) {
  control_.broken = {"a"};
  serve();
  const RawResponse answer = ask("a");
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.json().at("error").at("code"), "model_load_failed");
  EXPECT_NE(answer.body.find("damaged"), std::string::npos);
  {
    const std::lock_guard lock(control_.mutex);
    control_.broken.clear();
  }
  EXPECT_EQ(ask("a").status, 200);
}

TEST_F(SeveralModels, AClientThatGoesAwayLeavesTheQueue) {
  std::promise<void> may_load;
  const std::shared_future<void> loads = may_load.get_future().share();
  std::atomic<bool> is_loading = false;
  control_.before_load = [&](const std::string&) {
    is_loading = true;
    loads.wait();
  };
  serve();
  Json body = chat();
  for (const char* model : {"a", "b"}) {
    RawClient client(port_);
    body["model"] = model;
    client.send_request("POST", "/v1/chat/completions", body.dump(), "");
    ASSERT_TRUE(eventually([&] { return is_loading.load(); }));
  }
  const std::string both_gone = R"({route="/v1/chat/completions",status="499"} 2)";
  ASSERT_TRUE(eventually([&] { return get("/metrics").body.find(both_gone) != std::string::npos; }));
  may_load.set_value();
  EXPECT_EQ(ask("c").status, 200);
  EXPECT_EQ(control_.loads, (Names{"a", "c"}));  // a was being loaded, b was not any more
}

TEST_F(SeveralModels, MetricsCountWhatIsGone) {
  serve({.keep_alive = milliseconds(0), .max_loaded = 1});
  for (const char* model : {"a", "b", "a"}) ask(model);
  EXPECT_TRUE(eventually([&] { return running().empty(); }));
  const auto metrics_have = [&](const std::string& line) {
    return get("/metrics").body.find(line + "\n") != std::string::npos;
  };
  EXPECT_TRUE(eventually([&] { return metrics_have("memoir_model_unloads_total 3"); }));  // told after it is gone
  EXPECT_TRUE(metrics_have("memoir_requests_submitted_total 3"));
  EXPECT_TRUE(metrics_have("memoir_model_loads_total 3"));
}

TEST_F(SeveralModels, DrainingLetsAllOfThemEnd) {
  control_.engine.answer = [](const engine::Request&) { return long_text(); };
  control_.engine.token_delay = milliseconds(1);
  serve();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (const char* model : {"a", "b"}) {
    Json body = chat();
    body["model"] = model;
    body["max_tokens"] = 100;
    clients.push_back(std::make_unique<RawClient>(port_));
    clients.back()->send_request("POST", "/v1/chat/completions", body.dump(), "");
  }
  ASSERT_TRUE(eventually([&] { return running().size() == 2; }));
  EXPECT_TRUE(server_->drain(std::chrono::steady_clock::now() + std::chrono::seconds(20)));
  for (const auto& client : clients) EXPECT_EQ(client->read_response().status, 200);
  EXPECT_EQ(ask("a").status, 503);
}

// Many clients, more models than may be loaded: everybody gets the model that he asked for.
TEST_F(SeveralModels, ManyClientsShareLittleRoom) {
  control_.models = {{"a", 100}, {"b", 100}, {"c", 100}, {"d", 100}};
  serve({.keep_alive = milliseconds(5), .max_loaded = 2, .load_wait = std::chrono::seconds(30)});
  std::vector<std::thread> clients;
  std::atomic<int> n_wrong = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      for (int k = 0; k < 12; ++k) {
        const std::string model(1, static_cast<char>('a' + (i * 7 + k * 3) % 4));
        const RawResponse answer = ask(model);
        if (answer.status != 200 || answer.json().at("model") != model) ++n_wrong;
        if (k % 4 == 0) get("/api/ps");
        if (k % 5 == 0) get("/metrics");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(n_wrong, 0);
  EXPECT_LE(control_.max_alive, 2);
}

}  // namespace
}  // namespace memoir::test
