// The scheduler over a fake model: who gets which tokens and which last event, whatever joins, leaves or fails.
// Expected tokens come from the fake model's formula, applied to each request alone.

#include "memoir/engine/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <limits>

#include "memoir/engine/log_probabilities.h"
#include "tests/fake_runner.h"
#include "tests/scheduler_fixture.h"

namespace memoir::engine {
namespace {

using test::counted;
using test::fake_answer;
using test::FakeControl;
using test::Gate;
using test::kPoison;
using test::Listener;
using test::request_for;
using test::Tokens;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

// One letter is one token; 26 and 27 together are the two bytes of U+00E9.
text::Tokenizer letters() {
  std::string vocab;
  for (int i = 0; i < 26; ++i)
    vocab += "\"" + std::string(1, static_cast<char>('a' + i)) + "\":" + std::to_string(i) + ",";
  vocab += "\"\xC3\x83\":26,\"\xC2\xA9\":27,\"w\xC4\xA0x\":28,\"[\":29,\"]\":30,\"|\":31";
  return text::Tokenizer::from_json(R"({"model":{"type":"BPE","vocab":{)" + vocab +
                                        R"(},"merges":[]},"decoder":{"type":"ByteLevel","add_prefix_space":false,)"
                                        R"("trim_offsets":false,"use_regex":false}})",
                                    "letters");
}

class Scheduler : public test::SchedulerFixture {};

TEST_F(Scheduler, ARequestGetsTheModelsTokens) {
  start({.prefill_tokens_per_step = 10});
  const auto listener = answer(counted(25), 6);
  EXPECT_EQ(listener->tokens, fake_answer(counted(25), 6));
  EXPECT_EQ(listener->prefills, (std::vector<std::pair<int, int>>{{10, 25}, {20, 25}, {25, 25}}));
  ASSERT_TRUE(listener->finished);
  EXPECT_EQ(listener->finished->reason, FinishReason::kLength);
  EXPECT_EQ(listener->finished->counts.prompt_tokens, 25);
  EXPECT_EQ(listener->finished->counts.cached_tokens, 0);
  EXPECT_EQ(listener->finished->counts.completion_tokens, 6);
  const ServiceStats stats = service_->stats();
  EXPECT_EQ(stats.n_steps, 8U);  // 3 for the prompt, the last of which gives the first token
  EXPECT_EQ(stats.n_submitted, 1U);
  EXPECT_EQ(stats.n_finished.at(FinishReason::kLength), 1U);
  EXPECT_EQ(stats.n_prompt_tokens, 25U);
  EXPECT_EQ(stats.n_completion_tokens, 6U);
  EXPECT_EQ(stats.n_running + stats.n_queued, 0);
}

TEST_F(Scheduler, RequestsJoinAndLeaveWithoutDisturbingEachOther) {
  hold_first_step();
  start({.max_running = 5, .prefill_tokens_per_step = 16});
  std::vector<Sent> sent;
  for (int i = 0; i < 30; ++i) sent.push_back(send(counted(1 + i * 3 % 41, i), 1 + i * 5 % 17));
  gate_.open();
  for (int i = 0; i < 30; ++i) {
    sent[static_cast<std::size_t>(i)].listener->wait();
    EXPECT_EQ(sent[static_cast<std::size_t>(i)].listener->tokens,
              fake_answer(counted(1 + i * 3 % 41, i), 1 + i * 5 % 17));
  }
  EXPECT_EQ(control_.max_slices, 5);
  EXPECT_LE(control_.max_tokens, 16);
}

TEST_F(Scheduler, ACancelWorksAtEveryStep) {
  start({.prefill_tokens_per_step = 4});
  const Tokens prompt = counted(12);
  const auto other = send(counted(9, 3), 60);
  for (int n_events = 1; n_events < 12; ++n_events) {  // 3 of them for the prompt
    auto id = std::make_shared<std::promise<RequestId>>();
    const auto sent = send(prompt, 50, [&, n = n_events, known = id->get_future().share()](Request& request) {
      request.on_event = [this, n, known, send_on = request.on_event, seen = 0](const Event& event) mutable {
        send_on(event);
        if (++seen == n) service_->cancel(known.get());
      };
    });
    id->set_value(sent.id);
    sent.listener->wait();
    EXPECT_TRUE(sent.listener->is_cancelled());
    const std::size_t n_seen = sent.listener->prefills.size() + sent.listener->tokens.size();
    const bool saw_whole_prompt = n_events == static_cast<int>(sent.listener->prefills.size());
    EXPECT_GE(n_seen, static_cast<std::size_t>(n_events));
    // The step that ends the prompt gives the first token too.
    EXPECT_LE(n_seen, static_cast<std::size_t>(n_events) + (saw_whole_prompt ? 1 : 0));
    EXPECT_EQ(sent.listener->tokens, fake_answer(prompt, static_cast<int>(sent.listener->tokens.size())));
  }
  other.listener->wait();
  EXPECT_EQ(other.listener->tokens, fake_answer(counted(9, 3), 60));
}

TEST_F(Scheduler, ACancelReachesTheQueueAndIgnoresStrangers) {
  hold_first_step();
  start({.max_running = 1});
  const auto running = send(counted(3), 5);
  const auto waiting = send(counted(4), 5);
  service_->cancel(waiting.id);
  service_->cancel(waiting.id);
  service_->cancel(12345);
  gate_.open();
  waiting.listener->wait();
  running.listener->wait();
  EXPECT_TRUE(waiting.listener->is_cancelled());
  EXPECT_TRUE(waiting.listener->tokens.empty());
  EXPECT_EQ(running.listener->tokens, fake_answer(counted(3), 5));
  service_->cancel(running.id);
  EXPECT_EQ(answer(counted(5), 2)->tokens, fake_answer(counted(5), 2));
}

TEST_F(Scheduler, ADeadlineEndsARequest) {
  hold_first_step();
  start({.max_running = 1});
  const Clock::time_point soon = Clock::now() + std::chrono::milliseconds(30);
  const auto running = send(counted(3), 1000, [&](Request& request) { request.deadline = soon; });
  const auto waiting = send(counted(3), 1000, [&](Request& request) { request.deadline = soon; });
  const auto patient = send(counted(4), 5);
  gate_.await_arrival();
  std::this_thread::sleep_until(soon);
  gate_.open();
  for (const Sent& sent : {running, waiting, patient}) sent.listener->wait();
  EXPECT_TRUE(running.listener->is_cancelled());
  EXPECT_EQ(running.listener->tokens.size(), 1U);  // of the step in which it passed
  EXPECT_TRUE(waiting.listener->is_cancelled());
  EXPECT_TRUE(waiting.listener->tokens.empty());
  EXPECT_EQ(patient.listener->tokens, fake_answer(counted(4), 5));
}

TEST_F(Scheduler, AFullQueueRefusesAtOnce) {
  hold_first_step();
  start({.max_running = 1, .max_queued = 2});
  std::vector<Sent> accepted;
  for (int i = 0; i < 3; ++i) accepted.push_back(send(counted(3, i), 4));
  for (int i = 0; i < 5; ++i) {
    auto refused = std::make_shared<Listener>();
    EXPECT_EQ(std::get<Refusal>(service_->submit(request_for(counted(3), 4, refused))), Refusal::kQueueFull);
    EXPECT_FALSE(refused->has_ended());
  }
  gate_.await_arrival();
  EXPECT_EQ(service_->stats().n_refused, 5U);
  EXPECT_EQ(service_->stats().n_submitted, 3U);
  gate_.open();
  for (int i = 0; i < 3; ++i) {
    accepted[static_cast<std::size_t>(i)].listener->wait();
    EXPECT_EQ(accepted[static_cast<std::size_t>(i)].listener->tokens, fake_answer(counted(3, i), 4));
  }
  EXPECT_EQ(answer(counted(3), 4)->tokens, fake_answer(counted(3), 4));
}

TEST_F(Scheduler, AHigherPriorityIsServedFirst) {
  hold_first_step();
  start({.max_running = 1});
  std::vector<int> order;
  std::mutex mutex;
  const auto tagged = [&](int tag, int priority) {
    return send(counted(4), 1, [&, tag, priority](Request& request) {
      request.priority = priority;
      request.on_event = [&order, &mutex, tag, send_on = request.on_event](const Event& event) {
        if (std::holds_alternative<Finished>(event)) {
          const std::lock_guard lock(mutex);
          order.push_back(tag);
        }
        send_on(event);
      };
    });
  };
  std::vector<Sent> sent{tagged(0, 0)};
  gate_.await_arrival();  // it runs
  sent.push_back(tagged(1, 0));
  sent.push_back(tagged(2, 5));
  gate_.open();
  for (const Sent& one : sent) one.listener->wait();
  EXPECT_EQ(order, (std::vector<int>{0, 2, 1}));
}

TEST_F(Scheduler, DrainingEndsWhatWasAcceptedAndRefusesTheRest) {
  start({.max_running = 2});
  std::vector<Sent> sent;
  for (int i = 0; i < 10; ++i) sent.push_back(send(counted(5, i), 20));
  service_->drain(Clock::now() + seconds(60));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(sent[static_cast<std::size_t>(i)].listener->has_ended());
    EXPECT_EQ(sent[static_cast<std::size_t>(i)].listener->tokens, fake_answer(counted(5, i), 20));
  }
  const auto late = std::make_shared<Listener>();
  EXPECT_EQ(std::get<Refusal>(service_->submit(request_for({1}, 1, late))), Refusal::kDraining);
}

TEST_F(Scheduler, ADrainsDeadlineCancelsWhatIsLeft) {
  control_.before_run = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  start({.max_running = 2});
  std::vector<Sent> sent;
  for (int i = 0; i < 5; ++i) sent.push_back(send(counted(5, i), 900));
  service_->drain(Clock::now());
  for (const Sent& one : sent) {
    ASSERT_TRUE(one.listener->has_ended());
    EXPECT_TRUE(one.listener->is_cancelled());
  }
}

TEST_F(Scheduler, DestructionEndsEveryRequestOnce) {
  control_.before_run = [this] {
    gate_.pass();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  start({.max_running = 2});
  std::vector<Sent> sent;
  for (int i = 0; i < 6; ++i) sent.push_back(send(counted(5, i), 900));
  gate_.await_arrival();
  gate_.open();
  service_.reset();
  for (const Sent& one : sent) {
    ASSERT_TRUE(one.listener->has_ended());
    EXPECT_TRUE(one.listener->is_cancelled());
    EXPECT_TRUE(one.listener->is_orderly());
  }
  EXPECT_TRUE(control_.is_destroyed);
}

TEST_F(Scheduler, AListenerThatThrowsIsCancelledAlone) {
  start();
  const auto other = send(counted(6), 40);
  for (const int n_before : {0, 1, 2, 5}) {
    const auto thrower = send(counted(7), 40, [&](Request& request) {
      request.on_event = [n = n_before, send_on = request.on_event](const Event& event) mutable {
        const bool is_last = std::holds_alternative<Finished>(event);
        if (!is_last && n-- == 0) throw 42;
        send_on(event);
        if (is_last) throw std::runtime_error("even now");
      };
    });
    thrower.listener->wait();
    EXPECT_TRUE(thrower.listener->is_cancelled());
    EXPECT_EQ(thrower.listener->tokens.size(), static_cast<std::size_t>(std::max(0, n_before - 1)));
  }
  other.listener->wait();
  EXPECT_EQ(other.listener->tokens, fake_answer(counted(6), 40));
}

TEST_F(Scheduler, AListenerThatThrowsAtTheFirstSliceHasNoSecondOne) {
  start({.prefill_tokens_per_step = 4});
  const auto thrower = answer(counted(400), 5, [](Request& request) {
    request.on_event = [send_on = request.on_event](const Event& event) {
      if (std::holds_alternative<PrefillEvent>(event)) throw std::runtime_error("gone");
      send_on(event);
    };
  });
  EXPECT_TRUE(thrower->is_cancelled());
  EXPECT_EQ(control_.n_runs, 1);
}

TEST_F(Scheduler, EventsMaySubmitAndCancel) {
  start();
  const auto second = listen();
  RequestId stranger = 999;
  answer(counted(4), 3, [&](Request& request) {
    request.on_event = [&, send_on = request.on_event](const Event& event) {
      if (std::holds_alternative<Finished>(event)) {
        service_->cancel(stranger);
        EXPECT_EQ(service_->stats().n_running, 0);
        EXPECT_TRUE(std::holds_alternative<RequestId>(service_->submit(request_for(counted(5), 2, second))));
      }
      send_on(event);
    };
  });
  second->wait();
  EXPECT_EQ(second->tokens, fake_answer(counted(5), 2));
}

TEST_F(Scheduler, StopStringsAreFoundAcrossTokens) {
  for (const char c : std::string("hello[wor]ld")) {
    control_.scripted.push_back(c == '[' ? 29 : c == ']' ? 30 : c - 'a');
  }
  start({}, letters());
  auto listener = answer({1}, 12, [](Request& request) { request.stop_strings = {"o[w", "zz"}; });
  EXPECT_EQ(listener->text, "hell");
  EXPECT_EQ(listener->finished->reason, FinishReason::kStop);
  EXPECT_EQ(listener->tokens.size(), 7U);
  EXPECT_EQ(listener->token_events[4].text, "");  // "o" may begin the stop string
  listener = answer({1}, 5, [](Request& request) { request.stop_strings = {"o[x"}; });
  EXPECT_EQ(listener->text, "hello");
  EXPECT_EQ(listener->finished->text, "o");  // held back until the end
  EXPECT_EQ(listener->finished->reason, FinishReason::kLength);
}

TEST_F(Scheduler, CharactersArriveWhole) {
  control_.scripted = {0, 26, 27, 1, 26};
  start({}, letters());
  const auto listener = answer({1}, 5);
  std::vector<std::string> pieces;
  for (const TokenEvent& event : listener->token_events) pieces.push_back(event.text);
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "\xC3\xA9", "b", ""}));
  EXPECT_EQ(listener->finished->text, "\xEF\xBF\xBD");
}

