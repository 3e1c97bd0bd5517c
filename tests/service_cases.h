#pragma once

// Many requests to a service over a real model at once, and what each gets alone.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "memoir/engine/generate.h"
#include "memoir/engine/scheduler.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "tests/fake_runner.h"

namespace memoir::test {

struct Case {
  Tokens prompt;
  int max_tokens;
  engine::SamplerOptions sampler;
  std::optional<int> cancel_after;  // tokens
};

/// Prompts of mixed length, some beginning alike; some sampled, some cancelled.
inline std::vector<Case> mixed_cases(int n_vocab, int max_prompt, int max_tokens) {
  std::mt19937 random(20261127);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Tokens common;
  for (int i = 0; i < max_prompt / 2; ++i) common.push_back(number(0, n_vocab - 1));
  std::vector<Case> cases;
  for (int i = 0; i < 32; ++i) {
    Case one{{}, number(1, max_tokens), {}, {}};
    if (i % 3 == 0) one.prompt = common;
    const int n_own = number(1, max_prompt - static_cast<int>(one.prompt.size()));
    for (int k = 0; k < n_own; ++k) one.prompt.push_back(number(0, n_vocab - 1));
    if (i % 2 == 0) {
      one.sampler.temperature = 1;
      one.sampler.repetition_penalty = 1.1;
      one.sampler.seed = static_cast<std::uint64_t>(i);
    }
    if (i % 5 == 4) one.cancel_after = number(0, one.max_tokens);
    cases.push_back(std::move(one));
  }
  return cases;
}

/// Every third prompt is one text again and again, in which something is found to guess.
inline std::vector<Case> cases_to_guess(int n_vocab, int max_prompt, int max_tokens) {
  std::vector<Case> cases = mixed_cases(n_vocab, max_prompt, max_tokens);
  for (std::size_t i = 1; i < cases.size(); i += 3) {
    Tokens& prompt = cases[i].prompt;
    const std::size_t n = std::max<std::size_t>(1, prompt.size() / 4);
    for (std::size_t k = n; k < prompt.size(); ++k) prompt[k] = prompt[k - n];
    cases[i].sampler = {};
  }
  return cases;
}

inline std::vector<Tokens> answers_alone(const std::filesystem::path& path, const std::vector<Case>& cases) {
  const model::LoadedModel loaded = model::load_model(path);
  std::vector<Tokens> answers;
  for (const Case& one : cases) {
    engine::Session session(*loaded.model);
    engine::GenerateOptions options;
    options.max_tokens = one.max_tokens;
    options.sampler = one.sampler;
    answers.push_back(engine::generate(session, one.prompt, options, nullptr).tokens);
  }
  return answers;
}

/// Runs all cases at once, from two threads, and compares each with its answer alone.
inline void compare_all(engine::Service& service, const std::vector<Case>& cases, const std::vector<Tokens>& expected) {
  std::vector<std::shared_ptr<Listener>> listeners;
  for (std::size_t i = 0; i < cases.size(); ++i) listeners.push_back(std::make_shared<Listener>());
  const auto client = [&](std::size_t first) {
    for (std::size_t i = first; i < cases.size(); i += 2) {
      engine::Request request = request_for(cases[i].prompt, cases[i].max_tokens, listeners[i]);
      request.sampler = cases[i].sampler;
      if (i % 3 == 0) request.turn_ends = {100};  // all that these prompts have in common
      auto id = std::make_shared<std::promise<engine::RequestId>>();
      if (cases[i].cancel_after) {
        request.on_event = [&service, n_left = *cases[i].cancel_after, known = id->get_future().share(),
                            send_on = request.on_event](const engine::Event& event) mutable {
          send_on(event);
          const bool is_last =
              std::holds_alternative<engine::Finished>(event) || std::holds_alternative<engine::Failed>(event);
          if (!is_last && n_left-- == 0) service.cancel(known.get());
        };
      }
      id->set_value(std::get<engine::RequestId>(service.submit(std::move(request))));
      if (i % 4 > 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  std::thread second([&] { client(1); });
  client(0);
  second.join();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    listeners[i]->wait();
    EXPECT_FALSE(listeners[i]->failed) << listeners[i]->failed->message;
    const Tokens& tokens = listeners[i]->tokens;
    EXPECT_LE(tokens.size(), expected[i].size());
    EXPECT_TRUE(tokens.size() == expected[i].size() || cases[i].cancel_after);
    EXPECT_EQ(tokens, Tokens(expected[i].begin(), expected[i].begin() + static_cast<std::ptrdiff_t>(tokens.size())));
  }
}

inline engine::ServiceStats run_and_compare(std::unique_ptr<engine::Service> service, const std::vector<Case>& cases,
                                            const std::vector<Tokens>& expected) {
  compare_all(*service, cases, expected);
  service->drain(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  return service->stats();
}

inline engine::ServiceStats run_and_compare(const std::filesystem::path& path, const std::vector<Case>& cases,
                                            const std::vector<Tokens>& expected,
                                            const engine::ServiceOptions& options) {
  return run_and_compare(engine::make_service(model::load_model(path), options), cases, expected);
}

}  // namespace memoir::test
