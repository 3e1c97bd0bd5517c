#include "memoir/engine/stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace memoir::engine {
namespace {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  std::optional<std::size_t> stop;

  bool operator==(const Outcome&) const = default;
};

Outcome run(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const auto& piece : pieces) {
    const auto result = matcher.push(piece);
    outcome.text += result.text;
    outcome.stop = result.stop;
  }
  outcome.text += matcher.finish();
  return outcome;
}

bool ends_with_stop(const std::string& text, std::size_t end, const std::string& stop) {
  return stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
}

/// Concatenate and search: every end in turn, of the stop strings that end there the longest.
Outcome oracle(const Strings& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      if (!ends_with_stop(text, end, stops[i])) continue;
      if (!best || stops[i].size() > stops[*best].size()) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

/// The length of the longest end of the text that begins some stop string.
std::size_t held_by_oracle(const Strings& stops, const std::string& text) {
  std::size_t longest = 0;
  for (const auto& stop : stops) {
    for (std::size_t n = std::min(stop.size(), text.size()); n > longest; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = n;
    }
  }
  return longest;
}

TEST(StopMatcher, WithoutStopStringsAllPassesThrough) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc").text, "abc");
  EXPECT_EQ(matcher.push("").text, "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, DropsTheStopStringAndAllThatFollows) {
  StopMatcher matcher({"END"});
  const auto result = matcher.push("some text END and more");
  EXPECT_EQ(result.text, "some text ");
  EXPECT_EQ(result.stop, 0U);
  EXPECT_EQ(matcher.push("never seen").text, "");
  EXPECT_EQ(matcher.push("never seen").stop, 0U);
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopMatcher matcher({"</s>"});
  EXPECT_EQ(matcher.push("a<").text, "a");
  EXPECT_EQ(matcher.push("/").text, "");
  EXPECT_EQ(matcher.push("<").text, "</");
  EXPECT_EQ(matcher.push("b").text, "<b");
  EXPECT_EQ(matcher.push("</s").text, "");
  EXPECT_EQ(matcher.finish(), "</s");
}

TEST(StopMatcher, FindsAStopStringSplitAnywhere) {
  const std::string text = "one\n\nUser: two";
  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t j = i; j <= text.size(); ++j) {
      const Strings pieces = {text.substr(0, i), text.substr(i, j - i), text.substr(j)};
      EXPECT_EQ(run({"\n\nUser:"}, pieces), (Outcome{"one", 0U}));
    }
  }
}

TEST(StopMatcher, TheEarliestEndWinsAndThenTheEarliestStart) {
  EXPECT_EQ(run({"abc", "ab"}, {"xabcy"}), (Outcome{"x", 1U}));       // a beginning of another ends first
  EXPECT_EQ(run({"bc", "abc", "c"}, {"xabcy"}), (Outcome{"x", 1U}));  // equal end: the longest
  EXPECT_EQ(run({"abcd", "bc"}, {"xabcd"}), (Outcome{"xa", 1U}));     // inside another, ends before it
  EXPECT_EQ(run({"abcd", "bce"}, {"xabce"}), (Outcome{"xa", 1U}));    // found on leaving another
  EXPECT_EQ(run({"aab"}, {"aaaab"}), (Outcome{"aa", 0U}));            // overlaps itself
  EXPECT_EQ(run({"dup", "dup"}, {"a dup"}), (Outcome{"a ", 0U}));     // the first of equal ones
  EXPECT_EQ(run({"zz", "b", "a"}, {"cab"}), (Outcome{"c", 2U}));      // the index as given
  EXPECT_EQ(run({"abx", "bcx", "cdx"}, {"abcd"}), (Outcome{"abcd", std::nullopt}));
}

TEST(StopMatcher, MatchesCharactersOfSeveralBytesSplitBetweenPieces) {
  // The ideographic full stop is e3 80 82, the comma before it e3 80 81.
  EXPECT_EQ(run({"\xe3\x80\x82"}, {"a\xe3", "\x80", "\x81", "b\xe3\x80",
                                   "\x82"
                                   "c"}),
            (Outcome{"a\xe3\x80\x81"
                     "b",
                     0U}));
  EXPECT_EQ(run({"\xf0\x9f\x98\x80"}, {"\xf0\x9f", "\x98\x81"}), (Outcome{"\xf0\x9f\x98\x81", std::nullopt}));
  EXPECT_EQ(run({std::string("\0x", 2)}, {std::string("a\0", 2), "xb"}), (Outcome{"a", 0U}));
}

