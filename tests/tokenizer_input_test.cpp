// What tokenizer files can get wrong: each gives an error with path and key, or a tokenizer that works; never a crash.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "damaged_bytes.h"
#include "gguf_builder.h"
#include "memoir/base/error.h"
#include "memoir/base/gguf.h"
#include "memoir/text/detokenizer.h"
#include "memoir/text/tokenizer.h"

namespace memoir::text {
namespace {

using Ids = std::vector<TokenId>;

Tokenizer read(std::string_view text) {
  return Tokenizer::from_json(text, "dir/tokenizer.json");
}

// A tokenizer.json with this model and these further members.
std::string with_model(const std::string& model, const std::string& more = "") {
  return R"({"model":{"type":"BPE",)" + model + "}" + (more.empty() ? "" : "," + more) + "}";
}

std::string with(const std::string& more) {
  return with_model(R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"])", more);
}

// The key that a FormatError or UnsupportedError names.
template <typename Error>
std::string key_of(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.path(), "dir/tokenizer.json");
    return error.key();
  }
  return "no error";
}

TEST(TokenizerJson, TheSmallestFileWorks) {
  const Tokenizer tokenizer = read(with(""));
  EXPECT_EQ(tokenizer.encode("abba"), (Ids{2, 1, 0}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 1, 0}), "ab b a");  // tokens joined by spaces: no decoder
}

TEST(TokenizerJson, WhatIsNotATokenizerIsRefused) {
  for (const char* text : {"", " ", "{", "nonsense", "\xFF\xFE", "{}", "[]", "null", "7", "\"x\"", R"({"model":7})",
                           R"({"model":{}})", R"({"model":{"type":"BPE"}})"}) {
    EXPECT_THROW(read(text), InputError) << text;
  }
}

TEST(TokenizerJson, DeepNestingIsRefusedWithoutExhaustingTheStack) {
  EXPECT_THROW(read(std::string(200'000, '[')), FormatError);
  EXPECT_THROW(read(std::string(200'000, '[') + std::string(200'000, ']')), FormatError);
  for (const char* component : {"normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
    const std::string list = std::string(component) == "normalizer"      ? "normalizers"
                             : std::string(component) == "pre_tokenizer" ? "pretokenizers"
                             : std::string(component) == "decoder"       ? "decoders"
                                                                         : "processors";
    std::string nested;
    for (int i = 0; i < 5000; ++i) nested += R"({"type":"Sequence",")" + list + "\":[";
    for (int i = 0; i < 5000; ++i) nested += "]}";
    EXPECT_THROW(read(with("\"" + std::string(component) + "\":" + nested)), FormatError) << component;
  }
}

TEST(TokenizerJson, WrongTypesNameTheirKey) {
  EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":[],"merges":[])")), "model.vocab");
  EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":{"a":"0"},"merges":[])")), "model.vocab.a");
  EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":{"a":0.5},"merges":[])")), "model.vocab.a");
  EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":{"a":0},"merges":{})")), "model.merges");
  EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":{"a":0},"merges":[7])")), "model.merges[0]");
  EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":{"a":0},"merges":[["a"]])")), "model.merges[0]");
  EXPECT_EQ(key_of<FormatError>(with(R"("normalizer":[])")), "normalizer");
  EXPECT_EQ(key_of<FormatError>(with(R"("pre_tokenizer":{"type":7})")), "pre_tokenizer.type");
  EXPECT_EQ(key_of<FormatError>(with(R"("added_tokens":[{"id":9}])")), "added_tokens[0]");
  EXPECT_EQ(key_of<FormatError>(with(R"("decoder":{"type":"Strip","content":" ","start":-1,"stop":0})")),
            "decoder.start");
}

TEST(TokenizerJson, MergesOfMissingTokensAreRefused) {
  for (const char* merge : {"\"a c\"", "\"c a\"", "\"b a\"", "\"ab\"", "\"a b a\"", "[\"a\",\"c\"]", "\"\""}) {
    EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":{"a":0,"b":1,"ab":2},"merges":[)" + std::string(merge) + "]")),
              "model.merges[0]")
        << merge;
  }
}

TEST(TokenizerJson, IdsThatCantBeAreRefused) {
  for (const char* id : {"-1", "2147483647", "2147483648", "4294967295", "18446744073709551615", "1e3", "300000"}) {
    const std::string model = R"("vocab":{"a":)" + std::string(id) + R"(},"merges":[])";
    EXPECT_EQ(key_of<FormatError>(with_model(model)), "model.vocab.a") << id;
    EXPECT_EQ(key_of<FormatError>(with(R"("added_tokens":[{"content":"x","id":)" + std::string(id) + "}]")),
              "added_tokens[0].id")
        << id;
  }
  EXPECT_EQ(key_of<FormatError>(with_model(R"("vocab":{"a":1,"b":1},"merges":[])")), "model.vocab");
}

