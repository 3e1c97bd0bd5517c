#include "memoir/text/vocabulary.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace memoir::text {
namespace {

TEST(Vocabulary, AnEmptyOneFindsNothing) {
  const Vocabulary vocabulary;
  EXPECT_EQ(vocabulary.size(), 0);
  EXPECT_FALSE(vocabulary.id(""));
  EXPECT_FALSE(vocabulary.id("a"));
}

TEST(Vocabulary, ASecondNameIsTheTextAndBothFindTheId) {
  Vocabulary vocabulary;
  vocabulary.add("old", 3);
  vocabulary.add("new", 3);
  EXPECT_EQ(vocabulary.id("old"), 3);
  EXPECT_EQ(vocabulary.id("new"), 3);
  EXPECT_EQ(vocabulary.text(3), "new");
}

TEST(Vocabulary, ATextThatHadAnotherIdFindsTheLast) {
  Vocabulary vocabulary;
  vocabulary.add("a", 0);
  vocabulary.add("a", 5);
  EXPECT_EQ(vocabulary.id("a"), 5);
  EXPECT_EQ(vocabulary.text(0), "a");
  EXPECT_TRUE(vocabulary.has(0));
  EXPECT_FALSE(vocabulary.has(4));  // a hole
}

TEST(Vocabulary, ATextMayHoldAnyBytes) {
  Vocabulary vocabulary;
  const std::string with_zero("a\0b", 3);
  vocabulary.add("", 0);
  vocabulary.add("a", 1);
  vocabulary.add(with_zero, 2);
  EXPECT_EQ(vocabulary.id(""), 0);
  EXPECT_EQ(vocabulary.id("a"), 1);
  EXPECT_EQ(vocabulary.id(with_zero), 2);
  EXPECT_FALSE(vocabulary.id(std::string("a\0", 2)));
  EXPECT_EQ(vocabulary.longest_bytes(), 3U);
}

TEST(Vocabulary, HiddenIdsAreNoWords) {
  Vocabulary vocabulary;
  vocabulary.add("<end>", 0);
  EXPECT_EQ(vocabulary.word("<end>"), 0);
  vocabulary.hide(0);
  EXPECT_FALSE(vocabulary.word("<end>"));
  EXPECT_EQ(vocabulary.id("<end>"), 0);
}

// Against std::map; few different texts, so that many come again with other ids.
TEST(Vocabulary, ManyTextsFindWhatAMapFinds) {
  for (const bool is_reserved : {false, true}) {
    std::mt19937 generator(7);
    Vocabulary vocabulary;
    if (is_reserved) vocabulary.reserve(20000);
    std::map<std::string, TokenId> expected;
    for (int i = 0; i < 20000; ++i) {
      std::string text = std::to_string(generator() % 15000);
      const auto id = static_cast<TokenId>(generator() % 20000);
      expected[text] = id;
      vocabulary.add(std::move(text), id);
    }
    for (int i = 0; i < 15000; ++i) {
      const std::string text = std::to_string(i);
      const auto found = expected.find(text);
      EXPECT_EQ(vocabulary.id(text), found == expected.end() ? std::nullopt : std::optional(found->second)) << text;
    }
  }
}

}  // namespace
}  // namespace memoir::text