TEST(StopMatcher, NeverSplitsACharacterItself) {
  // Both begin with e3 80: what is held back starts at the border of a character.
  StopMatcher matcher({"\xe3\x80\x82!"});
  EXPECT_EQ(matcher.push("a\xe3\x80\x81").text, "a\xe3\x80\x81");
  EXPECT_EQ(matcher.push("b\xe3\x80\x82").text, "b");
  EXPECT_EQ(matcher.push("?").text, "\xe3\x80\x82?");
}

TEST(StopMatcher, IsAsNewAfterFinish) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a sto").text, "a ");
  EXPECT_EQ(matcher.finish(), "sto");
  EXPECT_EQ(matcher.push("p").text, "p");
  EXPECT_EQ(matcher.push("stop").stop, 0U);
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.push("go").text, "go");
  EXPECT_EQ(matcher.push("go").stop, std::nullopt);
}

TEST(StopMatcher, RefusesAnEmptyStopString) {
  EXPECT_THROW(StopMatcher({"a", ""}), std::invalid_argument);
  EXPECT_THROW(StopMatcher({""}), std::invalid_argument);
}

// Byte by byte, a held-back text of 200,000 bytes that moves on by one each time: 4e10 steps if it were copied or
// searched again for each byte, which no test run would survive.
TEST(StopMatcher, LongRepetitiveStopStringsStayLinear) {
  const std::size_t n = 200000;
  StopMatcher matcher({std::string(n, 'a') + "b", std::string(n / 2, 'a') + "c"});
  std::string text;
  for (std::size_t i = 0; i < 2 * n; ++i) text += matcher.push("a").text;
  EXPECT_EQ(text, std::string(n, 'a'));
  const auto result = matcher.push("c");
  EXPECT_EQ(result.stop, 1U);
  EXPECT_EQ(result.text, std::string(n / 2, 'a'));
}

Strings random_strings(std::mt19937& random, const Strings& alphabet, int n_strings, int max_letters) {
  Strings strings;
  for (int i = 0; i < n_strings; ++i) {
    std::string text;
    const int n_letters = 1 + static_cast<int>(random() % static_cast<unsigned>(max_letters));
    for (int j = 0; j < n_letters; ++j) text += alphabet[random() % alphabet.size()];
    strings.push_back(text);
  }
  return strings;
}

// Each run checks, after every piece, that what was returned is a beginning of the oracle's text, that the stop was
// told in the piece that completed it, and that no more was held back than must be.
TEST(StopMatcher, AgreesWithConcatenateAndSearchOnRandomPieces) {
  const std::vector<Strings> alphabets = {
      {"a", "b"}, {"a", "b", "c"}, {"\xc3\xa9", "\xc3\xa8", "\xe3\x80\x82", "\xf0\x9f\x98\x80", "a"}};
  const unsigned seed = 20261128;
  std::mt19937 random(seed);
  int n_stopped = 0;
  for (int i = 0; i < 20000; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", run " + std::to_string(i));
    const Strings& alphabet = alphabets[random() % alphabets.size()];
    const Strings stops = random_strings(random, alphabet, static_cast<int>(random() % 5), 6);
    const std::string text = random_strings(random, alphabet, 1, 30)[0];
    const Outcome expected = oracle(stops, text);

    StopMatcher matcher(stops);
    std::string returned;
    std::optional<std::size_t> stop;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = std::min<std::size_t>(random() % 5, text.size() - at);
      const auto result = matcher.push(std::string_view(text).substr(at, size));
      at += size;
      returned += result.text;
      stop = result.stop;
      const std::string so_far = text.substr(0, at);
      ASSERT_EQ(stop, oracle(stops, so_far).stop);
      const std::size_t n_safe = stop ? expected.text.size() : so_far.size() - held_by_oracle(stops, so_far);
      ASSERT_EQ(returned, expected.text.substr(0, n_safe));
    }
    returned += matcher.finish();
    ASSERT_EQ((Outcome{returned, stop}), expected);
    n_stopped += stop.has_value() ? 1 : 0;
  }
  // Both outcomes must be common for the runs to mean something.
  EXPECT_GT(n_stopped, 4000);
  EXPECT_LT(n_stopped, 16000);
}

}  // namespace
}  // namespace memoir::engine