TEST(TokenizerJson, HolesInTheNumberingLeaveNoText) {
  const Tokenizer tokenizer =
      read(with_model(R"("vocab":{"a":0,"b":1000},"merges":[])", R"("decoder":{"type":"Fuse"})"));
  EXPECT_EQ(tokenizer.n_vocab(), 1001);
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{0, 1000}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 500, 1000}), "ab");
  EXPECT_EQ(tokenizer.token_text(500), "");
  EXPECT_EQ(tokenizer.piece(500), "");
}

TEST(TokenizerJson, UnknownTypesAreUnsupportedAndNamed) {
  EXPECT_EQ(key_of<UnsupportedError>(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})"), "model.type");
  EXPECT_EQ(key_of<UnsupportedError>(R"({"model":{"type":"Unigram","vocab":[["a",0.0]]}})"), "model.type");
  EXPECT_EQ(key_of<UnsupportedError>(with(R"("normalizer":{"type":"BertNormalizer"})")), "normalizer");
  EXPECT_EQ(key_of<UnsupportedError>(
                with(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"UnicodeScripts"}]})")),
            "pre_tokenizer.pretokenizers[0]");
  EXPECT_EQ(key_of<UnsupportedError>(with(R"("decoder":{"type":"WordPiece"})")), "decoder");
  EXPECT_EQ(key_of<UnsupportedError>(with(R"("post_processor":{"type":"Strange"})")), "post_processor");
}

// Steps that each make the text eight times as long: 40 of them would make 2^120 bytes of one.
std::string chain(const std::string& component, const std::string& list, const std::string& step, int n_steps) {
  std::string steps;
  for (int i = 0; i < n_steps; ++i) steps += (i > 0 ? "," : "") + step;
  return with("\"" + component + R"(":{"type":"Sequence",")" + list + "\":[" + steps + "]}");
}

const std::string kOctupled = R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaa"})";
const std::string kOctupledByRegex = R"({"type":"Replace","pattern":{"Regex":"a"},"content":"aaaaaaaa"})";

template <typename Use>
std::string key_refused(Use use) {
  try {
    use();
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(error.path(), "dir/tokenizer.json");
    return error.key();
  }
  return "no error";
}

TEST(TokenizerJson, StepsThatMultiplyTheTextAreRefusedAndNamed) {
  const std::string text(1000, 'a');
  for (const std::string& step : {kOctupled, kOctupledByRegex}) {
    const Tokenizer twice = read(chain("normalizer", "normalizers", step, 1));
    EXPECT_EQ(twice.encode(text).size(), 8000U);
    const Tokenizer encoder = read(chain("normalizer", "normalizers", step, 40));
    EXPECT_EQ(key_refused([&] { encoder.encode(text); }), "normalizer.normalizers[1]");
    const Tokenizer decoder = read(chain("decoder", "decoders", step, 40));
    // The first token alone may become 32 * (1 + 1) bytes, which two steps make.
    EXPECT_EQ(key_refused([&] { decoder.decode(Ids(1000, 0)); }), "decoder.decoders[2]");
    EXPECT_EQ(key_refused([&] { decoder.piece(0); }), "decoder.decoders[2]");
  }
  const std::string long_start = R"({"type":"Prepend","prepend":")" + std::string(10'000, 'a') + "\"}";
  const Tokenizer prepending = read(chain("normalizer", "normalizers", long_start, 1));
  EXPECT_EQ(key_refused([&] { prepending.encode("b"); }), "normalizer.normalizers[0]");
  // Two bytes of GPT-2's alphabet for each byte of a character that is not ASCII, over and over.
  const std::string bytes = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})";
  const Tokenizer doubling = read(chain("pre_tokenizer", "pretokenizers", bytes, 40));
  EXPECT_EQ(key_refused([&] { doubling.encode("\u00E9\u00E9\u00E9"); }), "pre_tokenizer.pretokenizers[5]");
}

TEST(TokenizerJson, AStreamThatRefusedATextBeginsAnew) {
  const Tokenizer tokenizer = read(chain("decoder", "decoders", kOctupled, 40));
  StreamingDetokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(1), "b");
  EXPECT_THROW(stream.push(0), UnsupportedError);
  EXPECT_EQ(stream.push(1) + stream.finish(), "b");
}

