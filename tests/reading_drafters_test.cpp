// Drafters that read the model: with them the tokens are those of plain decoding, to the last, and what they keep stays
// level with the model through accepted and rejected drafts, prefix hits, cancelled runs and restored caches. Level
// means: they propose what a new drafter proposes that is told of the whole text at once.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memoir/engine/assistant_drafter.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/mtp_drafter.h"
#include "memoir/engine/prefix_store.h"
#include "memoir/engine/session.h"
#include "memoir/model/load.h"
#include "memoir/prefix/directory_tier.h"
#include "tests/golden.h"
#include "tests/model_files.h"
#include "tests/mtp_files.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::engine {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kLength = 200;
constexpr std::size_t kLots = std::size_t{1} << 30;

struct Setup {
  std::string name;
  bool has_head;            // the model carries one; else the target is a folder of tests/data
  std::string prompt_file;  // and the tensor in it
  std::string prompt_name;
  std::string target;
  std::function<std::unique_ptr<Drafter>(const model::Model& target)> make;
};

std::unique_ptr<Drafter> assistant(const std::string& folder, const model::Model& target) {
  return std::make_unique<AssistantDrafter>(model::load_gemma4_assistant(test::data(folder) / "assistant"), target);
}

std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (const std::string name : {"gemma4_assistant", "gemma4_assistant_ordered"}) {
    all.push_back({name, false, name, "sequence0.prompt", name + "/target",
                   [name](const model::Model& target) { return assistant(name, target); }});
  }
  for (const std::string name : {"qwen3_5", "qwen3_next"}) {
    all.push_back({name + "_mtp", true, name, "prompt", name, nullptr});
  }
  return all;
}

// What another drafter does, compared at each proposal with a new drafter that is told of the whole text at once.
class Compared final : public Drafter {
 public:
  using Make = std::function<std::unique_ptr<Drafter>()>;
  Compared(const model::Model& model, Make make) : model_(model), make_(std::move(make)), drafter_(make_()) {}

  Tokens propose(std::span<const TokenId> tokens, int n_max) override {
    Tokens drafts = drafter_->propose(tokens, n_max);
    const std::unique_ptr<Drafter> fresh = make_();
    Session session(model_);
    const auto before = tokens.first(tokens.size() - 1);
    const model::Pass pass = session.forward_with_hidden(before, model::LogitRows::kLast, model::LogitRows::kAll);
    const int n_told = fresh->reads() == Reads::kAllTokens ? static_cast<int>(before.size()) : 1;
    const int n_rows = pass.hidden.shape(1);
    fresh->taken_in({before, 0, mx::slice(pass.hidden, {0, n_rows - n_told, 0}, pass.hidden.shape()), session.cache()});
    EXPECT_EQ(drafts, fresh->propose(tokens, n_max)) << "behind " << tokens.size() << " tokens";
    EXPECT_FALSE(drafts.empty());
    ++n_compared_;
    return drafts;
  }
  Reads reads() const override { return drafter_->reads(); }
  void taken_in(const TakenIn& taken) override { drafter_->taken_in(taken); }
  int lookahead() const override { return drafter_->lookahead(); }
  std::shared_ptr<prefix::Companion> companion() override { return drafter_->companion(); }

  int n_compared() const { return n_compared_; }

 private:
  const model::Model& model_;
  Make make_;
  std::unique_ptr<Drafter> drafter_;
  int n_compared_ = 0;
};