TEST_F(Scheduler, StopTokensEndTheTextAndAreNoPartOfIt) {
  start();
  const Tokens tokens = fake_answer(counted(6), 10);
  const auto listener = answer(counted(6), 10, [&](Request& request) { request.stop_tokens = {tokens[4]}; });
  const auto n_kept = std::find(tokens.begin(), tokens.end(), tokens[4]) - tokens.begin();
  EXPECT_EQ(listener->tokens, Tokens(tokens.begin(), tokens.begin() + n_kept));
  EXPECT_EQ(listener->finished->reason, FinishReason::kStop);
}

TEST_F(Scheduler, LogProbabilitiesAreThoseOfTheModel) {
  start();
  const auto listener = answer(counted(6), 4, [&](Request& request) {
    request.n_likeliest = 3;
    request.sampler.temperature = 1.5;
    request.sampler.seed = 7;
    request.sampler.logit_bias[5] = 20;  // changes what is chosen, not what is reported
  });
  Tokens tokens = counted(6);
  for (const TokenEvent& event : listener->token_events) {
    const std::vector<float> logits = test::logits_after(tokens);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const auto expected = [&](TokenId token) { return logits[static_cast<std::size_t>(token)] - std::log(sum); };
    EXPECT_NEAR(event.log_probability, expected(event.token), 1e-6);
    ASSERT_EQ(event.likeliest.size(), 3U);
    EXPECT_EQ(event.likeliest[0].first, test::token_after(tokens));
    for (const auto& [token, value] : event.likeliest) EXPECT_NEAR(value, expected(token), 1e-6);
    for (std::size_t i = 1; i < 3; ++i) EXPECT_LE(event.likeliest[i].second, event.likeliest[i - 1].second);
    tokens.push_back(event.token);
  }
  EXPECT_EQ(listener->tokens, (Tokens{5, 5, 5, 5}));
}

