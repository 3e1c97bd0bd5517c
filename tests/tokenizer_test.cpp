// Tokenizers against their references. The expected ids and texts in data/tokenizer/ are by the `tokenizers` library
// (and `sentencepiece` for spm.gguf), see make_tokenizers.py there; those in data/smollm2_tokens.json are by llama.cpp.

#include "memoir/text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/gguf.h"
#include "memoir/text/detokenizer.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

const fs::path kData = fs::path(MEMOIR_TEST_DATA) / "tokenizer";
constexpr Tokenizer::EncodeOptions kPlain{};
constexpr Tokenizer::EncodeOptions kSpecial{.add_special = true, .parse_special = true};
constexpr Tokenizer::EncodeOptions kParsed{.parse_special = true};

nlohmann::json read_json(const fs::path& path) {
  return nlohmann::json::parse(read_text_file(path));
}

Tokenizer load(const std::string& name) {
  const fs::path path = kData / (name + ".json");
  return Tokenizer::from_json(read_text_file(path), path.string());
}

// All that push() and finish() return, after checking that each part is whole.
std::string streamed(const Tokenizer& tokenizer, const Ids& ids, Tokenizer::DecodeOptions options = {}) {
  StreamingDetokenizer detokenizer(tokenizer, options);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_TRUE(utf8::valid(part));
    text += part;
  }
  return text + detokenizer.finish();
}

class TokenizerFile : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerFile, EncodesAsTheReference) {
  const Tokenizer tokenizer = load(GetParam());
  for (const auto& item : read_json(kData / (std::string(GetParam()) + ".expected.json"))) {
    if (!item.contains("text")) continue;
    const auto text = item["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, kPlain), item["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer.encode(text, kSpecial), item["ids_special"].get<Ids>()) << text;
  }
}

