// Rounds of drafting with a head that has a cache of its own, call by call: the rows of the tables of the runner that
// memoir's speculation follows (its mtp_test.go) that concern such heads. The model knows one token of each token what
// follows (chain_model.h), each token follows one other, and the head knows the same, but for what a test says. Its
// slots hold the tokens behind their positions. Vocabulary 8, token 7 ends a text, four drafts a round.
//
// A call is written as there: the offset, the tokens, and whether the first hidden state is the head's own.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "memoir/engine/generate.h"
#include "memoir/engine/mtp_drafter.h"
#include "memoir/engine/session.h"
#include "memoir/model/decoder.h"
#include "tests/chain_model.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using test::Chain;
using test::Forward;
using Tokens = std::vector<TokenId>;

constexpr int kVocab = 8;
constexpr TokenId kEnd = 7;

struct Call {
  int offset;
  Tokens tokens;
  bool is_own = false;
  bool operator==(const Call&) const = default;
};

void PrintTo(const Call& call, std::ostream* out) {
  *out << call.offset << ":" << testing::PrintToString(call.tokens) << (call.is_own ? " own" : "");
}

std::vector<float> values_of(const mx::array& x) {
  const mx::array values = mx::contiguous(mx::astype(x, mx::float32));
  mx::eval(values);
  return {values.data<float>(), values.data<float>() + values.size()};
}

// The model's embedding of a token is what it says of it: 30 at the token that follows. The head says -1 at the others.
class HeadLayer final : public model::DecoderLayer {
 public:
  HeadLayer(Tokens model_next, Tokens next, std::vector<Call>& calls)
      : model_next_(std::move(model_next)), next_(std::move(next)), calls_(calls) {}

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions&) const override {
    return cache::make_kv_cache({});
  }
  std::size_t size_bytes() const override { return 0; }

  // x: [1, T, 2 * vocab], the embeddings and the hidden states, normed.
  mx::array forward(const mx::array& x, model::Step& step, std::size_t index) const override {
    const std::vector<float> values = values_of(x);
    Call call{step.sequences[0].offset, {}, false};
    std::vector<float> said;
    for (auto row = values.begin(); row != values.end(); row += 2 * kVocab) {
      const auto follows = static_cast<TokenId>(std::max_element(row, row + kVocab) - row);
      const auto token = std::find(model_next_.begin(), model_next_.end(), follows) - model_next_.begin();
      if (call.tokens.empty()) call.is_own = *std::min_element(row + kVocab, row + 2 * kVocab) < 0;
      call.tokens.push_back(static_cast<TokenId>(token));
      std::vector<float> logits(kVocab, -1);
      logits[static_cast<std::size_t>(next_[static_cast<std::size_t>(token)])] = 30;
      said.insert(said.end(), logits.begin(), logits.end());
    }
    const int n = x.shape(1);
    const std::vector<float> rows(call.tokens.begin(), call.tokens.end());
    const mx::array keys(rows.data(), {1, 1, n, 1});
    model::update(step, index, keys, keys);
    calls_.push_back(std::move(call));
    return mx::array(said.data(), {1, n, kVocab});
  }

 private:
  Tokens model_next_;
  Tokens next_;
  std::vector<Call>& calls_;
};

// A drafter that is told of everything and guesses nothing.
class Silent final : public Drafter {
 public:
  explicit Silent(MtpDrafter& drafter) : drafter_(drafter) {}
  Tokens propose(std::span<const TokenId>, int) override { return {}; }
  Reads reads() const override { return drafter_.reads(); }
  void taken_in(const TakenIn& taken) override { drafter_.taken_in(taken); }
  int lookahead() const override { return drafter_.lookahead(); }

 private:
  MtpDrafter& drafter_;
};

// 1 > 2 > 3 > 4 > 5 > 6 > end > 0 > 1.
const Tokens kChain = {1, 2, 3, 4, 5, 6, kEnd, 0};

class MtpTable : public testing::Test {
 protected:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }

  MtpDrafter drafter(const Chain& model, const Tokens& next, const Tokens& head_next) {
    const kernels::Norm ones{mx::ones({kVocab}), 1e-6F};
    const kernels::Norm both = ones;
    model::MtpParts parts{ones,
                          both,
                          {kernels::Weight{mx::eye(2 * kVocab)}},
                          std::make_unique<HeadLayer>(next, head_next, calls_),
                          ones,
                          {2, false, {1}}};
    return {std::make_shared<const model::MtpHead>(std::move(parts)), model};
  }

  static GenerateOptions options(Drafter& drafter, int max_tokens = 20) {
    GenerateOptions result;
    result.max_tokens = max_tokens;
    result.stop_tokens = {kEnd};
    result.drafter = &drafter;
    result.max_drafts = 4;
    result.adapts_drafts = false;
    return result;
  }

  std::vector<Call> take_calls() { return std::exchange(calls_, {}); }

  // Every slot but the last, as the prefix cache asks for them; then their rows, the first of the text empty.
  Tokens settled(MtpDrafter& drafter, const Tokens& text) {
    EXPECT_TRUE(drafter.companion()->settle(prefix::token_keys(text)));
    const auto rows = drafter.companion()->rows(0, static_cast<int>(text.size()));
    const std::vector<float> values = values_of(rows->keys().data);
    return {values.begin(), values.end()};
  }

  std::vector<Call> calls_;
};