TEST(LogProbabilities, TakesOddLogits) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits{1, -kInf, std::numeric_limits<float>::quiet_NaN(), 1, 0};
  const double log_sum = std::log(2 * std::exp(1) + 1);
  LogProbabilities values = log_probabilities(logits, 2, 5);
  EXPECT_EQ(values.of_token, -kInf);
  ASSERT_EQ(values.likeliest.size(), 3U);
  EXPECT_EQ(values.likeliest[0].first, 0);
  EXPECT_EQ(values.likeliest[1].first, 3);
  EXPECT_EQ(values.likeliest[2].first, 4);
  EXPECT_NEAR(values.likeliest[0].second, 1 - log_sum, 1e-6);
  EXPECT_NEAR(values.likeliest[2].second, -log_sum, 1e-6);
  EXPECT_EQ(log_probabilities(logits, 1, 0).of_token, -kInf);
  EXPECT_TRUE(log_probabilities(logits, 0, 0).likeliest.empty());
  EXPECT_THROW(log_probabilities(logits, 5, 1), std::invalid_argument);
  EXPECT_THROW(log_probabilities(logits, 0, -1), std::invalid_argument);
  EXPECT_EQ(log_probabilities(std::vector<float>{kInf, 1}, 1, 1).of_token, -kInf);
}