TEST(TokenizerJson, TooManyStepsAreRefused) {
  for (const auto& [component, list] : {std::pair("normalizer", "normalizers"), {"decoder", "decoders"}}) {
    const std::string step = R"({"type":"Replace","pattern":{"String":"x"},"content":"y"})";
    EXPECT_NO_THROW(read(chain(component, list, step, 256)));
    EXPECT_EQ(key_of<UnsupportedError>(chain(component, list, step, 200'000)),
              std::string(component) + "." + list + "[256]");
  }
  EXPECT_EQ(key_of<UnsupportedError>(chain("pre_tokenizer", "pretokenizers", R"({"type":"WhitespaceSplit"})", 300)),
            "pre_tokenizer.pretokenizers[256]");
}

// What python's json module writes, and no JSON: the messages are memoir's own.
TEST(TokenizerJson, WhatIsNoJsonIsSaidWithTheFile) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{", "is not JSON: "}, {"\"\xFF\"", "is not JSON: "}, {"{\"a\":1e999}", "number overflow"}};
  for (const auto& [text, reason] : wrong) {
    try {
      read(text);
      ADD_FAILURE() << text;
    } catch (const FormatError& error) {
      EXPECT_EQ(std::string(error.what()).find("dir/tokenizer.json: " + reason), 0U) << error.what();
      EXPECT_EQ(std::string(error.what()).find("exception"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(read(with(R"("note":[NaN,Infinity])")).encode("ab"), (Ids{2}));
}

TEST(TokenizerJson, PatternsThatCantBeCompiledAreRefused) {
  for (const char* pattern : {"(", "[a", "a{2,1}", "*", "\\\\p{Nonsense}", "(?<n", "[[[[[[[[[[[[[[[[[[[[a"}) {
    const std::string text = with(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":")" +
                                  std::string(pattern) + R"("}})");
    EXPECT_EQ(key_of<FormatError>(text), "pre_tokenizer.pattern.Regex") << pattern;
  }
}

TEST(TokenizerJson, APatternThatBacktracksForeverIsAnError) {
  const Tokenizer tokenizer =
      read(with(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a|aa|b?a)+[xy]"}})"));
  EXPECT_THROW(tokenizer.encode(std::string(200, 'a') + "b"), UnsupportedError);
}

TEST(TokenizerJson, TemplateIdsOutsideTheVocabularyAreRefused) {
  EXPECT_EQ(key_of<FormatError>(with(R"("post_processor":{"type":"TemplateProcessing",
    "single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
    "special_tokens":{"x":{"id":"x","ids":[77],"tokens":["x"]}}})")),
            "post_processor.special_tokens.x.ids");
}

// GGUF

test::GgufBuilder scored_file() {
  test::GgufBuilder file;
  file.string("tokenizer.ggml.model", "llama");
  file.strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a", "b", "ab", "\xE2\x96\x81"});
  return file;
}

void add_scores(test::GgufBuilder& file, const std::vector<float>& scores) {
  file.entry("tokenizer.ggml.scores", 9, [&](test::LittleEndianWriter& out) {
    out.u32(6).u64(scores.size());
    for (const float score : scores) out.value(score);
  });
}

test::GgufBuilder merged_file(std::string_view pre) {
  test::GgufBuilder file;
  file.string("tokenizer.ggml.model", "gpt2");
  if (!pre.empty()) file.string("tokenizer.ggml.pre", pre);
  file.strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<x>", "<|im_end|>"});
  file.strings("tokenizer.ggml.merges", {"a b"});
  return file;
}

Tokenizer open(const test::GgufBuilder& file) {
  return Tokenizer::from_gguf(GgufFile(memory_source("file.gguf", file.bytes())));
}

TEST(TokenizerGguf, MissingPartsAreRefused) {
  EXPECT_THROW(open(test::GgufBuilder()), FormatError);
  EXPECT_THROW(open(scored_file()), FormatError);  // no scores
  test::GgufBuilder short_scores = scored_file();
  add_scores(short_scores, {0, 0});
  EXPECT_THROW(open(short_scores), FormatError);
  test::GgufBuilder no_merges;
  no_merges.string("tokenizer.ggml.model", "gpt2").strings("tokenizer.ggml.tokens", {"a"});
  EXPECT_THROW(open(no_merges), FormatError);
  test::GgufBuilder short_types = merged_file("gpt-2");
  short_types.integers("tokenizer.ggml.token_type", {1, 1});
  EXPECT_THROW(open(short_types), FormatError);
  test::GgufBuilder other_model;
  other_model.string("tokenizer.ggml.model", "bert").strings("tokenizer.ggml.tokens", {"a"});
  EXPECT_THROW(open(other_model), UnsupportedError);
}

TEST(TokenizerGguf, UnknownPreTokenizersFallBackWithAWarning) {
  EXPECT_TRUE(open(merged_file("gpt-2")).warnings().empty());
  EXPECT_EQ(open(merged_file("never-heard-of")).warnings().size(), 1U);
  EXPECT_EQ(open(merged_file("")).warnings().size(), 1U);
  EXPECT_EQ(open(merged_file("never-heard-of")).encode("abba"), (Ids{2, 1, 0}));
}