TEST_P(TokenizerFile, DecodesAsTheReferenceAtOnceAndStreamed) {
  const Tokenizer tokenizer = load(GetParam());
  for (const auto& item : read_json(kData / (std::string(GetParam()) + ".expected.json"))) {
    const auto ids = item["ids_special"].get<Ids>();
    for (const bool skip : {false, true}) {
      const auto expected = item[skip ? "decoded_skip" : "decoded"].get<std::string>();
      EXPECT_EQ(tokenizer.decode(ids, {.skip_special = skip}), expected) << item.dump();
      EXPECT_EQ(streamed(tokenizer, ids, {.skip_special = skip}), expected) << item.dump();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFile,
                         ::testing::Values("gpt2", "llama3", "qwen2", "smollm", "gpt4o", "deepseek3", "llama2",
                                           "mistral", "gemma", "metaspace", "words", "splits"),
                         [](const auto& file) { return std::string(file.param); });

// The ids are those that `tokenizers` gives the part of a whole text (make_continuations.py).
TEST(Tokenizer, APartBehindOtherTokensIsThatPartOfTheWhole) {
  const nlohmann::json golden = read_json(kData / "continuations.json");
  for (const auto& [name, cuts] : golden.items()) {
    const Tokenizer tokenizer = load(name);
    for (const auto& cut : cuts) {
      const Ids before = tokenizer.encode(cut["before"].get<std::string>(), kParsed);
      ASSERT_EQ(before.back(), cut["previous"].get<TokenId>()) << name << cut.dump();
      const Ids after = tokenizer.encode(cut["after"].get<std::string>(),
                                         {.add_special = false, .parse_special = true, .previous = before.back()});
      EXPECT_EQ(after, cut["ids"].get<Ids>()) << name << cut.dump();
      const std::string rest = tokenizer.decode(after, {.is_continuation = true});
      EXPECT_EQ(tokenizer.decode(before) + rest, cut["decoded"].get<std::string>()) << name << cut.dump();
      EXPECT_EQ(streamed(tokenizer, after, {.is_continuation = true}), rest);
    }
  }
}

TEST(Tokenizer, BosIsNotAddedBehindOtherTokens) {
  const Tokenizer tokenizer = load("llama2");  // its template is <s> $A </s>
  const TokenId begin = tokenizer.id("<s>").value();
  const TokenId end = tokenizer.id("</s>").value();
  EXPECT_EQ(tokenizer.encode("", kSpecial), (Ids{begin, end}));
  EXPECT_EQ(tokenizer.encode("", {.add_special = true, .previous = begin}), (Ids{end}));
  EXPECT_THROW(tokenizer.encode("", {.previous = tokenizer.n_vocab()}), std::invalid_argument);
  EXPECT_THROW(tokenizer.encode("", {.previous = -1}), std::invalid_argument);
}

TEST(Tokenizer, GgufWithScoresEncodesAsSentencePieceAndDecodesBack) {
  const Tokenizer tokenizer = Tokenizer::from_gguf(GgufFile::open(kData / "spm.gguf"));
  for (const auto& item : read_json(kData / "spm.expected.json")) {
    const auto text = item["text"].get<std::string>();
    const auto ids = item["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_EQ(streamed(tokenizer, ids), text);
    if (ids.size() < 2 || tokenizer.piece(ids[0]) != " ") continue;
    // The space in front, which sentencepiece adds, is a token of its own here: without it the text goes on.
    const Ids rest(ids.begin() + 1, ids.end());
    EXPECT_EQ(tokenizer.encode(text, {.previous = ids[0]}), rest) << text;
    EXPECT_EQ(tokenizer.decode(rest, {.is_continuation = true}), text);
  }
}

TEST(Tokenizer, GgufWithScoresAddsBosByDefaultAndNeverForgesControlTokens) {
  const Tokenizer tokenizer = Tokenizer::from_gguf(GgufFile::open(kData / "spm.gguf"));
  EXPECT_EQ(tokenizer.encode("", kSpecial), (Ids{1}));
  EXPECT_TRUE(tokenizer.adds_bos());
  const TokenId control = tokenizer.id("<ctl>").value();
  EXPECT_EQ(tokenizer.encode("<ctl></s>", kParsed), (Ids{control, 2}));
  for (const TokenId id : tokenizer.encode("<ctl></s>")) EXPECT_FALSE(tokenizer.is_special(id));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<ctl></s>")), "<ctl></s>");
  EXPECT_EQ(tokenizer.end_tokens(), (Ids{2}));
}

class Smollm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    tokenizer_.emplace(Tokenizer::from_gguf(GgufFile::open(MEMOIR_TEST_SMOLLM2)));
    items_ = read_json(fs::path(MEMOIR_TEST_DATA) / "smollm2_tokens.json")["items"];
  }

  std::optional<Tokenizer> tokenizer_;
  nlohmann::json items_;
};

TEST_F(Smollm2, EncodesAsLlamaCpp) {
  for (const auto& item : items_) {
    const auto text = item["text"].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text), item["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer_->encode(text, kParsed), item["ids_special"].get<Ids>()) << text;
  }
}

TEST_F(Smollm2, DecodesToTheTextOrToWhatItsTokensHold) {
  for (const auto& item : items_) {
    std::string expected = item["text"];
    if (item.contains("detokenized_hex")) {
      const auto hex = item["detokenized_hex"].get<std::string>();
      expected.clear();
      for (std::size_t i = 0; i < hex.size(); i += 2) {
        expected += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
      }
      expected = utf8::replace_errors(expected);
    }
    const auto ids = item["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->decode(ids), expected);
    EXPECT_EQ(streamed(*tokenizer_, ids), expected);
  }
}

// llama.cpp prints the same on loading the file.
TEST_F(Smollm2, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->n_vocab(), 49152);
  EXPECT_EQ(tokenizer_->bos(), 1);
  EXPECT_EQ(tokenizer_->eos(), 2);
  EXPECT_EQ(tokenizer_->bos_text(), "<|im_start|>");
  EXPECT_EQ(tokenizer_->eos_text(), "<|im_end|>");
  EXPECT_FALSE(tokenizer_->adds_bos());
  EXPECT_EQ(tokenizer_->end_tokens(), (Ids{0, 2}));
  EXPECT_TRUE(tokenizer_->chat_template().has_value());
  EXPECT_TRUE(tokenizer_->warnings().empty());
}

TEST(Tokenizer, TextOfSpecialTokensIsTextUnlessAskedFor) {
  const Tokenizer tokenizer = load("llama3");
  const TokenId end = tokenizer.id("<|end|>").value();
  EXPECT_EQ(tokenizer.encode("<|end|>", kParsed), (Ids{end}));
  const Ids plain = tokenizer.encode("<|end|>");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(tokenizer.decode(plain), "<|end|>");
}

// A word that is a token is that token only if the model has it: not "<|end|>", which was added.
TEST(Tokenizer, IgnoreMergesDoesNotForgeAddedTokens) {
  const std::string file = R"({"added_tokens":[{"id":2,"content":"ab","special":true}],
    "model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[],"ignore_merges":true}})";
  const Tokenizer tokenizer = Tokenizer::from_json(file, "test");
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{0, 1}));
  EXPECT_EQ(tokenizer.encode("ab", kParsed), (Ids{2}));
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  const Tokenizer tokenizer = load("gpt2");
  const int n = tokenizer.n_vocab();
  for (const TokenId id : {-1, n, 2147483647}) {
    EXPECT_THROW(tokenizer.decode(Ids{id}), std::invalid_argument);
    EXPECT_THROW(tokenizer.piece(id), std::invalid_argument);
    EXPECT_THROW(StreamingDetokenizer(tokenizer).push(id), std::invalid_argument);
    EXPECT_FALSE(tokenizer.is_special(id));
  }
  try {
    tokenizer.decode(Ids{99999});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()),
              "[tokenizer.decode] token 99999 is outside the vocabulary of " + std::to_string(n));
  }
}

