// Reads a tokenizer from a GGUF file's metadata, as llama.cpp does (src/llama-vocab.cpp).

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/base/gguf.h"
#include "memoir/base/types.h"
#include "memoir/text/byte_level.h"
#include "memoir/text/gguf_pretokenizers.h"
#include "memoir/text/tokenizer.h"
#include "memoir/text/tokenizer_parts.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

const std::string kPrefix = "tokenizer.ggml.";
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// tokenizer.ggml.token_type
enum class TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class GgufReader {
 public:
  explicit GgufReader(const GgufFile& file)
      : file_(file), parts_(std::make_shared<TokenizerParts>(file.path(), Overlap::kLongestFirst)) {}

  std::shared_ptr<TokenizerParts> read() {
    const std::string* model = file_.string(kPrefix + "model");
    if (model == nullptr) throw FormatError(file_.path(), kPrefix + "model", "is missing");
    is_scored_ = *model == "llama";
    if (!is_scored_ && *model != "gpt2" && *model != "gemma4") {
      throw UnsupportedError(file_.path(), kPrefix + "model", "the tokenizer \"" + *model + "\" is not known");
    }
    read_pre_tokenizer_name(*model);
    read_tokens();
    read_special_ids();
    settle_types();
    hide_special_tokens();
    if (is_scored_) {
      make_scored_model();
    } else {
      make_merge_model();
    }
    add_added_tokens();
    make_decoder();
    read_ends();
    if (const std::string* text = file_.string("tokenizer.chat_template")) parts_->chat_template = *text;
    return parts_;
  }

 private:
  const Vocabulary& vocabulary() const { return parts_->vocabulary; }
  TokenType& type(TokenId id) { return types_[static_cast<std::size_t>(id)]; }

  void read_pre_tokenizer_name(const std::string& model) {
    if (is_scored_) return;
    const std::string* name = file_.string(kPrefix + "pre");
    std::optional<GgufPreTokenizer> known;
    if (model == "gemma4") {
      known = gguf_pre_tokenizer("gemma4");
    } else if (name != nullptr) {
      known = gguf_pre_tokenizer(*name);
    }
    if (!known) {
      parts_->warnings.push_back(
          kPrefix + "pre: " + (name == nullptr ? "is missing" : "the pre-tokenizer \"" + *name + "\" is not known") +
          ", using \"default\": the tokens may differ from those the model was trained on");
      known = gguf_pre_tokenizer("default");
    }
    pre_ = std::move(*known);
  }