TEST_F(Scheduler, ZeroTokensComputesThePromptAlone) {
  start();
  const auto listener = answer(counted(6), 0);
  EXPECT_TRUE(listener->tokens.empty());
  EXPECT_EQ(listener->finished->reason, FinishReason::kLength);
  EXPECT_EQ(control_.n_runs, 1);
}

// As engine::generate: tokens at 8 and 9 fit the context of 10, the one chosen behind 9 has no place.
TEST_F(Scheduler, EndsWhereTheContextIsFull) {
  control_.context = 10;
  start();
  EXPECT_EQ(answer(counted(8), 100)->tokens, fake_answer(counted(8), 3));
  EXPECT_EQ(answer(counted(10), 100)->tokens, fake_answer(counted(10), 1));
  start({.max_context = 9});
  EXPECT_EQ(answer(counted(8), 100)->tokens, fake_answer(counted(8), 2));
  start({.max_cache_bytes = 8});
  EXPECT_EQ(answer(counted(8), 100)->tokens, fake_answer(counted(8), 1));
}

TEST_F(Scheduler, PenaltiesAndDrawsAreThoseOfASamplerAlone) {
  SamplerOptions options;
  options.temperature = 1.2;
  options.repetition_penalty = 1.3;
  options.presence_penalty = 0.4;
  options.seed = 11;
  Sampler sampler(options, test::kFakeVocab);
  Tokens tokens = counted(9);
  sampler.prime(tokens);
  for (int i = 0; i < 30; ++i) {
    std::vector<float> logits = test::logits_after(tokens);
    tokens.push_back(sampler.sample(logits));
    sampler.accept(tokens.back());
  }
  start();
  const auto listener = answer(counted(9), 30, [&](Request& request) { request.sampler = options; });
  EXPECT_EQ(listener->tokens, Tokens(tokens.begin() + 9, tokens.end()));
}