// DecodeKVDraft: the head's own state stands in behind the first draft; all of its drafts are right.
TEST_F(MtpTable, DraftsAllOfAText) {
  const Chain model(kChain);
  MtpDrafter head = drafter(model, kChain, kChain);
  Session session(model);
  EXPECT_EQ(generate(session, Tokens{1}, options(head), nullptr).tokens, (Tokens{2, 3, 4, 5, 6}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {1}}, {1, {2, 3, 4, 5, 6}}}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{{0, {2}}, {1, {3}, true}, {2, {4}, true}, {3, {5}, true}}));
  EXPECT_EQ(settled(head, {1, 2, 3, 4, 5, 6}), (Tokens{0, 2, 3, 4, 5, 6}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{{0, {2, 3, 4, 5, 6}}}));  // none of the drafts' slots has stayed
}

// DecodeKVDraftRejectionRebuildsFromTarget: the head says 6 after 3, and goes on from the model's states.
TEST_F(MtpTable, ARejectionRebuildsFromTheModel) {
  const Tokens next = {6, 2, 3, 4, 5, kEnd, 1, 0};
  Tokens wrong = next;
  wrong[3] = 6;
  const Chain model(next);
  MtpDrafter head = drafter(model, next, wrong);
  Session session(model);
  EXPECT_EQ(generate(session, Tokens{1}, options(head), nullptr).tokens, (Tokens{2, 3, 4, 5}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{0, {1}}, {1, {2, 3, 6, 1, 2}}, {3, {4, 5, kEnd, 0, 6}}}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{{0, {2}},
                                             {1, {3}, true},
                                             {2, {6}, true},
                                             {3, {1}, true},
                                             {0, {2, 3, 4}},
                                             {3, {5}, true},
                                             {4, {kEnd}, true},
                                             {5, {0}, true}}));
  EXPECT_EQ(settled(head, {1, 2, 3, 4, 5}), (Tokens{0, 2, 3, 4, 5}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{{2, {4, 5}}}));
}

// DecodeMaintainsDraftCacheWithoutDrafting: one call for all that was told.
TEST_F(MtpTable, WithoutDraftsOneCallMakesAllSlots) {
  const Chain model(kChain);
  MtpDrafter head = drafter(model, kChain, kChain);
  Silent silent(head);
  Session session(model);
  EXPECT_EQ(generate(session, Tokens{1}, options(silent), nullptr).tokens, (Tokens{2, 3, 4, 5, 6}));
  EXPECT_TRUE(take_calls().empty());
  EXPECT_EQ(settled(head, {1, 2, 3, 4, 5, 6}), (Tokens{0, 2, 3, 4, 5, 6}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{{0, {2, 3, 4, 5, 6}}}));
}

// SettleLevelsDraftCacheWithPrefill: a prompt of four and the token behind it.
TEST_F(MtpTable, APromptsSlotsAreMadeWithTheTokenBehindIt) {
  const Chain model(kChain);
  MtpDrafter head = drafter(model, kChain, kChain);
  Session session(model);
  EXPECT_EQ(generate(session, Tokens{1, 2, 3, 4}, options(head, 2), nullptr).tokens, (Tokens{5, 6}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{}));  // nothing is drafted behind the last token asked for
  EXPECT_EQ(head.propose(Tokens{1, 2, 3, 4, 5, 6}, 1), (Tokens{kEnd}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{{0, {2, 3, 4, 5, 6}}}));
  EXPECT_EQ(head.n_slots(), 4);
}

// RestoredPrefixRewritesBoundaryPair: the text goes another way behind 5, so the slot that was made with 6 goes.
TEST_F(MtpTable, ATextThatIsLeftRewritesTheSlotThatLookedAhead) {
  const Chain model(kChain);
  MtpDrafter head = drafter(model, kChain, kChain);
  Session session(model);
  generate(session, Tokens{1}, options(head), nullptr);
  settled(head, {1, 2, 3, 4, 5, 6});
  take_calls();
  model.take_forwards();
  EXPECT_EQ(generate(session, Tokens{1, 2, 3, 4, 5, 0}, options(head, 1), nullptr).tokens, (Tokens{1}));
  EXPECT_EQ(model.take_forwards(), (std::vector<Forward>{{4, {5, 0}}}));
  EXPECT_EQ(settled(head, {1, 2, 3, 4, 5, 0}), (Tokens{0, 2, 3, 4, 5, 0}));
  EXPECT_EQ(take_calls(), (std::vector<Call>{{4, {0}}}));
}

}  // namespace
}  // namespace memoir::engine