TEST(Tokenizer, PieceGivesTheBytesOfPartsOfCharacters) {
  const Tokenizer byte_level = load("gpt2");
  EXPECT_EQ(byte_level.piece(byte_level.id("\xC4\xA0").value()), " ");     // U+0120 stands for a space
  EXPECT_EQ(byte_level.piece(byte_level.id("\xC3\xB0").value()), "\xF0");  // U+00F0 for itself as a byte
  const Tokenizer fallback = load("llama2");
  EXPECT_EQ(fallback.piece(fallback.id("<0xF0>").value()), "\xF0");
  EXPECT_EQ(fallback.piece(fallback.id("<s>").value()), "<s>");
}

// U+FFFD for each maximal subpart: Unicode Standard, table 3-8.
TEST(Tokenizer, InvalidUtf8IsEncodedAsReplacementCharacters) {
  const Tokenizer tokenizer = load("gpt2");
  const std::string bad = "a\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41\xF0\x9F\x91";
  EXPECT_EQ(tokenizer.encode(bad), tokenizer.encode("a\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
                                                    "A\uFFFD"));
}

TEST(Tokenizer, NulBytesAreTextLikeAnyOther) {
  const Tokenizer tokenizer = load("gpt2");
  const std::string text("a\0b\0", 4);
  EXPECT_EQ(tokenizer.encode(text).size(), 4U);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

// In GPT-2's alphabet U+00F0, U+0141, U+0133 and U+012F stand for F0 9F 91 8D, the thumbs-up sign.
TEST(StreamingDetokenizer, HoldsPartsOfACharacterBack) {
  const Tokenizer tokenizer = load("gpt2");
  const auto byte = [&](const char* text) { return tokenizer.id(text).value(); };
  StreamingDetokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(byte("\u00F0")), "");
  EXPECT_EQ(detokenizer.push(byte("\u0141")), "");
  EXPECT_EQ(detokenizer.push(byte("\u0133")), "");
  EXPECT_EQ(detokenizer.push(byte("\u012F")), "\U0001F44D");
  EXPECT_EQ(detokenizer.push(byte("\u00F0")), "");
  EXPECT_EQ(detokenizer.push(byte("\u0141")), "");
  EXPECT_EQ(detokenizer.push(byte("A")), "\uFFFDA");
  EXPECT_EQ(detokenizer.push(byte("\u00F0")), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.push(byte("A")), "A");
}