// Allows one token only, and throws when it has been accepted n times.
class Only : public LogitsProcessor {
 public:
  Only(TokenId token, int n_before_throw) : token_(token), n_left_(n_before_throw) {}
  void apply(std::span<float> logits) override {
    if (n_left_ == 0) throw std::runtime_error("the grammar is broken");
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (static_cast<TokenId>(i) != token_) logits[i] = -std::numeric_limits<float>::infinity();
    }
  }
  void accept(TokenId token) override {
    EXPECT_EQ(token, token_);
    --n_left_;
  }

 private:
  TokenId token_;
  int n_left_;
};

TEST_F(Scheduler, AProcessorChangesLogitsAndFailsAlone) {
  start();
  const auto other = send(counted(6), 30);
  const auto good = send(counted(5), 4, [](Request& request) { request.processor = std::make_unique<Only>(7, 100); });
  const auto bad = send(counted(5), 9, [](Request& request) { request.processor = std::make_unique<Only>(8, 3); });
  for (const Sent& sent : {other, good, bad}) sent.listener->wait();
  EXPECT_EQ(good.listener->tokens, (Tokens{7, 7, 7, 7}));
  EXPECT_EQ(bad.listener->tokens, (Tokens{8, 8, 8}));
  ASSERT_TRUE(bad.listener->failed);
  EXPECT_EQ(bad.listener->failed->message, "the grammar is broken");
  EXPECT_FALSE(bad.listener->failed->faulty_field);
  EXPECT_EQ(bad.listener->failed->counts.completion_tokens, 3);
  EXPECT_EQ(other.listener->tokens, fake_answer(counted(6), 30));
  EXPECT_EQ(service_->stats().n_failed, 1U);
}

