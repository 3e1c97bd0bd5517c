#pragma once

// A service over the fake model: what tests of the scheduler send, and what they look at when they end.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "memoir/engine/scheduler.h"
#include "tests/fake_runner.h"

namespace memoir::test {

class SchedulerFixture : public testing::Test {
 protected:
  ~SchedulerFixture() override {
    service_.reset();
    EXPECT_EQ(control_.n_broken_rules, 0);
    for (const auto& listener : listeners_) EXPECT_TRUE(listener->is_orderly());
  }

  engine::Service& start(const engine::ServiceOptions& options = {},
                         std::optional<text::Tokenizer> tokenizer = std::nullopt) {
    service_ =
        engine::make_service([this] { return std::make_unique<FakeRunner>(control_); }, std::move(tokenizer), options);
    return *service_;
  }

  std::shared_ptr<Listener> listen() { return listeners_.emplace_back(std::make_shared<Listener>()); }

  struct Sent {
    engine::RequestId id;
    std::shared_ptr<Listener> listener;
  };
  Sent send(Tokens prompt, int max_tokens, const std::function<void(engine::Request&)>& change = {}) {
    const auto listener = listen();
    engine::Request request = request_for(std::move(prompt), max_tokens, listener);
    if (change) change(request);
    return {std::get<engine::RequestId>(service_->submit(std::move(request))), listener};
  }

  /// Sends and waits.
  std::shared_ptr<Listener> answer(Tokens prompt, int max_tokens,
                                   const std::function<void(engine::Request&)>& change = {}) {
    const Sent sent = send(std::move(prompt), max_tokens, change);
    sent.listener->wait();
    return sent.listener;
  }

  /// The service's thread stands in its first step until the gate is opened.
  void hold_first_step() {
    control_.before_run = [this] { gate_.pass(); };
  }

  FakeControl control_;
  Gate gate_;
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::unique_ptr<engine::Service> service_;
};

}  // namespace memoir::test
