// Everything at once over real models: 32 requests of mixed length that join as others leave, greedy, in too little
// room, most with drafts; some are cancelled, drafts of some can't be made or break the step, and some break it by
// themselves. What the others get are the tokens and log probabilities that each gets alone, to the bit.
//
// All happens on the service's thread, so every run is the same one.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memoir/engine/drafting.h"
#include "memoir/engine/model_runner.h"
#include "memoir/model/mtp_head.h"
#include "tests/model_files.h"
#include "tests/mtp_files.h"
#include "tests/service_cases.h"

namespace memoir::engine {
namespace {

using test::Case;
using test::Listener;
using test::Tokens;

constexpr TokenId kNoToken = 1'000'000;  // of no vocabulary: the model throws
constexpr std::size_t kFirst = 24;       // requests that are sent together; each that ends sends another

enum class Fault { kNone, kNoDrafts, kDraftThrows, kDraftsBreak, kBreaks };

Fault fault_of(std::size_t index) {
  constexpr std::array<Fault, 8> kFaults = {Fault::kNone,        Fault::kNone,     Fault::kDraftsBreak, Fault::kNone,
                                            Fault::kDraftThrows, Fault::kNoDrafts, Fault::kNone,        Fault::kBreaks};
  return kFaults[index % kFaults.size()];
}

std::vector<Case> greedy_cases(int n_vocab) {
  std::vector<Case> cases = test::cases_to_guess(n_vocab, 255, 90);
  for (Case& one : cases) {
    one.sampler = {};
    one.max_tokens = std::max(one.max_tokens, 8);
  }
  return cases;
}

/// What happened, for the test to see that it did.
struct Happened {
  int n_created = 0;  // more than requests: some were paged out
  int n_draft_throws = 0;
  int n_broken_by_drafts = 0;
  int n_broken = 0;
};

class FaultyRunner : public ModelRunner {
 public:
  FaultyRunner(std::unique_ptr<model::Model> model, const Drafting& drafting, const std::vector<Case>& cases,
               Happened& happened)
      : ModelRunner(std::move(model), {.max_bytes = std::size_t{1} << 22}, {}, std::nullopt, drafting),
        cases_(cases),
        happened_(happened) {}

  int create(const NewSequence& sequence) override {
    ++happened_.n_created;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const Tokens& prompt = cases_[i].prompt;
      const bool is_same =
          std::ssize(prompt) == sequence.n_prompt && std::equal(prompt.begin(), prompt.end(), sequence.tokens.begin());
      if (is_same) faults_[sequence.id] = {fault_of(i), sequence.n_prompt};
    }
    return ModelRunner::create(sequence);
  }

  Tokens propose(SequenceId sequence, std::span<const TokenId> text, int n_max) override {
    const Fault fault = faults_.at(sequence).first;
    if (fault == Fault::kNoDrafts) return {};
    if (fault == Fault::kDraftThrows && text.size() % 3 == 0) {
      ++happened_.n_draft_throws;
      throw std::runtime_error("no guess");
    }
    return ModelRunner::propose(sequence, text, n_max);
  }

  std::vector<std::span<float>> run(std::span<const Slice> slices) override {
    std::vector<Slice> asked(slices.begin(), slices.end());
    std::vector<Tokens> broken(asked.size());
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (!breaks(asked[i])) continue;
      broken[i].assign(asked[i].tokens.begin(), asked[i].tokens.end());
      broken[i].back() = kNoToken;
      asked[i].tokens = broken[i];
    }
    return ModelRunner::run(asked);
  }

 private:
  // By a draft, so that it goes on without; or for good, three tokens behind its prompt.
  bool breaks(const Slice& slice) {
    const auto [fault, n_prompt] = faults_.at(slice.sequence);
    if (fault == Fault::kDraftsBreak && slice.n_drafts > 0) {
      ++happened_.n_broken_by_drafts;
      return true;
    }
    if (fault == Fault::kBreaks && offset(slice.sequence) + std::ssize(slice.tokens) > n_prompt + 3) {
      ++happened_.n_broken;
      return true;
    }
    return false;
  }

  const std::vector<Case>& cases_;
  Happened& happened_;
  std::map<SequenceId, std::pair<Fault, int>> faults_;
};

/// Sends the cases, all from the service's thread but the first one: when that begins some more, and one for each that
/// ends.
class Crowd {
 public:
  Crowd(Service& service, const std::vector<Case>& cases) : service_(service), cases_(cases), ids_(cases.size()) {
    for (std::size_t i = 0; i < cases.size(); ++i) listeners_.push_back(std::make_shared<Listener>());
  }

  std::vector<std::shared_ptr<Listener>> run() {
    send();
    for (const auto& listener : listeners_) listener->wait();
    return listeners_;
  }