TEST_F(Scheduler, ARequestWhoseBansLeaveNothingIsAtFaultAlone) {
  start();
  const auto other = send(counted(6), 30);
  const auto bad = send(counted(5), 9, [](Request& request) {
    for (TokenId token = 0; token < test::kFakeVocab; ++token) {
      request.sampler.logit_bias[token] = -std::numeric_limits<float>::infinity();
    }
  });
  for (const Sent& sent : {other, bad}) sent.listener->wait();
  ASSERT_TRUE(bad.listener->failed);
  EXPECT_EQ(bad.listener->failed->faulty_field, "logit_bias");
  EXPECT_EQ(bad.listener->failed->counts.prompt_tokens, 5);
  EXPECT_TRUE(bad.listener->tokens.empty());
  EXPECT_EQ(other.listener->tokens, fake_answer(counted(6), 30));
}

TEST_F(Scheduler, ARequestThatBreaksTheStepFailsAlone) {
  control_.fails_on_poison = true;
  for (const bool loses_caches : {false, true}) {
    control_.loses_caches = loses_caches;
    control_.keeps_caches = false;
    Service& service = start({.prefill_tokens_per_step = 12});
    std::vector<Sent> good;
    std::vector<Sent> bad;
    for (int i = 0; i < 6; ++i) {
      good.push_back(send(counted(4 + 5 * i, i), 25));
      Tokens poisoned = counted(3 + 6 * i, i);
      poisoned.back() = kPoison;
      bad.push_back(send(poisoned, 25));
    }
    for (const Sent& sent : bad) {
      sent.listener->wait();
      ASSERT_TRUE(sent.listener->failed);
      EXPECT_EQ(sent.listener->failed->message, "poisoned");
    }
    for (int i = 0; i < 6; ++i) {
      good[static_cast<std::size_t>(i)].listener->wait();
      EXPECT_EQ(good[static_cast<std::size_t>(i)].listener->tokens, fake_answer(counted(4 + 5 * i, i), 25));
    }
    EXPECT_EQ(service.stats().n_failed, 6U);
  }
}

TEST_F(Scheduler, ARequestThatCannotBeginFailsAlone) {
  control_.fails_to_begin = true;
  start();
  const auto bad = send({kPoison, 1, 2}, 5);
  const auto good = send(counted(3), 5);
  bad.listener->wait();
  good.listener->wait();
  ASSERT_TRUE(bad.listener->failed);
  EXPECT_EQ(bad.listener->failed->message, "no room");
  EXPECT_EQ(good.listener->tokens, fake_answer(counted(3), 5));
}

TEST_F(Scheduler, GoesOnAfterHavingMadeRoom) {
  control_.cost = {0, 1, 4};
  for (const bool keeps_caches : {false, true}) {
    control_.keeps_caches = keeps_caches;
    control_.n_retired = 0;
    const auto gate = std::make_shared<Gate>();
    control_.before_run = [gate] { gate->pass(); };
    start({.max_running = 4, .max_cache_bytes = 64});
    std::vector<Sent> sent;
    for (int i = 0; i < 8; ++i) sent.push_back(send(counted(6 + i, i), 30));
    gate->open();
    for (int i = 0; i < 8; ++i) {
      const Listener& listener = *sent[static_cast<std::size_t>(i)].listener;
      sent[static_cast<std::size_t>(i)].listener->wait();
      EXPECT_EQ(listener.tokens, fake_answer(counted(6 + i, i), 30));
      EXPECT_EQ(listener.finished->counts.prompt_tokens, 6 + i);
    }
    EXPECT_GT(control_.n_retired, 8) << "nobody was paged out";
  }
}

TEST_F(Scheduler, CachedTokensAreCounted) {
  control_.keeps_caches = true;
  start();
  answer(counted(20), 5);
  const auto again = answer(counted(20), 5);
  EXPECT_EQ(again->finished->counts.cached_tokens, 19);
  EXPECT_EQ(again->prefills, (std::vector<std::pair<int, int>>{{20, 20}}));
  EXPECT_EQ(again->tokens, fake_answer(counted(20), 5));
  EXPECT_EQ(service_->stats().n_cached_tokens, 19U);
  EXPECT_GT(service_->stats().prefix_cache.bytes, 0U);
}