class ReadingDrafter : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    mx::set_default_device(mx::Device::cpu);
    path_ = GetParam().has_head ? test::model_with_head(folder_.path() / "model", GetParam().target)
                                : test::data(GetParam().target);
    loaded_ = model::load_model(path_);
    prompt_ = test::tokens_of(test::expected_of(GetParam().prompt_file).at(GetParam().prompt_name));
  }

  const model::Model& model() const { return *loaded_.model; }
  std::unique_ptr<Drafter> make() const {
    if (!GetParam().has_head) return GetParam().make(model());
    return std::make_unique<MtpDrafter>(model::load_mtp_head(path_), model());
  }
  Compared compared() const {
    return Compared(model(), [this] { return make(); });
  }

  GenerateOptions options(int max_tokens = kLength) const {
    GenerateOptions result;
    result.max_tokens = max_tokens;
    return result;
  }

  GenerateOptions with(Drafter& drafter, int max_drafts, GenerateOptions result) const {
    result.drafter = &drafter;
    result.max_drafts = max_drafts;
    result.adapts_drafts = false;
    return result;
  }

  Tokens plain(const Tokens& prompt, const GenerateOptions& options) const {
    Session session(model());
    return generate(session, prompt, options, nullptr).tokens;
  }

  // The drafter's companion too, where it has one.
  std::optional<prefix::CompanionCaches> companion() const {
    if (!GetParam().has_head) return std::nullopt;
    return companion_caches(model::load_mtp_head(path_), model());
  }
  std::unique_ptr<prefix::Store> store(const std::optional<prefix::DirectoryTierOptions>& directory = {},
                                       std::size_t n_bytes = kLots) const {
    prefix::StoreOptions options;
    options.max_bytes = n_bytes;
    options.policy = {.share = 1e9, .min_spacing = 24, .rowless_spacing = 24, .close = 6};
    return make_prefix_store(model(), options, {}, directory, companion());
  }

  // Every second token another one, so that texts differ from there on.
  Tokens changed(Tokens tokens, std::size_t from) const {
    for (std::size_t i = from; i < tokens.size(); i += 2) tokens[i] = (tokens[i] + 1) % model().config().vocab_size;
    return tokens;
  }

  Tokens joined(Tokens a, const Tokens& b) const {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  test::TemporaryFolder folder_;
  test::fs::path path_;
  model::LoadedModel loaded_;
  Tokens prompt_;
};
INSTANTIATE_TEST_SUITE_P(Drafters, ReadingDrafter, testing::ValuesIn(setups()),
                         [](const auto& param) { return param.param.name; });

TEST_P(ReadingDrafter, GreedyTokensAreThoseOfPlainDecoding) {
  const Tokens expected = plain(prompt_, options());
  for (const int n : {1, 4, 15}) {
    for (const int chunk : {5, 512}) {
      if (n != 4 && chunk == 5) continue;
      const auto drafter = make();
      Session session(model());
      GenerateOptions drafting = with(*drafter, n, options());
      drafting.prefill_chunk = chunk;
      const Completion completion = generate(session, prompt_, drafting, nullptr);
      ASSERT_EQ(completion.tokens, expected) << n << " drafts";
      EXPECT_EQ(session.tokens(), joined(prompt_, Tokens(expected.begin(), expected.end() - 1)));
      EXPECT_EQ(session.cache().offset(), static_cast<int>(session.tokens().size()));
      EXPECT_GT(completion.drafts.n_accepted, 0);
      EXPECT_LT(completion.drafts.n_accepted, completion.drafts.n_drafted);
    }
  }
}

TEST_P(ReadingDrafter, SeededTokensAreThoseOfPlainDecoding) {
  GenerateOptions sampled = options();
  sampled.sampler.temperature = 0.7;
  sampled.sampler.top_p = 0.95;
  sampled.sampler.repetition_penalty = 1.1;
  for (const std::uint64_t seed : {1U, 42U}) {
    sampled.sampler.seed = seed;
    const Tokens expected = plain(prompt_, sampled);
    for (const int n : {2, 8}) {
      const auto drafter = make();
      Session session(model());
      ASSERT_EQ(generate(session, prompt_, with(*drafter, n, sampled), nullptr).tokens, expected) << n;
    }
  }
}

TEST_P(ReadingDrafter, StaysLevelWithTheModelThroughAcceptedAndRejectedDrafts) {
  for (const int n : {1, 3, 8}) {
    Compared drafter = compared();
    Session session(model());
    GenerateOptions drafting = with(drafter, n, options(40));
    drafting.prefill_chunk = 7;
    generate(session, prompt_, drafting, nullptr);
    EXPECT_GT(drafter.n_compared(), 5);
  }
}