  void read_tokens() {
    const std::vector<std::string>* tokens = file_.strings(kPrefix + "tokens");
    if (tokens == nullptr || tokens->empty())
      throw FormatError(file_.path(), kPrefix + "tokens", "is missing or empty");
    if (tokens->size() > static_cast<std::size_t>(kMaxVocab))
      throw FormatError(file_.path(), kPrefix + "tokens", "has too many entries");
    parts_->vocabulary.reserve(tokens->size());
    std::size_t n_repeated = 0;
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      const std::string& text = (*tokens)[i];
      if (vocabulary().id(text)) ++n_repeated;
      parts_->vocabulary.add(text.empty() ? "[EMPTY_" + std::to_string(i) + "]" : text, static_cast<TokenId>(i));
    }
    if (n_repeated > 0) {
      parts_->warnings.push_back(kPrefix + "tokens: " + std::to_string(n_repeated) +
                                 " texts have more than one id; the last one is used");
    }
    read_types(tokens->size());
  }

  void read_types(std::size_t n_tokens) {
    types_.assign(n_tokens, TokenType::kNormal);
    const std::vector<std::int64_t>* types = file_.integers(kPrefix + "token_type");
    if (types == nullptr) return;
    if (types->size() < n_tokens) {
      throw FormatError(file_.path(), kPrefix + "token_type", "has fewer entries than " + kPrefix + "tokens");
    }
    for (std::size_t i = 0; i < n_tokens; ++i) {
      const std::int64_t type_number = (*types)[i];
      const bool known = type_number >= 1 && type_number <= 6;
      types_[i] = known ? static_cast<TokenType>(type_number) : TokenType::kUnused;
    }
  }

  std::optional<TokenId> special_id(const std::string& name, std::optional<TokenId> otherwise = std::nullopt) {
    const std::optional<std::int64_t> value = file_.integer(kPrefix + name);
    const auto n_tokens = static_cast<std::int64_t>(vocabulary().size());
    if (!value) return otherwise && *otherwise < n_tokens ? otherwise : std::nullopt;
    // -1 or its unsigned form means "none"; other ids outside happen in published files and mean nothing.
    if (*value >= 0 && *value < n_tokens) return static_cast<TokenId>(*value);
    parts_->warnings.push_back(kPrefix + name + ": the id " + std::to_string(*value) + " is outside the vocabulary");
    return std::nullopt;
  }

  void read_special_ids() {
    const auto scored = [&](TokenId id) { return is_scored_ ? std::optional<TokenId>(id) : std::nullopt; };
    parts_->bos = special_id("bos_token_id", scored(1));
    parts_->eos = special_id("eos_token_id", scored(2));
    unk_ = special_id("unknown_token_id", scored(0));
    for (const char* name : {"eot_token_id", "eom_token_id"}) {
      if (const std::optional<TokenId> id = special_id(name)) parts_->end_tokens.push_back(*id);
    }
    const bool add_bos = file_.boolean(kPrefix + "add_bos_token").value_or(is_scored_ || pre_.add_bos);
    const bool add_eos = file_.boolean(kPrefix + "add_eos_token").value_or(false);
    if ((add_bos || pre_.whole_newlines) && parts_->bos) parts_->prefix.push_back(*parts_->bos);
    if (add_eos && parts_->eos) parts_->suffix.push_back(*parts_->eos);
  }

  // Files mark some tokens wrongly; these corrections are llama.cpp's.
  void settle_types() {
    const bool gemma4 = vocabulary().id("<|tool_response>").has_value();
    for (TokenId id = 0; id < vocabulary().size(); ++id) {
      const std::string& text = vocabulary().text(id);
      if (is_well_known_end(text) && !(gemma4 && text == "</s>") && type(id) != TokenType::kUnknown) {
        type(id) = TokenType::kControl;
      }
    }
    // What a model writes in the open between <|start|> and <|end|> must be seen by whoever reads its answer.
    for (const char* text : {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}) {
      if (const std::optional<TokenId> id = vocabulary().id(text)) type(*id) = TokenType::kUserDefined;
    }
  }

  // Control tokens are found where parse_special asks for them and nowhere else (as in SentencePiece; in llama.cpp
  // merges may lead to one), so that no text can forge them. Unknown and byte tokens have no text of their own.
  void hide_special_tokens() {
    for (TokenId id = 0; id < vocabulary().size(); ++id) {
      if (type(id) == TokenType::kControl || type(id) == TokenType::kUnknown || type(id) == TokenType::kByte) {
        parts_->vocabulary.hide(id);
      }
    }
  }

  void make_scored_model() {
    std::vector<float> scores;
    if (const std::vector<double>* values = file_.numbers(kPrefix + "scores")) {
      scores.assign(values->begin(), values->end());
    }
    if (scores.size() < static_cast<std::size_t>(vocabulary().size())) {
      throw FormatError(file_.path(), kPrefix + "scores", "is missing or has fewer entries than " + kPrefix + "tokens");
    }
    add_space_ = file_.boolean(kPrefix + "add_space_prefix").value_or(true);
    if (add_space_) parts_->normalizer.add({.kind = NormalizerStep::Kind::kPrepend, .content = " "});
    escape_spaces();
    parts_->score_bpe.emplace(parts_->vocabulary, std::move(scores), unk_);
  }

  void escape_spaces() {
    parts_->normalizer.add(
        {.kind = NormalizerStep::Kind::kReplace, .pattern = " ", .content = std::string(kSpaceMark)});
  }

  void make_merge_model() {
    const std::vector<std::string>* merges = file_.strings(kPrefix + "merges");
    if (merges == nullptr) throw FormatError(file_.path(), kPrefix + "merges", "is missing");
    if (pre_.escape_spaces) escape_spaces();
    if (pre_.digit_groups) {
      parts_->pre_tokenizer.add({.kind = PreTokenizerStep::Kind::kSplit, .finder = numbers_in_threes});
    }
    for (const std::string& pattern : pre_.patterns) {
      parts_->pre_tokenizer.add({.kind = PreTokenizerStep::Kind::kSplit,
                                 .finder = linear_form(pattern),
                                 .regex = Regex(pattern, {file_.path(), kPrefix + "pre"})});
    }
    if (!pre_.escape_spaces) parts_->pre_tokenizer.add({.kind = PreTokenizerStep::Kind::kByteLevel});

    MergeBpeOptions options;
    options.ignore_merges = pre_.ignore_merges;
    options.whole_newlines = pre_.whole_newlines;
    options.byte_fallback = pre_.escape_spaces;
    options.unknown_blocks_merges = true;
    parts_->merge_bpe.emplace(parts_->vocabulary, std::move(options));
    parts_->merge_bpe->reserve_merges(merges->size());
    add_merges(*merges);
  }

  void add_merges(const std::vector<std::string>& merges) {
    std::size_t n_missing = 0;
    for (const std::string& merge : merges) {
      const std::size_t space = merge.find(' ', 1);
      if (space == std::string::npos) {
        ++n_missing;
        continue;
      }
      const std::string_view left = std::string_view(merge).substr(0, space);
      const std::string_view right = std::string_view(merge).substr(space + 1);
      const std::optional<TokenId> left_id = vocabulary().id(left);
      const std::optional<TokenId> right_id = vocabulary().id(right);
      const std::optional<TokenId> merged_id = vocabulary().id(std::string(left).append(right));
      if (left_id && right_id && merged_id) {
        parts_->merge_bpe->add_merge(*left_id, *right_id, *merged_id, false);
      } else {
        ++n_missing;
      }
    }
    if (n_missing > 0) {
      parts_->warnings.push_back(kPrefix + "merges: " + std::to_string(n_missing) +
                                 " name tokens that the vocabulary lacks and are left out");
    }
  }

  // Phi-3's files were made from a tokenizer whose special tokens take the white space behind them.
  bool takes_space_behind(const std::string& text) const {
    const std::string* name = file_.string("general.name");
    if (name == nullptr || text == "<unk>" || text == "<s>" || text == "<|endoftext|>") return false;
    std::string lower = *name;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return lower.find("phi-3") != std::string::npos || lower.find("phi3") != std::string::npos;
  }

  void add_added_tokens() {
    parts_->special.resize(types_.size());
    for (TokenId id = 0; id < vocabulary().size(); ++id) {
      const bool special = type(id) == TokenType::kControl || type(id) == TokenType::kUnknown;
      parts_->special[static_cast<std::size_t>(id)] = special;
      const std::string& text = vocabulary().text(id);
      if (!(special || type(id) == TokenType::kUserDefined)) continue;
      if (text.size() > AddedTokens::kMaxPatternBytes) {
        throw UnsupportedError(file_.path(), kPrefix + "tokens", "a special token has more than 1024 bytes");
      }
      parts_->added_raw.add({.id = id, .pattern = text, .rstrip = takes_space_behind(text), .special = special});
    }
  }

  void make_decoder() {
    parts_->decoder_inputs.reserve(types_.size());
    for (TokenId id = 0; id < vocabulary().size(); ++id) parts_->decoder_inputs.push_back(bytes_of(id));
    parts_->decoder.add({.kind = DecoderStep::Kind::kJoinBytes});
    if (add_space_) parts_->decoder.add({.kind = DecoderStep::Kind::kStrip, .content = " ", .n_start = 1});
  }

  std::string bytes_of(TokenId id) {
    const std::string& text = vocabulary().text(id);
    switch (type(id)) {
      case TokenType::kUnused:
        return {};
      case TokenType::kByte:
        if (const auto byte = byte_of_token_text(text)) return std::string(1, static_cast<char>(*byte));
        return text;
      case TokenType::kNormal:
        break;
      default:
        return text;
    }
    if (!is_scored_ && !pre_.escape_spaces) return byte_level_text(text);
    std::string plain;
    for (std::size_t pos = 0; pos < text.size();) {
      if (text.compare(pos, kSpaceMark.size(), kSpaceMark) == 0) {
        plain += ' ';
        pos += kSpaceMark.size();
      } else {
        plain += text[pos++];
      }
    }
    return plain;
  }

  // Characters outside the byte alphabet, which no well-made file has, stand for themselves.
  static std::string byte_level_text(const std::string& text) {
    if (auto bytes = byte_level_bytes(text)) return *bytes;
    std::string result;
    for (std::size_t pos = 0; pos < text.size();) {
      const std::string_view c = std::string_view(text).substr(pos, utf8::decode(text, pos).n_bytes);
      result += byte_level_bytes(c).value_or(std::string(c));
      pos += c.size();
    }
    return result;
  }

  void read_ends() {
    std::vector<bool> may_end(types_.size());
    for (TokenId id = 0; id < vocabulary().size(); ++id) {
      may_end[static_cast<std::size_t>(id)] = type(id) == TokenType::kControl;
    }
    collect_end_tokens(*parts_, may_end);
  }

  const GgufFile& file_;
  std::shared_ptr<TokenizerParts> parts_;
  std::optional<TokenId> unk_;
  bool is_scored_ = false;
  bool add_space_ = false;
  GgufPreTokenizer pre_;
  std::vector<TokenType> types_;
};

}  // namespace

Tokenizer Tokenizer::from_gguf(const GgufFile& file) {
  return Tokenizer(GgufReader(file).read());
}

}  // namespace memoir::text