// A megabyte without any border between words. The limit is ctest's: quadratic merging would take hours.
TEST(Tokenizer, OneMegabyteOfOneLetterIsEncoded) {
  const std::string text(1'000'000, 'a');
  for (const char* name : {"gpt2", "llama2", "gemma", "deepseek3"}) {
    const Tokenizer tokenizer = load(name);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << name;
  }
  const Tokenizer scored = Tokenizer::from_gguf(GgufFile::open(kData / "spm.gguf"));
  EXPECT_EQ(scored.decode(scored.encode(text)), text);
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = load("llama3");
  const std::string text = "Hello, world! It's 12:34.\n\n  def f(x):";
  const Ids expected = tokenizer.encode(text);
  std::vector<int> n_wrong(4);
  std::vector<std::thread> threads;
  for (int& wrong : n_wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) wrong += tokenizer.encode(text) != expected || tokenizer.decode(expected) != text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, (std::vector<int>(4)));
}

class TokenizerDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(::testing::TempDir()) / (std::string("memoir_tokenizer_") + test->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    fs::copy(kData / "gpt2.json", directory_ / "tokenizer.json");
  }
  void TearDown() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(directory_ / name) << text; }
  Tokenizer read() const { return Tokenizer::from_directory(directory_); }

  fs::path directory_;
};

TEST_F(TokenizerDirectory, NeedsNothingButTokenizerJson) {
  const Tokenizer tokenizer = read();
  EXPECT_FALSE(tokenizer.bos());
  EXPECT_EQ(tokenizer.bos_text(), "");
  EXPECT_FALSE(tokenizer.chat_template());
  fs::remove(directory_ / "tokenizer.json");
  EXPECT_THROW(read(), FileError);
}

TEST_F(TokenizerDirectory, ConfigNamesTheSpecialTokensAsTextOrObject) {
  write("tokenizer_config.json", R"({"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},
    "pad_token":null,"add_bos_token":true,"chat_template":"T"})");
  const Tokenizer tokenizer = read();
  EXPECT_EQ(tokenizer.bos_text(), "<s>");
  EXPECT_EQ(tokenizer.eos_text(), "</s>");
  EXPECT_EQ(tokenizer.chat_template(), "T");
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.encode("", kSpecial), (Ids{tokenizer.bos().value()}));
  EXPECT_EQ(tokenizer.end_tokens(), (Ids{tokenizer.eos().value(), tokenizer.id("<|end|>").value()}));
}

TEST_F(TokenizerDirectory, AddBosFalseWinsOverThePostProcessor) {
  fs::copy(kData / "llama3.json", directory_ / "tokenizer.json", fs::copy_options::overwrite_existing);
  write("tokenizer_config.json", R"({"bos_token":"<s>"})");
  EXPECT_TRUE(read().adds_bos());
  write("tokenizer_config.json", R"({"bos_token":"<s>","add_bos_token":false})");
  EXPECT_FALSE(read().adds_bos());
  EXPECT_EQ(read().encode("", kSpecial), Ids{});
}

TEST_F(TokenizerDirectory, SpecialTokensMapFillsWhatTheConfigLeavesOut) {
  write("special_tokens_map.json", R"({"bos_token":{"content":"<s>"},"eos_token":"</s>"})");
  EXPECT_EQ(read().bos_text(), "<s>");
  write("tokenizer_config.json", R"({"bos_token":"</s>"})");
  EXPECT_EQ(read().bos_text(), "</s>");
  EXPECT_EQ(read().eos_text(), "</s>");
}

TEST_F(TokenizerDirectory, TemplateComesFromTheMostSpecificFile) {
  write("tokenizer_config.json", R"({"chat_template":[{"name":"tool_use","template":"A"},
    {"name":"default","template":"B"}]})");
  EXPECT_EQ(read().chat_template(), "B");
  write("chat_template.json", R"({"chat_template":"C"})");
  EXPECT_EQ(read().chat_template(), "C");
  write("chat_template.jinja", "D");
  EXPECT_EQ(read().chat_template(), "D");
}

TEST_F(TokenizerDirectory, NamesTheFileAndKeyThatAreWrong) {
  write("tokenizer_config.json", R"({"bos_token":7})");
  try {
    read();
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_EQ(error.path(), (directory_ / "tokenizer_config.json").string());
    EXPECT_EQ(error.key(), "bos_token");
  }
  write("tokenizer_config.json", "{");
  EXPECT_THROW(read(), FormatError);
}

}  // namespace
}  // namespace memoir::text