TEST_P(ReadingDrafter, StaysLevelThroughAPrefixHit) {
  Compared drafter = compared();
  Session session(model());
  const GenerateOptions drafting = with(drafter, 4, options(24));
  const Completion first = generate(session, prompt_, drafting, nullptr);
  EXPECT_EQ(first.tokens, plain(prompt_, options(24)));
  // Goes on from the text; leaves it in the middle of the answer, of the prompt, and at its first token; the same
  // again.
  const Tokens text = joined(prompt_, first.tokens);
  std::vector<Tokens> prompts = {joined(text, {5, 9, 5})};
  for (const std::size_t n_shared : {prompt_.size() + 3, prompt_.size() - 4, std::size_t{0}}) {
    Tokens other(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n_shared));
    other.push_back((text[n_shared] + 1) % model().config().vocab_size);
    other.push_back(11);
    prompts.push_back(other);
    prompts.push_back(other);
  }
  for (const Tokens& prompt : prompts) {
    ASSERT_EQ(generate(session, prompt, drafting, nullptr).tokens, plain(prompt, options(24)));
  }
}

// What a session has left is in the prefix cache, and what the drafter kept of it.
TEST_P(ReadingDrafter, StaysLevelThroughThePrefixCache) {
  const auto store = this->store();
  Compared drafter = compared();
  Session session(model(), {}, store.get());
  const Tokens first = joined(prompt_, plain(prompt_, options(60)));
  const Tokens second = changed(first, first.size() / 3);
  int n_back = 0;  // tokens that the session had not itself
  for (const Tokens& text : {first, second, first, changed(second, second.size() - 8), second, first}) {
    GenerateOptions drafting = with(drafter, 4, options(30));
    drafting.prefill_chunk = 33;
    const auto n_live = std::mismatch(session.tokens().begin(), session.tokens().end(), text.begin(), text.end());
    const Completion completion = generate(session, text, drafting, nullptr);
    ASSERT_EQ(completion.tokens, plain(text, options(30)));
    n_back += std::max(0, completion.cached_tokens - static_cast<int>(n_live.second - text.begin()));
  }
  EXPECT_GT(n_back, 50);
  EXPECT_EQ(store->counters().n_failed_restores, 0U);
  EXPECT_EQ(store->counters().n_failed_inserts, 0U);
  EXPECT_EQ(store->trie().check(), "");
}

// A process that ended left its blocks in a folder: another drafter, session and store go on from them.
TEST_P(ReadingDrafter, StaysLevelThroughAPrefixCacheInAFolder) {
  prefix::DirectoryTierOptions directory;
  directory.path = folder_.path() / "cache";
  directory.model = "a model";
  fs::create_directories(directory.path);
  Tokens text = prompt_;
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    const auto store = this->store(directory);
    Compared drafter = compared();
    Session session(model(), {}, store.get());
    const Completion completion = generate(session, text, with(drafter, 4, options(100)), nullptr);
    ASSERT_EQ(completion.tokens, plain(text, options(100)));
    EXPECT_GT(drafter.n_compared(), 5);
    if (i > 0) {
      EXPECT_GT(completion.cached_tokens, static_cast<int>(text.size()) / 2);
    }
    text = joined(joined(text, completion.tokens), {3, 5, 7});
  }
}

