// The server as clients of all kinds find it: keys, limits, malformed requests, those who leave, those who are slow,
// many at once, and its own end. Over a fake engine; no test measures time, the limits are only made short.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "served_fake.h"

namespace memoir::test {
namespace {

using namespace std::chrono_literals;

class Http : public ServedFake {
 protected:
  static FakeService::Options slow() {
    FakeService::Options engine = answering(long_text());
    engine.token_delay = 2ms;
    return engine;
  }
  static Json streamed() {
    Json body = chat();
    body["stream"] = true;
    return body;
  }
  // Sends bytes and returns the status of what comes back; 0 if the connection was closed without an answer.
  int status_of(const std::string& request) const {
    RawClient client(port_);
    client.send(request);
    return client.read_response().status;
  }
};

TEST_F(Http, HealthMetricsAndTheRootAnswer) {
  start();
  EXPECT_EQ(get("/health").json(), (Json{{"status", "ok"}}));
  EXPECT_EQ(get("/").body, "memoir is running");
  ASSERT_EQ(post("/v1/chat/completions", chat()).status, 200);
  ASSERT_TRUE(
      eventually([&] { return get("/metrics").body.find("route=\"/v1/chat/completions\"") != std::string::npos; }));
  const RawResponse metrics = get("/metrics");
  EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(metrics.body.find("memoir_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1\n"),
            std::string::npos)
      << metrics.body;
  EXPECT_NE(metrics.body.find("memoir_time_to_first_token_seconds_count 1\n"), std::string::npos);
  EXPECT_NE(metrics.body.find("memoir_requests_finished_total{reason=\"stop\"} 1\n"), std::string::npos);
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(get("/v1/chat/completions").status, 405);
  EXPECT_EQ(post("/health", "").status, 405);
  EXPECT_EQ(get("/v1/chat/completions").headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(post("/health", "").headers.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(get("/cache").status, 501);
}

TEST_F(Http, TheCacheIsShownAndClearedThroughItsHooks) {
  start();
  service_.reset();
  server_.reset();
  service_ = std::make_unique<FakeService>(*tokenizer_, FakeService::Options{});
  server::ServerOptions options;
  options.http.port = 0;
  server_ = std::make_unique<server::ApiServer>(options, log_);
  port_ = server_->start();
  EXPECT_EQ(get("/health").status, 503);  // the model is not there yet
  EXPECT_EQ(get("/health").json(), (Json{{"status", "loading"}}));
  const RawResponse early = post("/v1/chat/completions", chat());
  EXPECT_EQ(early.status, 503);
  EXPECT_TRUE(early.headers.contains("retry-after"));
  int n_cleared = 0;
  server_->set_ready(fake_model(*tokenizer_), *service_,
                     {[] {
                        return Json{{"nodes", 3}};
                      },
                      [&n_cleared] { ++n_cleared; }});
  EXPECT_EQ(get("/cache").json(), (Json{{"nodes", 3}}));
  EXPECT_EQ(post("/cache/clear", "").status, 200);
  EXPECT_EQ(n_cleared, 1);
  EXPECT_EQ(status_of("POST /cache/clear HTTP/1.1\r\nHost: x\r\n\r\n"), 200);  // curl -X POST
  EXPECT_EQ(n_cleared, 2);
}

TEST_F(Http, KeysAreAskedForEverywhereButForHealth) {
  server::ServerOptions options;
  options.http.api_keys = {"first-key", "second-key"};
  start({}, options);
  EXPECT_EQ(get("/health").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/api/tags", "/"}) {
    EXPECT_EQ(get(path).status, 401) << path;
    EXPECT_EQ(get(path, "Authorization: Bearer second-key\r\n").status, 200) << path;
  }
  EXPECT_EQ(get("/v1/models", "X-Api-Key: first-key\r\n").status, 200);
  // RFC 9110, section 11.1: the scheme's name ignores case.
  EXPECT_EQ(get("/v1/models", "authorization: bearer first-key\r\n").status, 200);
  EXPECT_EQ(get("/v1/models", "Authorization: BEARER second-key\r\n").status, 200);
  EXPECT_EQ(get("/v1/models", "Authorization: bearer FIRST-KEY\r\n").status, 401);
  for (const char* wrong : {"Bearer first-ke", "Bearer first-key2", "Bearer ", "Basic first-key", "bearer"}) {
    EXPECT_EQ(get("/v1/models", "Authorization: " + std::string(wrong) + "\r\n").status, 401) << wrong;
  }
  const RawResponse refused = post("/v1/chat/completions", chat());
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json()["error"]["type"], "authentication_error");
  EXPECT_TRUE(refused.headers.contains("www-authenticate"));
  EXPECT_EQ(service_->stats().n_submitted, 0U);
}

TEST_F(Http, AKeyIsWhatItIsAlsoWithPercents) {
  server::ServerOptions options;
  options.http.api_keys = {"a%41%"};
  start({}, options);
  EXPECT_EQ(get("/v1/models", "Authorization: Bearer a%41%\r\n").status, 200);
  EXPECT_EQ(get("/v1/models", "X-Api-Key: a%41%\r\n").status, 200);
  EXPECT_EQ(get("/v1/models", "X-Api-Key: aA%\r\n").status, 401);
  EXPECT_EQ(get("/v1/models", "X-Api-Key: a%2541%\r\n").status, 401);
}

TEST_F(Http, EqualInConstantTimeIsEquality) {
  EXPECT_TRUE(server::equal_in_constant_time("abc", "abc"));
  EXPECT_TRUE(server::equal_in_constant_time("", ""));
  for (const auto& [given, secret] : std::vector<std::pair<std::string, std::string>>{
           {"abc", "abd"}, {"abc", "ab"}, {"ab", "abc"}, {"", "a"}, {"a", ""}, {"abab", "ab"}}) {
    EXPECT_FALSE(server::equal_in_constant_time(given, secret)) << given << " " << secret;
  }
}

TEST_F(Http, PagesOfStrangersAreRefused) {
  server::ServerOptions options;
  options.http.cors_origins = {"http://good.example"};
  start({}, options);
  EXPECT_EQ(get("/v1/models", "Origin: http://bad.example\r\n").status, 403);
  EXPECT_EQ(post("/v1/chat/completions", chat().dump(), "Origin: null\r\n").status, 403);
  const RawResponse allowed = get("/v1/models", "Origin: http://good.example\r\n");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "http://good.example");
  RawClient client(port_);
  client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://good.example\r\n\r\n");
  const RawResponse preflight = client.read_response();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_NE(preflight.headers.at("access-control-allow-headers").find("Authorization"), std::string::npos);
}

// OpenAI's package for pages sends x-stainless-* and asks for them first.
TEST_F(Http, APageMaySendTheHeadersThatItAsksFor) {
  server::ServerOptions options;
  options.http.cors_origins = {"http://good.example"};
  start({}, options);
  const auto allowed_for = [&](const std::string& asked) {
    RawClient client(port_);
    client.send_request("OPTIONS", "/v1/chat/completions", "", "Origin: http://good.example\r\n" + asked);
    return client.read_response().headers.at("access-control-allow-headers");
  };
  const std::string always = "Authorization, Content-Type, X-Api-Key, X-Request-Id";
  EXPECT_EQ(allowed_for(""), always);
  EXPECT_EQ(allowed_for("Access-Control-Request-Headers: content-type,x-stainless-os , x-stainless-lang\r\n"),
            always + ", content-type, x-stainless-os, x-stainless-lang");
  // What is no name does not come back: not a line's end that is written as %0d%0a either.
  EXPECT_EQ(allowed_for("Access-Control-Request-Headers: a b,,x-ok,\"q\",x%0d%0aSet-Cookie: y\r\n"), always + ", x-ok");
  EXPECT_EQ(allowed_for("Access-Control-Request-Headers: " + std::string(5000, 'x') + "\r\n"), always);
  RawClient stranger(port_);
  stranger.send_request("OPTIONS", "/", "", "Origin: http://bad.example\r\nAccess-Control-Request-Headers: x-a\r\n");
  const RawResponse refused = stranger.read_response();
  EXPECT_EQ(refused.status, 403);
  EXPECT_FALSE(refused.headers.contains("access-control-allow-headers"));
}

TEST_F(Http, RequestIdsAreKeptOrMade) {
  start();
  EXPECT_EQ(get("/health", "X-Request-Id: mine-1\r\n").headers.at("x-request-id"), "mine-1");
  EXPECT_TRUE(get("/health").headers.at("x-request-id").starts_with("req-"));
  EXPECT_TRUE(get("/health", "X-Request-Id: bad id\r\n").headers.at("x-request-id").starts_with("req-"));
}

TEST_F(Http, AConnectionServesManyRequestsAlsoSentAhead) {
  start(answering("Hi"));
  RawClient client(port_);
  for (int i = 0; i < 3; ++i) client.send_request("POST", "/v1/completions", R"({"prompt": "x"})");
  client.send_request("GET", "/health", "");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.read_response().json()["choices"][0]["text"], "Hi");
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(Http, ChunkedBodiesAreTaken) {
  start(answering("Hi"));
  RawClient client(port_);
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.send("8\r\n{\"prompt\r\n");
  client.send("6\r\n\": \"x\"\r\n1\r\n}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(Http, BodiesThatAreNoJsonAre400) {
  start();
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  std::string keys = "{\"a\":{";
  for (int i = 0; i < 20'000; ++i) keys += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
  const std::vector<std::string> bodies = {"",
                                           "{",
                                           "[]",
                                           "3",
                                           "{\"prompt\": \"\xff\xfe\"}",
                                           "{\"prompt\": \"\\ud800\"}",
                                           "{\"prompt\": 1e999}",
                                           "{\"a\":" + deep,
                                           deep,
                                           keys + "}}",
                                           "{\"prompt\": \"x\"} trailing",
                                           std::string("{\"prompt\": \"a\0b\"}", 17)};
  for (const std::string& body : bodies) {
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/api/generate", "/api/chat", "/api/show"}) {
      const RawResponse response = post(path, body);
      EXPECT_EQ(response.status, 400) << path << " " << body.substr(0, 50);
      EXPECT_TRUE(nlohmann::json::accept(response.body)) << response.body;
    }
  }
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Http, LargeBodiesAre413AlsoWithoutALengthAhead) {
  server::ServerOptions options;
  options.http.max_body_bytes = 10'000;
  start({}, options);
  RawClient client(port_);
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 413);
  EXPECT_EQ(client.read_all(), "");  // closed: what follows is no request
  EXPECT_EQ(post("/v1/completions", std::string(20'000, 'x')).status, 413);
  RawClient chunked(port_);
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("3e8\r\n" + std::string(1000, 'x') + "\r\n");
  EXPECT_EQ(chunked.read_response().status, 413);
  EXPECT_EQ(post("/api/generate", std::string(10'001, 'x')).json().at("error").is_string(), true);
}

TEST_F(Http, BodiesOfOtherKindsAreRefused) {
  start();
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /cache/clear HTTP/1.1\r\nHost: x\r\nContent-Length: %32\r\n\r\n{}"), 400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"), 413);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost : x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\n{}"), 400);
  EXPECT_EQ(status_of("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding\t: chunked\r\n\r\n"), 400);
  EXPECT_EQ(post("/v1/completions", "x", "Content-Encoding: gzip\r\n").status, 415);
  EXPECT_EQ(post("/v1/completions", "x", "Content-Type: multipart/form-data; boundary=x\r\n").status, 415);
  EXPECT_EQ(status_of("DELETE /api/delete HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"), 405);
  EXPECT_EQ(status_of("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"), 405);
  // curl -d says it is a form.
  EXPECT_EQ(post("/v1/completions", Json{{"prompt", std::string(20'000, 'x')}}.dump().substr(0, 20'000) + "\"}",
                 "Content-Type: application/x-www-form-urlencoded\r\n")
                .status,
            400);  // only because it does not fit the context
}

// RFC 9112, section 6.3: a request with neither Content-Length nor Transfer-Encoding has no body.
TEST_F(Http, ABodyThatIsNotStatedIsEmpty) {
  start();
  EXPECT_EQ(status_of("POST /nothing HTTP/1.1\r\nHost: x\r\n\r\n"), 404);
  // What comes behind it is no request of its own.
  RawClient client(port_);
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto response = client.read_response();
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json().at("error").at("message"), "the body is empty: expected a JSON object");
  EXPECT_EQ(client.read_all(), "");
}

TEST_F(Http, MalformedAndHugeHeadsAreRefused) {
  server::ServerOptions options;
  options.http.max_head_bytes = 20'000;
  start({}, options);
  EXPECT_EQ(status_of("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"), 404);
  EXPECT_EQ(status_of("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"), 414);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: x\r\nX: a" + std::string(1, '\0') + "b\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nX: " + std::string(30'000, 'x') + "\r\n\r\n"), 431);
  // Ten megabytes that never end: read no further than the limit, and told so.
  RawClient endless(port_);
  const std::string block(1 << 20, 'x');
  bool is_open = endless.send("GET /health HTTP/1.1\r\nX: ");
  for (int i = 0; i < 10 && is_open; ++i) is_open = endless.send(block);
  EXPECT_EQ(get("/health").status, 200);
  std::string many = "GET /health HTTP/1.1\r\n";
  for (int i = 0; i < 3000; ++i) many += "H" + std::to_string(i) + ": x\r\n";
  EXPECT_EQ(status_of(many + "\r\n"), 431);
}

TEST_F(Http, RangesAndCompressionAreNotApplied) {
  start();
  const std::string ranges = "Range: bytes=0-1" + std::string(7000, ',') + "\r\nAccept-Encoding: gzip, br\r\n";
  const RawResponse response = get("/health", ranges);
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.json(), (Json{{"status", "ok"}}));
  EXPECT_EQ(get("/health", "Cookie: " + std::string(9000, 'x') + "\r\n").status, 200);  // of others on this machine
  EXPECT_EQ(get("/health", "rAnGe: bytes=0-1\r\n").body.size(), response.body.size());
}

TEST_F(Http, SlowHeadsAndBodiesAre408) {
  server::ServerOptions options;
  options.http.head_timeout_ms = 50;
  options.http.body_timeout_ms = 50;
  start({}, options);
  RawClient head(port_);
  head.send("GET /health HT");
  EXPECT_EQ(head.read_response().status, 408);
  RawClient body(port_);
  body.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{\"pro");
  EXPECT_EQ(body.read_response().status, 408);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Http, IdleConnectionsAreClosed) {
  server::ServerOptions options;
  options.http.idle_timeout_ms = 50;
  start({}, options);
  RawClient client(port_);
  client.send_request("GET", "/health", "");
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(client.read_all(), "");
}

TEST_F(Http, HealthAnswersThoughEveryConnectionIsTaken) {
  server::ServerOptions options;
  options.http.max_connections = 4;
  start({}, options);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 4; ++i) {
    silent.push_back(std::make_unique<RawClient>(port_));
    silent.back()->send("GET /health HTTP/1.1\r\n");  // and no more
  }
  ASSERT_TRUE(eventually([&] { return get("/v1/models").status == 503; }));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(post("/v1/chat/completions", chat()).status, 503);
  RawClient mute(port_);  // says nothing at all
  EXPECT_EQ(get("/health").status, 200);
  std::vector<std::unique_ptr<RawClient>> crowd;  // more than are kept waiting
  for (int i = 0; i < 200; ++i) crowd.push_back(std::make_unique<RawClient>(port_));
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/v1/models").status, 503);
  EXPECT_EQ(crowd.front()->read_response().status, 503);
  EXPECT_EQ(crowd.front()->read_all(), "");
  silent.clear();
  EXPECT_TRUE(eventually([&] { return get("/v1/models").status == 200; }));
}

TEST_F(Http, AClientThatLeavesAStreamIsCancelled) {
  start(slow());
  RawClient client(port_);
  client.send_request("POST", "/v1/chat/completions", streamed().dump());
  ASSERT_TRUE(client.read_until("\"content\":\"x"));
  client.close();
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
  EXPECT_EQ(service_->n_cancelled(), 1);
  EXPECT_LT(service_->stats().n_completion_tokens, 2000U);
}

TEST_F(Http, AClientThatLeavesBeforeItsAnswerIsCancelled) {
  for (const char* path : {"/v1/chat/completions", "/api/chat"}) {
    start(slow());
    RawClient client(port_);
    client.send_request("POST", path, Json(chat()).dump());
    if (std::string(path) == "/v1/chat/completions") {
      ASSERT_TRUE(eventually([&] { return service_->n_open() == 1; }));
    } else {
      ASSERT_TRUE(client.read_until("\"content\""));
    }
    client.close();
    EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; })) << path;
    EXPECT_EQ(service_->n_cancelled(), 1);
    TearDown();
  }
}

TEST_F(Http, AClientThatLeavesDuringThePrefillIsCancelled) {
  FakeService::Options engine;
  engine.prefill_delay = 60s;
  start(std::move(engine));
  RawClient client(port_);
  client.send_request("POST", "/v1/chat/completions", streamed().dump());
  ASSERT_TRUE(client.read_until("\"role\""));
  client.close();
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
}

TEST_F(Http, AClientThatSentAheadIsCancelledToo) {
  start(slow());
  {
    RawClient client(port_);
    client.send_request("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 3000})");
    client.send("GET /health HTTP/1.1\r\n");
    ASSERT_TRUE(eventually([&] { return service_->n_open() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Http, AClientThatLeavesBeforeAnAnswerIsLoggedAsGone) {
  start(slow());
  {
    RawClient client(port_);
    client.send_request("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 3000})");
    ASSERT_TRUE(eventually([&] { return service_->n_open() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
  TearDown();  // the log is the server's until then
  EXPECT_NE(log_.str().find("status=499"), std::string::npos) << log_.str();
  EXPECT_NE(log_.str().find("client=gone"), std::string::npos) << log_.str();
  EXPECT_EQ(log_.str().find("error="), std::string::npos) << log_.str();
}

TEST_F(Http, AClientThatEndsSendingCountsAsGoneAndIsToldSo) {
  start(slow());
  RawClient client(port_);
  client.send_request("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 3000})");
  ASSERT_TRUE(eventually([&] { return service_->n_open() == 1; }));
  client.end_sending();
  const std::string answer = client.read_all();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 499 Client Closed Request\r\n")) << answer;
  EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos) << answer;  // and nothing behind it
}

TEST_F(Http, AReaderThatNeverReadsIsGivenUp) {
  FakeService::Options engine;
  engine.answer = [](const engine::Request&) { return long_text(); };
  server::ServerOptions options;
  options.http.write_timeout_ms = 100;
  start(std::move(engine), options, kPlainTemplate, {}, 1 << 20);
  RawClient client(port_, /* receive_buffer = */ 4096);
  Json body = streamed();
  body.update({{"n", 16}, {"logprobs", true}, {"top_logprobs", 20}});
  client.send_request("POST", "/v1/chat/completions", body.dump());
  EXPECT_TRUE(
      eventually([&] { return get("/metrics").body.find("route=\"/v1/chat/completions\"") != std::string::npos; }));
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
  EXPECT_EQ(get("/health").status, 200);
  TearDown();  // the log is the server's until then
  EXPECT_NE(log_.str().find("client="), std::string::npos) << log_.str();
}

TEST_F(Http, CommentsKeepAStreamAliveWhileNothingComes) {
  FakeService::Options engine = answering("Hi");
  engine.prefill_delay = 300ms;
  server::ServerOptions options;
  options.routes.keep_alive_interval = 20ms;
  start(std::move(engine), options);
  const RawResponse response = post("/v1/chat/completions", streamed());
  EXPECT_NE(response.body.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_LT(response.body.find(": keep-alive"), response.body.find("\"Hi\"") == std::string::npos
                                                    ? response.body.find("\"content\":\"H")
                                                    : response.body.find("\"Hi\""));
  EXPECT_EQ(event_data(response.body).back(), "[DONE]");
}

TEST_F(Http, ManyClientsAtOnceEachGetTheirOwnAnswer) {
  FakeService::Options engine;
  engine.answer = [](const engine::Request& request) {
    std::string text = "seed " + std::to_string(request.sampler.seed.value_or(0)) + ":";
    for (std::uint64_t i = 0; i < request.sampler.seed.value_or(0) % 7; ++i) text += " more";
    return text;
  };
  start(std::move(engine));
  std::atomic<int> n_right{0};
  std::vector<std::thread> threads;
  for (int client_number = 0; client_number < 32; ++client_number) {
    threads.emplace_back([&, client_number] {
      RawClient client(port_);
      for (int i = 0; i < 8; ++i) {
        const int seed = client_number * 100 + i;
        Json body = chat();
        body["seed"] = seed;
        body["stream"] = i % 2 == 0;
        if (i == 5) {  // one that leaves, and comes back
          RawClient other(port_);
          other.send_request("POST", "/v1/chat/completions", body.dump());
        }
        client.send_request("POST", "/v1/chat/completions", body.dump());
        const RawResponse response = client.read_response();
        std::string text;
        if (body["stream"] == true) {
          for (const std::string& data : event_data(response.body)) {
            if (data == "[DONE]") continue;
            text += Json::parse(data)["choices"][0]["delta"].value("content", "");
          }
        } else if (response.status == 200) {
          text = response.json()["choices"][0]["message"]["content"];
        }
        std::string expected = "seed " + std::to_string(seed) + ":";
        for (int k = 0; k < seed % 7; ++k) expected += " more";
        n_right += text == expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_right, 32 * 8);
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
}

TEST_F(Http, DrainingLetsRunningAnswersEndAndTakesNoMore) {
  FakeService::Options engine = answering("one two three four five six");
  engine.token_delay = 20ms;
  start(std::move(engine));
  RawClient client(port_);
  client.send_request("POST", "/v1/chat/completions", streamed().dump());
  ASSERT_TRUE(client.read_until("\"content\":\"o"));
  std::atomic<bool> has_drained{false};
  std::thread drainer([&] { has_drained = server_->drain(std::chrono::steady_clock::now() + 30s); });
  EXPECT_TRUE(eventually([&] { return get("/health").status == 503; }));
  const RawResponse refused = post("/v1/chat/completions", chat());
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_TRUE(client.read_until("[DONE]"));
  drainer.join();
  EXPECT_TRUE(has_drained);
}

TEST_F(Http, AtTheDeadlineOfADrainWhatIsLeftIsToldSo) {
  start(slow());
  RawClient client(port_);
  client.send_request("POST", "/v1/chat/completions", streamed().dump());
  RawClient waiting(port_);
  waiting.send_request("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 3000})");
  ASSERT_TRUE(eventually([&] { return service_->n_open() == 2; }));
  EXPECT_FALSE(server_->drain(std::chrono::steady_clock::now() + 50ms));
  EXPECT_TRUE(client.read_until("\"error\""));
  EXPECT_EQ(waiting.read_response().status, 503);
}

TEST_F(Http, StoppingEndsEveryConnection) {
  start(slow());
  RawClient streaming(port_);
  streaming.send_request("POST", "/v1/chat/completions", streamed().dump());
  ASSERT_TRUE(streaming.read_until("\"content\":\"x"));
  RawClient idle(port_);
  RawClient half(port_);
  half.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  server_->stop();
  streaming.read_all();
  EXPECT_EQ(idle.read_all(), "");
  half.read_all();
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
  EXPECT_THROW(RawClient{port_}, std::runtime_error);
}

TEST_F(Http, PromptsAreInTheLogOnlyWhereAskedFor) {
  start();
  ASSERT_EQ(post("/v1/chat/completions", chat("my secret")).status, 200);
  ASSERT_EQ(post("/api/generate", Json{{"model", "fake"}, {"prompt", "my secret"}}).status, 200);
  Json wrong = chat("my secret");
  wrong["temperature"] = "my secret";
  ASSERT_EQ(post("/v1/chat/completions", wrong).status, 400);
  TearDown();
  EXPECT_EQ(log_.str().find("secret"), std::string::npos) << log_.str();
  EXPECT_NE(log_.str().find("path=/v1/chat/completions status=200"), std::string::npos) << log_.str();
  EXPECT_NE(log_.str().find("prompt_tokens="), std::string::npos);
  server::ServerOptions options;
  options.routes.logs_prompts = true;
  options.log_format = server::LogFormat::kJson;
  log_.str("");
  start({}, options);
  ASSERT_EQ(post("/v1/chat/completions", chat("my secret")).status, 200);
  TearDown();
  const Json line = Json::parse(log_.str());
  EXPECT_EQ(line.at("prompt")[0]["content"], "my secret");
  EXPECT_EQ(line.at("status"), 200);
  EXPECT_EQ(line.at("level"), "info");
}

TEST_F(Http, ATakenPortIsAnError) {
  start();
  server::ServerOptions options;
  options.http.port = port_;
  server::ApiServer other(options, log_);
  EXPECT_THROW(other.start(), std::runtime_error);
  server::ServerOptions nowhere;
  nowhere.http.host = "no.such.host.invalid";
  server::ApiServer third(nowhere, log_);
  EXPECT_THROW(third.start(), std::runtime_error);
}

}  // namespace
}  // namespace memoir::test