TEST(TokenizerGguf, SpecialIdsOutsideTheVocabularyAreLeftOutWithAWarning) {
  test::GgufBuilder file = merged_file("gpt-2");
  file.integer("tokenizer.ggml.bos_token_id", 4000000000U).integer("tokenizer.ggml.eos_token_id", 5);
  file.boolean("tokenizer.ggml.add_bos_token", true);
  const Tokenizer tokenizer = open(file);
  EXPECT_FALSE(tokenizer.bos());
  EXPECT_FALSE(tokenizer.eos());
  EXPECT_EQ(tokenizer.warnings().size(), 2U);
  EXPECT_EQ(tokenizer.encode("a", {.add_special = true}), (Ids{0}));
}

TEST(TokenizerGguf, MergesOfMissingTokensAreLeftOutWithAWarning) {
  test::GgufBuilder file;
  file.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt-2");
  file.strings("tokenizer.ggml.tokens", {"a", "b", "ab"}).strings("tokenizer.ggml.merges", {"a b", "x y", "", "a"});
  const Tokenizer tokenizer = open(file);
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{2}));
  EXPECT_EQ(tokenizer.warnings().size(), 1U);
}

// llama.cpp drops a character that no token has after merging, so that its neighbours stay apart.
TEST(TokenizerGguf, UnknownCharactersAreDroppedAndKeepNeighboursApart) {
  EXPECT_EQ(open(merged_file("gpt-2")).encode("aéb"), (Ids{0, 1}));
}

TEST(TokenizerGguf, TypesSayWhatIsSpecialAndWhatIsFound) {
  test::GgufBuilder file = merged_file("gpt-2");
  file.integers("tokenizer.ggml.token_type", {1, 1, 1, 4, 1});  // <x> is user-defined, <|im_end|> wrongly normal
  const Tokenizer tokenizer = open(file);
  EXPECT_EQ(tokenizer.encode("a<x>b"), (Ids{0, 3, 1}));
  EXPECT_FALSE(tokenizer.is_special(3));
  EXPECT_TRUE(tokenizer.is_special(4));
  EXPECT_EQ(tokenizer.end_tokens(), (Ids{4}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 3, 4}), "a<x><|im_end|>");
  EXPECT_EQ(tokenizer.decode(Ids{0, 3, 4}, {.skip_special = true}), "a<x>");
}

TEST(TokenizerGguf, SpacePrefixIsAddedAndTakenBack) {
  test::GgufBuilder file = scored_file();
  add_scores(file, {0, 0, 0, -1, -2, -3, -4});
  file.integers("tokenizer.ggml.token_type", {2, 3, 3, 1, 1, 1, 1});
  EXPECT_EQ(open(file).encode("ab"), (Ids{6, 5}));
  EXPECT_EQ(open(file).encode("a</s>b", {.parse_special = true}), (Ids{6, 3, 2, 6, 4}));
  EXPECT_EQ(open(file).decode(Ids{6, 5}), "ab");
  EXPECT_EQ(open(file).encode("ab", {.previous = 3}), (Ids{5}));
  EXPECT_EQ(open(file).encode("ab", {.previous = 2}), (Ids{6, 5}));  // behind </s> there is a space, as in llama.cpp
  EXPECT_EQ(open(file).decode(Ids{6, 5}, {.is_continuation = true}), " ab");
  EXPECT_EQ(open(file).decode(Ids{1, 6, 5}, {.skip_special = true}), "ab");
  EXPECT_EQ(open(file).encode("\xC3\xA9"), (Ids{6, 0, 0}));  // no byte tokens: unknown, once a byte
  file.boolean("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(open(file).encode("ab"), (Ids{5}));
  EXPECT_EQ(open(file).decode(Ids{6, 5}), " ab");
}

TEST(TokenizerGguf, DamagedFilesGiveAnErrorOrATokenizer) {
  test::GgufBuilder file = merged_file("gpt-2");
  file.integers("tokenizer.ggml.token_type", {1, 1, 1, 4, 3}).integer("tokenizer.ggml.eos_token_id", 4);
  const auto use = [](const std::vector<std::byte>& bytes) {
    try {
      const Tokenizer tokenizer = Tokenizer::from_gguf(GgufFile(test::source_of(bytes)));
      const Ids ids = tokenizer.encode("ab<x> 12<|im_end|>", {.add_special = true, .parse_special = true});
      tokenizer.decode(ids);
    } catch (const InputError&) {
    }
  };
  test::for_each_truncation(file.bytes(), use);
  test::for_each_damage(file.bytes(), use);
}

}  // namespace
}  // namespace memoir::text
