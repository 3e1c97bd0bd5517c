// Chats on tiny models of every kind, as clients have them: extended, edited in the middle, stripped of thoughts,
// answered anew, left for another chat, cancelled, several at once, paged out, and with steps that fail. Every row of
// logits is bit for bit that of one forward pass over the text without a cache, and as many tokens are cached as the
// policy promises.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memoir/cache/recurrent.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/model_runner.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/engine/session.h"
#include "memoir/engine/speculate.h"
#include "memoir/model/load.h"
#include "memoir/prefix/store.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::size_t kLots = std::size_t{1} << 30;
constexpr prefix::PolicyOptions kPolicy = {.share = 1e9, .min_spacing = 48, .rowless_spacing = 48, .close = 6};

// What is promised token by token is what the rules say that look at one prompt alone.
constexpr prefix::PolicyOptions without_habit() {
  prefix::PolicyOptions policy = kPolicy;
  policy.learns_tail = false;
  return policy;
}

Tokens first_of(const Tokens& tokens, int n) {
  return {tokens.begin(), tokens.begin() + n};
}

int n_shared(const Tokens& a, const Tokens& b) {
  return static_cast<int>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// A request on its way.
struct Job {
  Tokens prompt;
  int n_answer = 1;  // tokens
  std::vector<int> turn_ends;
  std::optional<int> cancel_at;  // fed tokens
  bool fails = false;            // where it would be cancelled

  SequenceId id = 0;
  Tokens tokens;  // prompt and answer
  int restored = 0;
  std::map<int, std::vector<float>> rows;  // logits, by the tokens before them
};

/// What the policy promises, by looking through all that was ever stored.
class Promise {
 public:
  Promise(prefix::Needs needs, int spacing) : needs_(needs), spacing_(spacing) {}

  int restored(const Tokens& prompt) const {
    const int most = static_cast<int>(prompt.size()) - 1;
    if (!needs_.checkpoint) return std::min(most, matched(prompt));
    for (int n = most; n > 0; --n) {
      if (checkpoints_.contains(first_of(prompt, n))) return n;
    }
    return 0;
  }

  /// It has run alone, and fed so many of its tokens.
  void ran(const Job& job, int n_fed) {
    const int n_prompt = static_cast<int>(job.prompt.size());
    const int n_matched = matched(job.prompt);
    known_.insert(first_of(job.tokens, needs_.checkpoint ? std::min(n_fed, n_prompt) : n_fed));
    if (!needs_.checkpoint) return;
    std::vector<int> turn_ends = job.turn_ends;
    std::sort(turn_ends.begin(), turn_ends.end());
    auto plan = prefix::plan_prompt({n_prompt, job.restored, n_matched, turn_ends, {1, 1}}, kPolicy);
    int last = plan.empty() ? job.restored : plan.back().offset;
    for (const auto& one : prefix::plan_answer(last, n_prompt, n_fed, spacing_)) plan.push_back(one);
    last = job.restored;
    for (const auto& one : plan) {
      if (one.offset > n_fed) break;
      last = one.offset;
      add_checkpoint(first_of(job.tokens, last));
    }
    if (prefix::keeps_answer_end(last, n_fed, kPolicy)) add_checkpoint(first_of(job.tokens, n_fed));
  }

 private:
  int matched(const Tokens& prompt) const {
    int n = 0;
    for (const Tokens& known : known_) n = std::max(n, n_shared(prompt, known));
    return n;
  }
  void add_checkpoint(const Tokens& tokens) {
    checkpoints_.insert(tokens);
    known_.insert(tokens);
  }

  prefix::Needs needs_;
  int spacing_;
  std::set<Tokens> known_;
  std::set<Tokens> checkpoints_;
};

class PrefixSessions : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    seed_ = std::random_device{}();
    random_.seed(seed_);
    reference_ = model::load_model(test::data(GetParam())).model;
    n_vocab_ = reference_->config().vocab_size;
    cache::ModelCache cache = reference_->make_cache();
    reference_->forward(Tokens{1}, cache, model::LogitRows::kLast);
    size_ = prefix::state_size(cache);
    const prefix::CacheParts parts = prefix::parts_of(cache);
    needs_ = parts.needs();
    has_slack_ = std::none_of(parts.others.begin(), parts.others.end(), [](const cache::LayerCache* part) {
      return dynamic_cast<const cache::RecurrentCache*>(part) != nullptr;
    });
  }

  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  Tokens some_tokens(int n) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(number(0, n_vocab_ - 1));
    return tokens;
  }

  void make_runner(std::size_t max_bytes, const prefix::PolicyOptions& policy = kPolicy) {
    runner_ = std::make_unique<ModelRunner>(model::load_model(test::data(GetParam())).model,
                                            prefix::StoreOptions{.max_bytes = max_bytes, .policy = policy});
  }

  void create(Job& job) {
    job.restored = runner_->create({job.id, job.tokens, static_cast<int>(job.prompt.size()), job.turn_ends});
  }

  bool is_done(const Job& job) const {
    const int n_fed = runner_->offset(job.id);
    if (job.cancel_at && n_fed >= *job.cancel_at) return true;
    return static_cast<int>(job.tokens.size()) == static_cast<int>(job.prompt.size()) + job.n_answer &&
           n_fed == static_cast<int>(job.tokens.size()) - 1;
  }

  /// One step of these jobs; with a token that breaks it, if so wanted.
  void step(const std::vector<Job*>& jobs, bool breaks) {
    std::vector<Tokens> tokens;
    for (const Job* const job : jobs) {
      const int n_fed = runner_->offset(job->id);
      const int n_pending = static_cast<int>(job->tokens.size()) - n_fed;
      const int n = std::min(n_pending, number(1, 70));
      tokens.emplace_back(job->tokens.begin() + n_fed, job->tokens.begin() + n_fed + n);
    }
    if (breaks) tokens.back().push_back(n_vocab_);
    std::vector<StepRunner::Slice> slices;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const int end = runner_->offset(jobs[i]->id) + static_cast<int>(tokens[i].size());
      slices.push_back({jobs[i]->id, tokens[i], end >= static_cast<int>(jobs[i]->tokens.size())});
    }
    if (breaks) {
      std::vector<int> offsets;
      for (const Job* const job : jobs) offsets.push_back(runner_->offset(job->id));
      EXPECT_THROW(runner_->run(slices), std::invalid_argument);
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (runner_->offset(jobs[i]->id) == offsets[i]) continue;
        runner_->drop(jobs[i]->id);
        create(*jobs[i]);
      }
      return;
    }
    const auto rows = runner_->run(slices);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (!slices[i].wants_logits) continue;
      Job& job = *jobs[i];
      job.rows[static_cast<int>(job.tokens.size())].assign(rows[i].begin(), rows[i].end());
      job.tokens.push_back(static_cast<TokenId>(std::max_element(rows[i].begin(), rows[i].end()) - rows[i].begin()));
    }
  }

  /// Side by side, to their ends. A job's tokens fed are returned.
  std::vector<int> run(std::vector<Job>& jobs, bool is_rough) {
    for (Job& job : jobs) {
      job.id = next_id_++;
      job.tokens = job.prompt;
    }
    std::vector<Job*> running;
    std::vector<int> n_fed(jobs.size());
    std::size_t n_begun = 0;
    while (n_begun < jobs.size() || !running.empty()) {
      if (n_begun < jobs.size() && (running.empty() || number(0, 2) == 0)) {
        create(jobs[n_begun]);
        running.push_back(&jobs[n_begun++]);
      }
      std::vector<Job*> chosen;
      for (Job* const job : running) {
        if (!is_done(*job) && number(0, 3) > 0) chosen.push_back(job);
      }
      if (!chosen.empty()) step(chosen, is_rough && number(0, 15) == 0);
      for (Job* const job : running) {
        const int n_left = static_cast<int>(job->tokens.size()) - runner_->offset(job->id);
        if (is_rough && !is_done(*job) && n_left > 1 && number(0, 2) == 0) {
          runner_->catch_up({job->id, job->tokens, static_cast<int>(job->prompt.size()), job->turn_ends}, 5);
        }
        if (is_rough && !is_done(*job) && number(0, 30) == 0) {
          runner_->retire(job->id);  // paged out
          create(*job);
        }
      }
      std::erase_if(running, [&](Job* job) {
        if (!is_done(*job)) return false;
        n_fed[static_cast<std::size_t>(job - jobs.data())] = runner_->offset(job->id);
        job->fails ? runner_->drop(job->id) : runner_->retire(job->id);
        return true;
      });
      const prefix::Store& store = runner_->store();
      EXPECT_LE(store.size_bytes(), store.max_bytes());
    }
    EXPECT_EQ(runner_->store().trie().check(), "");
    for (const Job& job : jobs) expect_exact(job);
    return n_fed;
  }

  void expect_exact(const Job& job) const {
    if (job.rows.empty()) return;
    const Tokens fed = first_of(job.tokens, job.rows.rbegin()->first);
    cache::ModelCache cache = reference_->make_cache();
    mx::array logits = mx::contiguous(mx::astype(reference_->forward(fed, cache, model::LogitRows::kAll), mx::float32));
    mx::eval(logits);
    for (const auto& [n, row] : job.rows) {
      ASSERT_EQ(row.size(), static_cast<std::size_t>(n_vocab_));
      const float* const expected = logits.data<float>() + (n - 1) * n_vocab_;
      ASSERT_EQ(std::memcmp(row.data(), expected, row.size() * sizeof(float)), 0)
          << "the logits behind " << n << " tokens, of which " << job.restored << " were restored";
    }
  }

  // ---- Clients

  struct Chat {
    Tokens tokens;
    std::vector<int> turn_ends;
    std::size_t n_question = 0;  // of the last prompt
  };

  /// What a client asks next in a chat.
  Job next_job(Chat& chat) {
    const int what = chat.n_question == 0 || chat.tokens.size() > 300 ? 0 : number(0, 9);
    if (chat.tokens.size() > 300) chat = Chat{system_, {}, 0};
    Tokens& tokens = chat.tokens;
    if (what == 1) {
      tokens.resize(chat.n_question);  // regenerate
    } else {
      if (what == 2) {  // edit
        tokens.resize(static_cast<std::size_t>(number(1, static_cast<int>(tokens.size()))));
      } else if (what == 3) {  // strip what the answer begins with
        const auto answer = tokens.begin() + static_cast<std::ptrdiff_t>(chat.n_question);
        tokens.erase(answer, answer + (tokens.end() - answer) / 2);
      }
      std::erase_if(chat.turn_ends, [&](int end) { return end > static_cast<int>(tokens.size()); });
      if (!tokens.empty()) chat.turn_ends.push_back(static_cast<int>(tokens.size()));
      const Tokens question = some_tokens(number(1, what == 4 ? 90 : 30));
      tokens.insert(tokens.end(), question.begin(), question.end());
      chat.n_question = tokens.size();
    }
    Job job;
    job.prompt = tokens;
    job.turn_ends = chat.turn_ends;
    job.n_answer = number(0, 4) == 0 ? number(20, 60) : number(1, 8);
    if (number(0, 6) == 0) job.cancel_at = number(0, static_cast<int>(tokens.size()) + job.n_answer);
    job.fails = number(0, 20) == 0;
    return job;
  }

  unsigned seed_ = 0;
  int n_vocab_ = 0;
  std::mt19937 random_;
  std::unique_ptr<model::Model> reference_;
  std::unique_ptr<ModelRunner> runner_;
  prefix::StateSize size_;
  prefix::Needs needs_;
  bool has_slack_ = false;
  SequenceId next_id_ = 1;
  Tokens system_;  // what chats begin with
};

