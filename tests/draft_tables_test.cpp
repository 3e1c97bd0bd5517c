// Rounds of drafting, forward pass by forward pass: the tables of the runner that memoir's speculation follows (its
// mtp_test.go), on a model that knows one token of each token what follows. Vocabulary 8, the token that follows is hot
// (30), token 7 ends a text; four drafts a round unless said.
//
// Rows of those tables elsewhere: heads with caches of their own (mtp_tables_test.cpp; CommittedRunBatchesPastFlushCap
// is mtp_head_test.cpp: WithoutDraftsSlotsAreWrittenManyAtATime), drafters that read the model
// (reading_drafters_test.cpp), a run that is cancelled (speculation_test.cpp: ARunThatIsLeftKeepsWhatWasHandedOut).
// Media and positions by layout are not supported.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "memoir/engine/draft_model.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"
#include "tests/chain_model.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using test::Chain;
using test::Forward;
using Tokens = std::vector<TokenId>;

constexpr int kVocab = 8;
constexpr TokenId kEnd = 7;

// Says what it was told to say behind each token.
class Scripted final : public Drafter {
 public:
  explicit Scripted(Tokens next) : next_(std::move(next)) {}
  Tokens propose(std::span<const TokenId> tokens, int n_max) override {
    Tokens drafts;
    for (TokenId at = tokens.back(); drafts.size() < static_cast<std::size_t>(n_max);) {
      drafts.push_back(at = next_[static_cast<std::size_t>(at)]);
    }
    return drafts;
  }

 private:
  Tokens next_;
};

// Of a chain 1 > 2 > ... > last > end; behind others 0.
Tokens up_to(TokenId last) {
  Tokens next(kVocab, 0);
  for (TokenId i = 1; i < last; ++i) next[static_cast<std::size_t>(i)] = i + 1;
  next[static_cast<std::size_t>(last)] = kEnd;
  return next;
}

class DraftTable : public testing::Test {
 protected:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }

  static GenerateOptions options(Drafter* drafter, int max_tokens = 20) {
    GenerateOptions result;
    result.max_tokens = max_tokens;
    result.stop_tokens = {kEnd};
    result.drafter = drafter;
    result.max_drafts = 4;
    result.adapts_drafts = false;
    return result;
  }

  // Rows of the session's cache, which hold the tokens.
  static Tokens rows_of(const Session& session) {
    const mx::array rows = mx::contiguous(session.cache().attention(0).view()->key_rows());
    mx::eval(rows);
    return {rows.data<float>(), rows.data<float>() + rows.size()};
  }
};

// AcceptMTPDraftsGreedyAcceptAll: 3 of 3, and one more behind them, which is not written.
TEST_F(DraftTable, AcceptAll) {
  const Chain model({1, 2, 3, 4, 5, 0, 0, 0});
  Scripted drafter({1, 2, 3, 4, 0, 0, 0, 0});
  Session session(model);
  GenerateOptions three = options(&drafter, 5);
  three.max_drafts = 3;
  const Completion completion = generate(session, Tokens{0}, three, nullptr);
  EXPECT_EQ(completion.tokens, (Tokens{1, 2, 3, 4, 5}));
  EXPECT_EQ(completion.drafts.n_accepted, 3);
  EXPECT_EQ(completion.drafts.n_drafted, 3);
  EXPECT_EQ(rows_of(session), (Tokens{0, 1, 2, 3, 4}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {0}}, {1, {1, 2, 3, 4}}}));
}

// AcceptMTPDraftsGreedyMismatch: 1 of 2.
TEST_F(DraftTable, Mismatch) {
  const Chain model({1, 2, 3, 4, 5, 0, 0, 0});
  Scripted drafter({1, 2, 6, 4, 0, 0, 0, 0});
  Session session(model);
  GenerateOptions two = options(&drafter, 4);
  two.max_drafts = 2;
  const Completion completion = generate(session, Tokens{0}, two, nullptr);
  EXPECT_EQ(completion.tokens, (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(completion.drafts.n_accepted, 1);
  EXPECT_EQ(completion.drafts.n_drafted, 2);
  // Nothing is drafted behind the last token asked for.
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {0}}, {1, {1, 2, 6}}, {3, {3}}}));
  EXPECT_EQ(rows_of(session), (Tokens{0, 1, 2, 3}));
}

// AcceptMTPDraftsGreedyEOS: the end among the drafts ends the text there; nothing behind it is kept.
TEST_F(DraftTable, EndAmongTheDrafts) {
  const Chain model({1, 2, kEnd, 0, 0, 0, 0, 0});
  Scripted drafter({1, 2, kEnd, 0, 0, 0, 0, 0});
  Session session(model);
  const Completion completion = generate(session, Tokens{0}, options(&drafter), nullptr);
  EXPECT_EQ(completion.tokens, (Tokens{1, 2}));
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(rows_of(session), (Tokens{0, 1, 2}));
}