// What a drafter has not followed from the beginning is not kept, and what is kept without room goes.
TEST_P(ReadingDrafter, TokensAreThoseOfPlainDecodingInLittleRoomForWhatIsKept) {
  const auto store = this->store({}, 60'000);
  const Tokens first = joined(prompt_, plain(prompt_, options(60)));
  Session session(model(), {}, store.get());
  auto drafter = make();
  for (std::size_t i = 0; i < 12; ++i) {
    const Tokens text = changed(first, first.size() * (i % 5) / 5);
    if (i % 4 == 3) drafter = make();
    GenerateOptions drafting = with(*drafter, 4, options(20));
    int n_chunks = 0;
    if (i % 3 == 1) drafting.should_cancel = [&] { return ++n_chunks > 6; };
    const Tokens tokens = generate(session, text, drafting, nullptr).tokens;
    const Tokens expected = plain(text, options(20));
    ASSERT_EQ(tokens, Tokens(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(tokens.size())));
  }
  EXPECT_LE(store->size_bytes(), store->max_bytes());
  EXPECT_EQ(store->trie().check(), "");
}

TEST_P(ReadingDrafter, StaysLevelWhereARunIsLeftInTheMiddleOfARound) {
  for (const int n_taken : {1, 3, 4, 6}) {
    for (const bool is_cancelled : {false, true}) {
      Compared drafter = compared();
      Session session(model());
      bool is_over = false;
      GenerateOptions leaving = with(drafter, 4, options(40));
      leaving.should_cancel = [&] { return is_over; };
      Tokens text = prompt_;
      {
        Generation generation(session, leaving);
        generation.start(prompt_);
        for (int i = 0; i < n_taken; ++i) text.push_back(generation.next().value());
        is_over = is_cancelled;
        if (is_cancelled) {
          ASSERT_EQ(generation.next(), std::nullopt);
        }
      }
      EXPECT_EQ(session.tokens(), text);
      text.push_back(7);
      ASSERT_EQ(generate(session, text, with(drafter, 4, options(20)), nullptr).tokens, plain(text, options(20)));
    }
  }
}

// By the drafter of the run before, by a new one, and with the prompt cancelled half way.
TEST_P(ReadingDrafter, TokensAreThoseOfPlainDecodingBehindARestoredCache) {
  const Tokens answer = plain(prompt_, options(30));
  const Tokens text = joined(joined(prompt_, answer), {3});
  const Tokens expected = plain(text, options(40));
  const auto old = make();
  Session before(model());
  generate(before, prompt_, with(*old, 4, options(30)), nullptr);
  const auto fresh = make();
  for (Drafter* drafter : {old.get(), fresh.get()}) {
    Session session(model());
    session.adopt(before.cache().copy(), before.tokens());
    ASSERT_EQ(generate(session, text, with(*drafter, 4, options(40)), nullptr).tokens, expected);
  }
  const auto cancelled = make();
  Session session(model());
  GenerateOptions leaving = with(*cancelled, 4, options(40));
  leaving.prefill_chunk = 6;
  int n_chunks = 0;
  leaving.should_cancel = [&] { return ++n_chunks > 2; };
  EXPECT_TRUE(generate(session, text, leaving, nullptr).tokens.empty());
  ASSERT_EQ(generate(session, text, with(*cancelled, 4, options(40)), nullptr).tokens, expected);
}

TEST_P(ReadingDrafter, ProposesNothingForATextThatItWasNotToldOf) {
  const auto drafter = make();
  EXPECT_TRUE(drafter->propose(prompt_, 4).empty());
  Session session(model());
  generate(session, prompt_, with(*drafter, 4, options(5)), nullptr);
  EXPECT_TRUE(drafter->propose(prompt_, 4).empty());
  EXPECT_TRUE(drafter->propose({}, 4).empty());
}

TEST_P(ReadingDrafter, TheDraftLengthAdaptsOverRuns) {
  const auto drafter = make();
  const Tokens expected = plain(prompt_, options());
  Session session(model());
  GenerateOptions adapting = with(*drafter, 8, options());
  adapting.adapts_drafts = true;
  ASSERT_EQ(generate(session, prompt_, adapting, nullptr).tokens, expected);
  ASSERT_TRUE(drafter->length().seconds(0).has_value());
  ASSERT_TRUE(drafter->length().seconds(1).has_value());
}

}  // namespace
}  // namespace memoir::engine