TEST_P(PrefixSessions, AreExactAndCacheWhatThePolicyPromises) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  make_runner(kLots, without_habit());
  Promise promise(needs_, runner_->store().spacing());
  system_ = some_tokens(60);
  std::vector<Chat> chats(3, Chat{system_, {}, 0});
  int n_cached = 0;
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    Chat& chat = chats[static_cast<std::size_t>(number(0, 2))];
    std::vector<Job> jobs = {next_job(chat)};
    jobs[0].fails = false;
    const int promised = promise.restored(jobs[0].prompt);
    const int n_fed = run(jobs, false)[0];
    if (has_slack_ && needs_.checkpoint) {
      EXPECT_GE(jobs[0].restored, promised);  // a ring can go back a little from a checkpoint
    } else {
      EXPECT_EQ(jobs[0].restored, promised);
    }
    promise.ran(jobs[0], n_fed);
    n_cached += jobs[0].restored;
    chat.tokens = jobs[0].tokens;
  }
  EXPECT_GT(n_cached, 1000);
}

TEST_P(PrefixSessions, AreExactSideBySideInTooLittleMemory) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  make_runner(400 * (size_.row_bytes + 8) + 5 * size_.checkpoint_bytes + 10'000);
  system_ = some_tokens(60);
  std::vector<Chat> chats(6, Chat{system_, {}, 0});
  for (int i = 0; i < 25 && !HasFailure(); ++i) {
    std::shuffle(chats.begin(), chats.end(), random_);
    std::vector<Job> jobs;
    const auto n_jobs = static_cast<std::size_t>(number(1, 4));
    for (std::size_t k = 0; k < n_jobs; ++k) jobs.push_back(next_job(chats[k]));
    run(jobs, true);
    for (std::size_t k = 0; k < n_jobs; ++k) chats[k].tokens = jobs[k].tokens;
  }
  EXPECT_GT(runner_->store().report()["evicted"]["bytes"], 0);
  EXPECT_EQ(runner_->store().counters().n_failed_restores, 0U);
  EXPECT_EQ(runner_->store().counters().n_failed_inserts, 0U);
}

