// The parts of the tokenizer that have rules of their own: UTF-8, patterns, added tokens, decoding steps.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/text/added_tokens.h"
#include "memoir/text/byte_level.h"
#include "memoir/text/decoder.h"
#include "memoir/text/linear_patterns.h"
#include "memoir/text/normalizer.h"
#include "memoir/text/regex.h"
#include "memoir/text/regex_dialect.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

// Unicode Standard 15, section 3.9, tables 3-8 to 3-11: U+FFFD for each maximal subpart.
TEST(Utf8, ErrorsAreReplacedByMaximalSubparts) {
  EXPECT_EQ(utf8::replace_errors("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(utf8::replace_errors("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(utf8::replace_errors("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(utf8::replace_errors("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

TEST(Utf8, EveryCharacterSurvivesEncodingAndDecoding) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    utf8::append(text, code);
    const utf8::Char c = utf8::decode(text, 0);
    ASSERT_TRUE(c.valid && c.code == code && c.n_bytes == text.size()) << static_cast<unsigned>(code);
    for (std::size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(utf8::incomplete_tail("a" + text.substr(0, n)), n) << static_cast<unsigned>(code);
    }
    ASSERT_EQ(utf8::incomplete_tail(text), 0U);
  }
}

TEST(Utf8, BytesThatCanBecomeNothingAreNoTail) {
  for (const char* text : {"", "a", "\x80", "\xC0", "\xF5", "\xE0\x80", "\xED\xA0", "\xF4\x90", "\xC3\xA9\x80"}) {
    EXPECT_EQ(utf8::incomplete_tail(text), 0U) << testing::PrintToString(text);
  }
}

TEST(ByteLevel, AlphabetIsAOneToOneMap) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  std::string mapped;
  append_byte_level(mapped, all);
  EXPECT_TRUE(utf8::valid(mapped));
  EXPECT_EQ(byte_level_bytes(mapped), all);
  EXPECT_FALSE(byte_level_bytes(" "));  // a space is U+0120 there
}

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  std::vector<std::string> found;
  Regex(pattern, {"file", "key"}).for_each(text, [&](Span span) {
    found.emplace_back(text.substr(span.begin, span.end - span.begin));
  });
  return found;
}

using Texts = std::vector<std::string>;

// Expected values by `tokenizers` 0.23.3 (Oniguruma): Split(Regex(...), "isolated").
TEST(RegexDialect, OnigurumaConstructsMeanTheSame) {
  EXPECT_EQ(matches("[a[bc]]+", "abcd"), (Texts{"abc"}));
  EXPECT_EQ(matches("[^a[bc]]+", "xaybzc"), (Texts{"x", "y", "z"}));
  EXPECT_EQ(matches("[\\p{L}&&[^\\p{Han}]]+", "ab你c"), (Texts{"ab", "c"}));
  EXPECT_EQ(matches("[^\\p{L}&&[^x]]+", "ax1"), (Texts{"x1"}));
  EXPECT_EQ(matches("[\\S_]+", "a b"), (Texts{"a", "b"}));
  EXPECT_EQ(matches("[\\W\\d]+", "ab1 ,c"), (Texts{"1 ,"}));
  EXPECT_EQ(matches("\\s+", "a\u180e\u0085\u3000b"), (Texts{"\u0085\u3000"}));
  EXPECT_EQ(matches("\\w+", "a\u203f\u0301\u00b2 -"), (Texts{"a\u203f\u0301\u00b2"}));
  EXPECT_EQ(matches("[\\w-]+", "a\u00b2-"), (Texts{"a", "-"}));  // but not in a class
  EXPECT_EQ(matches("\\h+", "xAf9g"), (Texts{"Af9"}));
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Texts{"aab"}));
  EXPECT_EQ(matches("\\d{1,2}+", "12345"), (Texts{"12345"}));
  EXPECT_EQ(matches("^.+$", "ab\ncd"), (Texts{"ab", "cd"}));
  EXPECT_EQ(matches("(?i:'s|'ll)", "x'S'Ll"), (Texts{"'S", "'Ll"}));
  EXPECT_EQ(matches("a{b", "a{b"), (Texts{"a{b"}));
}

TEST(Regex, EmptyMatchesMoveOn) {
  std::vector<Span> found;
  Regex("b*", {"file", "key"}).for_each("abbé", [&](Span span) { found.push_back(span); });
  EXPECT_EQ(found, (std::vector<Span>{{0, 0}, {1, 3}, {5, 5}}));
}

// The reference is the pattern itself, on texts short enough for it.
TEST(LinearPatterns, FindWhatTheirPatternsFind) {
  std::mt19937 random(7);
  const Texts alphabet = {"1", "2", "3", "4", "a", " ", "\n", ".", "_", "\u0663", "\u00b2", "\u2167", "\r", "\u3000"};
  for (const char* pattern : {"\\d{1,3}(?=(?:\\d{3})*\\b)", "(?=(\\d{3})+(?!\\d))", "\\s+$"}) {
    const MatchFinder finder = linear_form(pattern);
    ASSERT_NE(finder, nullptr) << pattern;
    const Regex regex(pattern, {"file", "key"});
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      const std::size_t n_kinds = 1 + random() % alphabet.size();
      for (std::size_t n = random() % 16; n > 0; --n) text += alphabet[random() % n_kinds];
      std::vector<Span> expected;
      regex.for_each(text, [&](Span span) { expected.push_back(span); });
      ASSERT_EQ(finder(text), expected) << pattern << " on " << testing::PrintToString(text);
    }
  }
  EXPECT_EQ(linear_form("\\s+"), nullptr);
}

