// What a draft model reads of a text, forward pass by forward pass: of a long one only the end, until its guesses pay.

#include "memoir/engine/draft_model.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "tests/chain_model.h"

namespace mx = mlx::core;

namespace memoir::engine {
namespace {

using test::Chain;
using test::Forward;
using Tokens = std::vector<TokenId>;

constexpr int kVocab = 9;  // no part of a count that the tests cut off begins as the whole
constexpr int kContext = 4096;
constexpr int kDrafts = 4;

// 0 > 1 > ... > 8 > 0, or always one too far.
Tokens around(int by = 1) {
  Tokens next;
  for (TokenId i = 0; i < kVocab; ++i) next.push_back((i + by) % kVocab);
  return next;
}

Tokens counted(std::size_t n) {
  Tokens text;
  while (text.size() < n) text.push_back(static_cast<TokenId>(text.size() % kVocab));
  return text;
}

Tokens last(const Tokens& text, std::size_t n) {
  return {text.end() - static_cast<std::ptrdiff_t>(n), text.end()};
}

class DraftModelReads : public testing::Test {
 protected:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }

  // Proposes behind the first n tokens of the count. The first pass of the proposal, if there was one.
  std::optional<Forward> first_pass(DraftModel& drafter, const Chain& chain, std::size_t n, int n_max = kDrafts) {
    chain.take_forwards();
    drafts_ = drafter.propose(counted(n), n_max);
    const std::vector<Forward> passes = chain.take_forwards();
    if (passes.empty()) return std::nullopt;
    return passes.front();
  }
  bool is_right(std::size_t n) const {
    return !drafts_.empty() && drafts_ == last(counted(n + drafts_.size()), drafts_.size());
  }

  Tokens drafts_;
};

TEST_F(DraftModelReads, AllOfAShortText) {
  const Chain small(around(), kContext);
  DraftModel drafter(small, kVocab);
  EXPECT_EQ(first_pass(drafter, small, DraftModel::kFirst), (Forward{0, counted(DraftModel::kFirst)}));
  EXPECT_TRUE(is_right(DraftModel::kFirst));
}

// 4 right drafts a round are worth 128 tokens.
TEST_F(DraftModelReads, TheEndOfALongTextUntilItsGuessesHavePaid) {
  const Chain small(around(), kContext);
  DraftModel drafter(small, kVocab);
  EXPECT_EQ(first_pass(drafter, small, 200), (Forward{0, last(counted(200), DraftModel::kFirst)}));
  EXPECT_TRUE(is_right(200));
  // 3 of its 4 drafts are in its cache; the fourth and the token behind it come.
  EXPECT_EQ(first_pass(drafter, small, 205), (Forward{67, last(counted(205), 2)}));
  EXPECT_EQ(first_pass(drafter, small, 210), (Forward{0, counted(210)}));
  EXPECT_TRUE(is_right(210));
  EXPECT_EQ(first_pass(drafter, small, 215), (Forward{213, last(counted(215), 2)}));
}

TEST_F(DraftModelReads, NeverTheWholeIfItsGuessesAreWrong) {
  const Chain wrong(around(2), kContext);
  DraftModel drafter(wrong, kVocab);
  std::size_t n_read = 0;
  for (std::size_t n = 2000; n < 2100; ++n) {
    drafter.propose(counted(n), 1);
    for (const Forward& pass : wrong.take_forwards()) n_read += pass.tokens.size();
  }
  EXPECT_EQ(n_read, DraftModel::kFirst + 99);
}

// What goes on by a long part is as one that is long.
TEST_F(DraftModelReads, TheEndOfALongContinuation) {
  const Chain small(around(), kContext);
  DraftModel drafter(small, kVocab);
  first_pass(drafter, small, 50, 1);
  EXPECT_EQ(first_pass(drafter, small, 50 + DraftModel::kFirst, 1),
            (Forward{50, last(counted(114), DraftModel::kFirst)}));
  EXPECT_EQ(first_pass(drafter, small, 400, 1), (Forward{0, last(counted(400), DraftModel::kFirst)}));
  EXPECT_TRUE(is_right(400));
}

TEST_F(DraftModelReads, ThePartsOfALongTextThatItHasPaidFor) {
  const Chain small(around(), kContext);
  DraftModel drafter(small, kVocab, 90);
  first_pass(drafter, small, 200);
  first_pass(drafter, small, 205);
  EXPECT_EQ(first_pass(drafter, small, 210), (Forward{0, counted(90)}));
  EXPECT_TRUE(drafts_.empty());
  EXPECT_EQ(first_pass(drafter, small, 211), (Forward{90, last(counted(180), 90)}));
  EXPECT_TRUE(drafts_.empty());
  EXPECT_EQ(first_pass(drafter, small, 212), (Forward{180, last(counted(212), 32)}));
  EXPECT_TRUE(is_right(212));
}

// It goes on from the text's end where its own context is full, and whatever it has earned.
TEST_F(DraftModelReads, TheEndOfATextBeyondItsContext) {
  const Chain small(around(), 100);
  DraftModel drafter(small, kVocab);
  for (std::size_t n = 20; n < 600; n += kDrafts + 1) {
    first_pass(drafter, small, n);
    ASSERT_TRUE(is_right(n)) << n;
  }
  const Chain tiny(around(), static_cast<int>(DraftModel::kFirst));
  DraftModel without_room(tiny, kVocab);
  EXPECT_EQ(first_pass(without_room, tiny, 100), std::nullopt);
  EXPECT_TRUE(drafts_.empty());
}

// A shorter text, or another one, after a long one.
TEST_F(DraftModelReads, AnotherTextAnew) {
  const Chain small(around(), kContext);
  DraftModel drafter(small, kVocab);
  first_pass(drafter, small, 300);
  EXPECT_EQ(first_pass(drafter, small, 30), (Forward{0, counted(30)}));
  EXPECT_TRUE(is_right(30));
}

}  // namespace
}  // namespace memoir::engine