// A session with a store, as `memoir chat` has one; sometimes with drafts.
TEST_P(PrefixSessions, ASessionGoesBackToWhatItHasLeft) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto store = make_prefix_store(*reference_, {.max_bytes = kLots, .policy = kPolicy});
  auto session = std::make_unique<Session>(*reference_, cache::CacheOptions{}, store.get());
  NgramDrafter drafter;
  system_ = some_tokens(60);
  std::vector<Chat> chats(3, Chat{system_, {}, 0});
  int n_back = 0;  // tokens that no live cache had
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    Chat& chat = chats[static_cast<std::size_t>(number(0, 2))];
    const Job job = next_job(chat);
    GenerateOptions options;
    options.max_tokens = job.n_answer;
    options.turn_ends = job.turn_ends;
    options.prefill_chunk = number(20, 200);
    if (number(0, 2) == 0) options.drafter = &drafter;
    if (number(0, 3) == 0) {
      options.should_cancel = [n_left = number(0, 20)]() mutable { return n_left-- == 0; };
    }
    Session alone(*reference_);
    GenerateOptions plain;
    plain.max_tokens = job.n_answer;
    const Tokens expected = generate(alone, job.prompt, plain, nullptr).tokens;
    const int n_live = n_shared(session->tokens(), job.prompt);
    const Completion completion = generate(*session, job.prompt, options, nullptr);
    const Tokens& tokens = completion.tokens;
    EXPECT_TRUE(tokens.size() == expected.size() || options.should_cancel);
    EXPECT_EQ(tokens, first_of(expected, static_cast<int>(tokens.size())));
    n_back += std::max(0, completion.cached_tokens - n_live);
    EXPECT_EQ(store->trie().check(), "");
    chat.tokens = job.prompt;
    chat.tokens.insert(chat.tokens.end(), tokens.begin(), tokens.end());
    if (number(0, 7) == 0) session = std::make_unique<Session>(*reference_, cache::CacheOptions{}, store.get());
  }
  EXPECT_GT(n_back, 50);
  EXPECT_EQ(store->counters().n_failed_inserts, 0U);
  EXPECT_EQ(store->counters().n_failed_restores, 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixSessions,
                         testing::Values("llama", "mistral", "gemma3", "llama4", "mamba2", "lfm2", "falcon_h1",
                                         "qwen3_next", "gemma4", "qwen3_moe", "deepseek_v3"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace memoir::engine