// RunMTPDecodeGreedy, RunMTPDecodeSampled and RunMTPDecodeWarmDrafter: all of a text in one pass of five.
TEST_F(DraftTable, RunsGreedyAndSampled) {
  for (const double temperature : {0.0, 1.0}) {
    const Chain model(up_to(4));
    Scripted drafter(up_to(4));
    Session session(model);
    GenerateOptions sampled = options(&drafter);
    sampled.sampler.temperature = temperature;
    sampled.sampler.seed = 42;
    const Completion completion = generate(session, Tokens{1}, sampled, nullptr);
    EXPECT_EQ(completion.tokens, (Tokens{2, 3, 4}));
    EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {1}}, {1, {2, 3, 4, kEnd, 0}}}));
    EXPECT_EQ(rows_of(session), (Tokens{1, 2, 3, 4}));
  }
}

// RunMTPDecodeEOSCutLeavesPositionsUnjudged: nothing is learned of drafts behind the end of the text.
TEST_F(DraftTable, PositionsBehindTheEndAreNotJudged) {
  const Chain model(up_to(4));
  Scripted drafter(up_to(4));
  for (int i = 0; i < 20; ++i) {
    Session session(model);
    EXPECT_EQ(generate(session, Tokens{1}, options(&drafter), nullptr).tokens, (Tokens{2, 3, 4}));
  }
  EXPECT_EQ(drafter.length().frontier(), 2);  // 3 and 4 were drafted behind 2, then the end
}

// DecodePlain.
TEST_F(DraftTable, PlainDecodingIsOneTokenAPass) {
  const Chain model(up_to(4));
  Session session(model);
  EXPECT_EQ(generate(session, Tokens{1}, options(nullptr), nullptr).tokens, (Tokens{2, 3, 4}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {1}}, {1, {2}}, {2, {3}}, {3, {4}}}));
}

// DecodeKVDraft: a draft model's own cache takes in what it drafts one by one, and keeps what was right.
TEST_F(DraftTable, ADraftModelKeepsWhatWasRight) {
  const Chain model(up_to(6));
  const Chain small(up_to(6));
  DraftModel drafter(small, kVocab);
  Session session(model);
  GenerateOptions two = options(&drafter);
  two.max_drafts = 2;
  EXPECT_EQ(generate(session, Tokens{1}, two, nullptr).tokens, (Tokens{2, 3, 4, 5, 6}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {1}}, {1, {2, 3, 4}}, {4, {5, 6, kEnd}}}));
  // 1 and 2 are the text; 3 is its own, and right; 4 came of it and was not taken in.
  EXPECT_EQ(small.take_forwards(), (std::vector<Forward>{{0, {1, 2}}, {2, {3}}, {3, {4, 5}}, {5, {6}}}));
  EXPECT_EQ(rows_of(session), (Tokens{1, 2, 3, 4, 5, 6}));
}

// DecodeKVDraftRejectionRebuildsFromTarget: the draft model says 6 after 3.
TEST_F(DraftTable, ADraftModelGoesBackWhereItWasWrong) {
  const Chain model(up_to(5));
  Tokens wrong = up_to(5);
  wrong[3] = 6;
  const Chain small(wrong);
  DraftModel drafter(small, kVocab);
  Session session(model);
  const Completion completion = generate(session, Tokens{1}, options(&drafter), nullptr);
  EXPECT_EQ(completion.tokens, (Tokens{2, 3, 4, 5}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {1}}, {1, {2, 3, 6, 0, 0}}, {3, {4, 5, kEnd, 0, 0}}}));
  EXPECT_EQ(
      small.take_forwards(),
      (std::vector<Forward>{{0, {1, 2}}, {2, {3}}, {3, {6}}, {4, {0}}, {3, {4}}, {4, {5}}, {5, {kEnd}}, {6, {0}}}));
  EXPECT_EQ(rows_of(session), (Tokens{1, 2, 3, 4, 5}));
}

// DecodeParkedDraftResume: a text asked for a token at a time, then further: no token is computed twice.
TEST_F(DraftTable, ATextThatIsGoneOnWithTakesInEachTokenOnce) {
  const Chain model(up_to(6));
  Scripted drafter(up_to(6));
  Session session(model);
  EXPECT_EQ(generate(session, Tokens{1}, options(&drafter, 1), nullptr).tokens, (Tokens{2}));
  EXPECT_EQ(generate(session, Tokens{1, 2}, options(&drafter, 1), nullptr).tokens, (Tokens{3}));
  GenerateOptions two = options(&drafter);
  two.max_drafts = 2;
  EXPECT_EQ(generate(session, Tokens{1, 2, 3}, two, nullptr).tokens, (Tokens{4, 5, 6}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {1}}, {1, {2}}, {2, {3}}, {3, {4, 5, 6}}}));
  EXPECT_EQ(rows_of(session), (Tokens{1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace memoir::engine