 private:
  void send() {
    if (next_ == cases_.size()) return;
    const std::size_t i = next_++;
    Request request = test::request_for(cases_[i].prompt, cases_[i].max_tokens, listeners_[i]);
    request.n_likeliest = 2;
    request.on_event = [this, i, n_left = cases_[i].cancel_after,
                        listen = request.on_event](const Event& event) mutable {
      if (std::holds_alternative<Finished>(event) || std::holds_alternative<Failed>(event)) {
        send();
      } else {
        if (n_left && (*n_left)-- == 0) service_.cancel(ids_[i]);
        while (next_ < kFirst) send();
      }
      listen(event);  // the last: who waits for it may go
    };
    ids_[i] = std::get<RequestId>(service_.submit(std::move(request)));
  }

  Service& service_;
  const std::vector<Case>& cases_;
  std::vector<RequestId> ids_;
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::size_t next_ = 0;
};

/// One after the other, without drafts, in plenty of room, from an empty cache.
std::vector<std::vector<TokenEvent>> events_alone(const test::fs::path& path, const std::vector<Case>& cases) {
  const auto service = make_service(model::load_model(path), {.max_running = 1});
  std::vector<std::vector<TokenEvent>> events;
  for (const Case& one : cases) {
    const auto listener = std::make_shared<Listener>();
    Request request = test::request_for(one.prompt, one.max_tokens, listener);
    request.n_likeliest = 2;
    service->submit(std::move(request));
    listener->wait();
    events.push_back(listener->token_events);
  }
  return events;
}

void expect_first_of(const std::vector<TokenEvent>& got, const std::vector<TokenEvent>& alone) {
  ASSERT_LE(got.size(), alone.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, alone[i].token);
    EXPECT_EQ(got[i].log_probability, alone[i].log_probability);
    EXPECT_EQ(got[i].likeliest, alone[i].likeliest);
  }
}

void run_and_compare(const test::fs::path& path, Drafting drafting) {
  drafting.max_drafts = 4;
  drafting.adapts = false;  // whether they pay is a matter of the machine
  const std::vector<Case> cases = greedy_cases(model::load_model(path).model->config().vocab_size);
  const std::vector<std::vector<TokenEvent>> alone = events_alone(path, cases);
  const CacheCost cost = ModelRunner(model::load_model(path).model, {}, {}, std::nullopt, drafting).cost();
  Happened happened;
  const auto make_runner = [&] {
    return std::make_unique<FaultyRunner>(model::load_model(path).model, drafting, cases, happened);
  };
  auto service = make_service(
      make_runner, std::nullopt,
      {.max_running = 12, .prefill_tokens_per_step = 96, .max_cache_bytes = 4 * cost.bytes(256), .drafting = drafting});
  const std::vector<std::shared_ptr<Listener>> listeners = Crowd(*service, cases).run();
  std::uint64_t n_cancelled = 0;
  std::uint64_t n_failed = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Listener& listener = *listeners[i];
    EXPECT_TRUE(listener.is_orderly());
    expect_first_of(listener.token_events, alone[i]);
    if (listener.is_cancelled()) {
      EXPECT_TRUE(cases[i].cancel_after);
      ++n_cancelled;
    } else if (fault_of(i) == Fault::kBreaks) {
      EXPECT_TRUE(listener.failed);
      EXPECT_EQ(listener.token_events.size(), 4U);  // behind the prompt, and behind three more
      ++n_failed;
    } else {
      EXPECT_FALSE(listener.failed) << listener.failed->message;
      EXPECT_EQ(listener.token_events.size(), alone[i].size());
    }
  }
  service->drain(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.cache_bytes, 0U);
  EXPECT_EQ(stats.n_failed, n_failed);
  EXPECT_GT(n_failed, 0U);
  EXPECT_GT(n_cancelled, 0U);
  EXPECT_GT(stats.n_accepted_tokens, 0U);
  service.reset();
  EXPECT_GT(happened.n_created, 32) << "nobody was paged out";
  EXPECT_GT(happened.n_draft_throws, 0);
  EXPECT_GT(happened.n_broken_by_drafts, 0);
  EXPECT_GT(happened.n_broken, 0);
}

TEST(SchedulerFaults, WithLookupOthersGetWhatTheyGetAlone) {
  for (const char* const name : {"llama", "gemma3"}) {
    SCOPED_TRACE(name);
    run_and_compare(test::data(name), draft_by_lookup());
  }
}

TEST(SchedulerFaults, WithADraftModelOthersGetWhatTheyGetAlone) {
  const auto draft = std::make_shared<const model::LoadedModel>(model::load_model(test::data("llama")));
  run_and_compare(test::data("llama"), draft_with_model(draft, 64));
}

TEST(SchedulerFaults, WithTheModelsOwnHeadOthersGetWhatTheyGetAlone) {
  const test::TemporaryFolder folder;
  for (const std::string name : {"qwen3_5", "qwen3_next"}) {
    SCOPED_TRACE(name);
    const test::fs::path path = test::model_with_head(folder.path() / name, name);
    const model::LoadedModel loaded = model::load_model(path);
    run_and_compare(path, draft_with_head(model::load_mtp_head(path), *loaded.model));
  }
}

}  // namespace
}  // namespace memoir::engine
