#pragma once

// The server over a fake engine, for a test: started on a free port, stopped with it.

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

#include "fake_service.h"
#include "memoir/server/api_server.h"
#include "raw_client.h"

namespace memoir::test {

using Json = nlohmann::ordered_json;

class ServedFake : public testing::Test {
 protected:
  void start(FakeService::Options engine = {}, server::ServerOptions options = {},
             const std::string& chat_template = kPlainTemplate, const std::vector<std::string>& special = {},
             int context = 4096) {
    tokenizer_ = std::make_unique<text::Tokenizer>(fake_tokenizer(chat_template, special));
    service_ = std::make_unique<FakeService>(*tokenizer_, std::move(engine));
    options.http.port = 0;
    options.version = "1.2.3";
    server_ = std::make_unique<server::ApiServer>(std::move(options), log_);
    port_ = server_->start();
    server_->set_ready(fake_model(*tokenizer_, context), *service_);
  }

  // The server before the engine it asks.
  void TearDown() override {
    server_.reset();
    service_.reset();
  }

  RawResponse post(const std::string& path, const std::string& body, const std::string& headers = "") const {
    RawClient client(port_);
    client.send_request("POST", path, body, headers);
    return client.read_response();
  }
  RawResponse post(const std::string& path, const char* body) const { return post(path, std::string(body)); }
  RawResponse post(const std::string& path, const Json& body) const { return post(path, body.dump()); }

  RawResponse get(const std::string& path, const std::string& headers = "") const {
    RawClient client(port_);
    client.send_request("GET", path, "", headers);
    return client.read_response();
  }

  static Json chat(const std::string& content = "Hi") {
    return {{"model", "fake"}, {"messages", Json::array({{{"role", "user"}, {"content", content}}})}};
  }

  /// Waits until it is so, five seconds at most.
  template <typename Condition>
  static bool eventually(const Condition& condition) {
    for (int i = 0; i < 500; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  }

  std::ostringstream log_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeService> service_;
  std::unique_ptr<server::ApiServer> server_;
  int port_ = 0;
};

inline FakeService::Options answering(const std::string& text) {
  FakeService::Options options;
  options.answer = [text](const engine::Request&) { return text; };
  return options;
}

/// A text of some thousand tokens, so that a request lasts.
inline std::string long_text() {
  std::string text;
  for (int i = 0; i < 1500; ++i) text += "x" + std::to_string(i % 10);
  return text;
}

}  // namespace memoir::test