std::vector<std::pair<std::string, int>> sections(const AddedTokens& tokens, std::string_view text, bool special) {
  std::vector<std::pair<std::string, int>> result;
  for (const Section& s : tokens.split(text, special)) {
    result.emplace_back(text.substr(s.span.begin, s.span.end - s.span.begin), s.token.value_or(-1));
  }
  return result;
}

using Sections = std::vector<std::pair<std::string, int>>;

TEST(AddedTokens, OverlapsGoToTheLeftmostOrToTheLongest) {
  for (const Overlap overlap : {Overlap::kLeftmostLongest, Overlap::kLongestFirst}) {
    AddedTokens tokens(overlap);
    tokens.add({.id = 1, .pattern = "ab"});
    tokens.add({.id = 2, .pattern = "bcd"});
    tokens.add({.id = 3, .pattern = "a"});
    const bool leftmost = overlap == Overlap::kLeftmostLongest;
    EXPECT_EQ(sections(tokens, "xabcd", true),
              leftmost ? (Sections{{"x", -1}, {"ab", 1}, {"cd", -1}}) : (Sections{{"x", -1}, {"a", 3}, {"bcd", 2}}));
  }
}

TEST(AddedTokens, StrippingTakesWhiteSpaceUpToTheNextToken) {
  for (const Overlap overlap : {Overlap::kLeftmostLongest, Overlap::kLongestFirst}) {
    AddedTokens tokens(overlap);
    tokens.add({.id = 1, .pattern = "<l>", .lstrip = true});
    tokens.add({.id = 2, .pattern = "<r>", .rstrip = true});
    EXPECT_EQ(sections(tokens, "a \u3000<l> b<r> \t<l>\n", true),
              (Sections{{"a", -1}, {" \u3000<l>", 1}, {" b", -1}, {"<r> \t", 2}, {"<l>", 1}, {"\n", -1}}));
  }
}

TEST(AddedTokens, SpecialOnesCountOnlyWhenAsked) {
  AddedTokens tokens;
  tokens.add({.id = 1, .pattern = "<s>", .special = true});
  tokens.add({.id = 2, .pattern = "w", .single_word = true});
  EXPECT_EQ(sections(tokens, "<s>w", false), (Sections{{"<s>", -1}, {"w", 2}}));
  EXPECT_EQ(sections(tokens, "<s>w ww wé", true), (Sections{{"<s>", 1}, {"w", 2}, {" ww wé", -1}}));
}

// Unicode Standard, annex 15, figures 4 and 6.
TEST(Normalizer, AppliesTheFourForms) {
  const auto form = [](NormalizerStep::Kind kind, std::string_view text) {
    Normalizer normalizer;
    normalizer.add({.kind = kind});
    return normalizer.apply(text).text;
  };
  using Kind = NormalizerStep::Kind;
  const std::string text = "\u1E9B\u0323\uFB01";
  EXPECT_EQ(form(Kind::kNfd, text), "\u017F\u0323\u0307\uFB01");
  EXPECT_EQ(form(Kind::kNfc, text), text);
  EXPECT_EQ(form(Kind::kNfkd, text), "s\u0323\u0307fi");
  EXPECT_EQ(form(Kind::kNfkc, text), "\u1E69fi");
  EXPECT_EQ(form(Kind::kNfc, std::string("e\u0301\0e\u0301", 7)), std::string("\u00E9\0\u00E9", 5));
}

std::string decoded(const Decoder& decoder, const Texts& tokens) {
  DecodeStream stream(decoder);
  std::string text;
  for (const std::string& token : tokens) text += stream.push(token);
  return text + stream.finish();
}

// As `tokenizers` decodes: a run of byte tokens is valid as a whole or not at all.
TEST(Decoder, ByteRunsAreJudgedAsAWhole) {
  Decoder decoder;
  decoder.add({.kind = DecoderStep::Kind::kByteFallback});
  decoder.add({.kind = DecoderStep::Kind::kFuse});
  EXPECT_EQ(decoded(decoder, {"<0xC3>", "<0xA9>", "x"}), "\u00E9x");
  EXPECT_EQ(decoded(decoder, {"<0x41>", "<0xC3>", "x"}), "\uFFFD\uFFFDx");
  EXPECT_EQ(decoded(decoder, {"x", "<0xC3>"}), "x\uFFFD");
}

TEST(Decoder, StripOfTheWholeTextHoldsItsEndBack) {
  Decoder decoder;
  decoder.add({.kind = DecoderStep::Kind::kFuse});
  decoder.add({.kind = DecoderStep::Kind::kStrip, .content = " ", .n_start = 1, .n_stop = 2});
  EXPECT_EQ(decoded(decoder, {" ", " a ", " ", "b", " ", "  "}), " a  b ");
}

TEST(Decoder, RewritingTheWholeTextWaitsForItsEnd) {
  Decoder decoder;
  decoder.add({.kind = DecoderStep::Kind::kFuse});
  decoder.add({.kind = DecoderStep::Kind::kReplace, .pattern = "ab", .content = "X"});
  DecodeStream stream(decoder);
  EXPECT_EQ(stream.push("a"), "");
  EXPECT_EQ(stream.push("b"), "");
  EXPECT_EQ(stream.finish(), "X");
}

}  // namespace
}  // namespace memoir::text