TEST_F(Scheduler, APromptCatchesUpWithOneThatBeginsAlike) {
  control_.shares_prompts = true;
  hold_first_step();
  start({.prefill_tokens_per_step = 300});
  send(counted(1, 9), 1);
  gate_.await_arrival();  // it is in a step of its own
  const Tokens first = counted(250);
  Tokens second(first.begin(), first.begin() + 240);
  for (int i = 0; i < 40; ++i) second.push_back(i % 7);
  const auto one = send(first, 3);
  const auto other = send(second, 3);
  gate_.open();
  one.listener->wait();
  other.listener->wait();
  // The first step has 300 tokens: all of the one, 50 of the other. Then the other goes on from 240.
  EXPECT_EQ(other.listener->prefills, (std::vector<std::pair<int, int>>{{50, 280}, {280, 280}}));
  EXPECT_EQ(one.listener->finished->counts.cached_tokens, 0);
  EXPECT_EQ(other.listener->finished->counts.cached_tokens, 190);
  EXPECT_EQ(one.listener->tokens, fake_answer(first, 3));
  EXPECT_EQ(other.listener->tokens, fake_answer(second, 3));
  EXPECT_EQ(service_->stats().n_cached_tokens, 190U);
}

TEST_F(Scheduler, TellsAndDropsWhatIsKept) {
  control_.keeps_caches = true;
  start();
  EXPECT_EQ(service_->prefix_cache_report(), R"({"kept": 0})");  // nobody runs
  answer(counted(20), 5);
  EXPECT_EQ(service_->prefix_cache_report(), R"({"kept": 1})");
  service_->clear_prefix_cache();
  EXPECT_EQ(service_->prefix_cache_report(), R"({"kept": 0})");
  EXPECT_EQ(answer(counted(20), 5)->finished->counts.cached_tokens, 0);
}

TEST_F(Scheduler, RefusesRequestsThatAreWrong) {
  control_.context = 50;
  start();
  const auto refuses = [&](const std::function<void(Request&)>& change) {
    Request request = request_for(counted(5), 5, std::make_shared<Listener>());
    change(request);
    EXPECT_THROW(service_->submit(std::move(request)), std::invalid_argument);
  };
  refuses([](Request& request) { request.prompt.clear(); });
  refuses([](Request& request) { request.prompt = {test::kFakeVocab}; });
  refuses([](Request& request) { request.prompt = {-1}; });
  refuses([](Request& request) { request.prompt = counted(51); });
  refuses([](Request& request) { request.max_tokens = -1; });
  refuses([](Request& request) { request.sampler.temperature = -1; });
  refuses([](Request& request) { request.sampler.logit_bias[test::kFakeVocab] = 1; });
  refuses([](Request& request) { request.n_likeliest = -1; });
  refuses([](Request& request) { request.n_likeliest = test::kFakeVocab + 1; });
  refuses([](Request& request) { request.stop_strings = {"a"}; });  // there is no tokenizer
  refuses([](Request& request) { request.on_event = nullptr; });
  start({}, letters());
  refuses([](Request& request) { request.stop_strings = {""}; });
  EXPECT_EQ(service_->stats().n_submitted, 0U);
}

TEST_F(Scheduler, RefusesOptionsThatAreWrong) {
  EXPECT_THROW(start({.max_running = 0}), std::invalid_argument);
  EXPECT_THROW(start({.max_queued = -1}), std::invalid_argument);
  EXPECT_THROW(start({.prefill_tokens_per_step = 0}), std::invalid_argument);
  EXPECT_THROW(start({.max_context = 0}), std::invalid_argument);
  EXPECT_THROW(start({.max_cache_bytes = 0}), std::invalid_argument);
  const auto broken = []() -> std::unique_ptr<StepRunner> { throw std::runtime_error("no such model"); };
  EXPECT_THROW(make_service(broken, std::nullopt, {}), std::runtime_error);
}

}  // namespace
}  // namespace memoir::engine
