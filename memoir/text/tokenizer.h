#pragma once

// Text to token ids and back, from tokenizer.json (BPE models) or from a GGUF file's metadata.
//
// The references are the `tokenizers` library for tokenizer.json and llama.cpp for GGUF: the same ids for the same
// text. Text is UTF-8. Bytes that are not are replaced by U+FFFD before encoding, one per maximal bad sequence; nothing
// is refused. Encoding takes O(n log n) for n bytes, also without a space among them.
//
// Ownership: a Tokenizer is a handle on immutable data; copies are cheap and share it.
// Threads: every const member from any number of threads at once. Scope: models WordPiece, Unigram and WordLevel,
// truncation and padding are not here.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/types.h"

namespace memoir {
class GgufFile;
}

namespace memoir::text {

struct TokenizerParts;
class Decoder;

class Tokenizer {
 public:
  /// Reads a Hugging Face directory: tokenizer.json, and where they exist tokenizer_config.json and
  /// special_tokens_map.json (bos, eos, add_bos_token, add_eos_token) and the chat template, taken from
  /// chat_template.jinja, else chat_template.json, else tokenizer_config.json (of several the one named "default").
  /// An add_bos_token or add_eos_token in tokenizer_config.json wins over the post-processor.
  /// Throws FileError (tokenizer.json is missing), FormatError or UnsupportedError (path and key).
  static Tokenizer from_directory(const std::filesystem::path& directory);

  /// Reads the text of a tokenizer.json. bos(), eos() and the like stay empty: that file does not name them.
  /// path_for_messages stands for the file in errors. Throws FormatError or UnsupportedError.
  static Tokenizer from_json(std::string_view tokenizer_json, std::string path_for_messages);

  /// Reads the metadata "tokenizer.*": models "gpt2" (BPE by merges) and "llama" (SentencePiece BPE by scores).
  /// An unknown pre-tokenizer name falls back to llama.cpp's "default" and leaves a line in warnings().
  /// Throws FormatError or UnsupportedError (the file's path and the metadata key).
  static Tokenizer from_gguf(const GgufFile& file);

  struct EncodeOptions {
    /// Adds what the model wants around a text: the post-processor's special tokens, BOS, EOS.
    bool add_special = false;
    /// The text of a special token becomes its id. Without it such text is encoded like any other, so that a user's
    /// words can't forge a turn. Added tokens that are not special are always recognized.
    bool parse_special = false;
    /// The token that stands before the text, where the text goes on behind others: there is no BOS then, and the space
    /// that SentencePiece puts before a text only where the whole has one, which is behind some added tokens. So a text
    /// cut between two of its tokens has the ids of the whole.
    std::optional<TokenId> previous = std::nullopt;
  };

  /// The ids of a text. Throws UnsupportedError if a pattern of the file needs more backtracking than the limit allows,
  /// or a step makes the text longer than replace.h allows (path and key); std::invalid_argument if `previous` is
  /// outside [0, n_vocab()).
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const;
  std::vector<TokenId> encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  struct DecodeOptions {
    /// Special tokens leave no text.
    bool skip_special = false;
    /// Other tokens stand before these: the space that SentencePiece puts before a text, and decoding takes away, is
    /// not looked for. So the texts of parts, joined, are the text of the whole.
    bool is_continuation = false;
  };

  /// The text of a sequence, always valid UTF-8: bytes that form no character become U+FFFD. An id without a token (a
  /// hole in the numbering) leaves no text.
  /// Throws std::invalid_argument for an id outside [0, n_vocab()), UnsupportedError as encode().
  std::string decode(std::span<const TokenId> ids, DecodeOptions options) const;
  std::string decode(std::span<const TokenId> ids) const { return decode(ids, DecodeOptions{}); }

  /// The bytes that a token stands for in the middle of a text; they may be part of a character. For a special token
  /// its text. Throws as decode().
  std::string piece(TokenId id) const;

  /// The token as the vocabulary writes it ("Ġthe", "▁the", "<0x0A>"), "" for a hole.
  /// Throws std::invalid_argument for an id outside [0, n_vocab()).
  const std::string& token_text(TokenId id) const;

  /// The id of a token as the vocabulary writes it.
  std::optional<TokenId> id(std::string_view token_text) const;

  /// One more than the largest id.
  int n_vocab() const;

  /// Special tokens: those that tokenizer.json marks so; control and unknown tokens of a GGUF. False for ids outside.
  bool is_special(TokenId id) const;

  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;

  /// Their texts, as chat templates want them: "" where there is none.
  std::string bos_text() const;
  std::string eos_text() const;

  /// Whether add_special puts BOS in front.
  bool adds_bos() const;

  /// Every token known to end a turn or a text, in ascending order: eos, the file's end-of-turn and end-of-message ids,
  /// and special tokens with a well-known text such as <|im_end|> or <end_of_turn>. May be empty.
  const std::vector<TokenId>& end_tokens() const;

  /// The chat template's source (Jinja).
  const std::optional<std::string>& chat_template() const;

  /// Takes another one instead, for this tokenizer and copies made of it.
  void use_chat_template(std::string source) { other_template_ = std::move(source); }

  /// Remarks from reading the file that a person should see, one line each.
  const std::vector<std::string>& warnings() const;

 private:
  friend class StreamingDetokenizer;

  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts);
  void check(TokenId id, const char* function) const;
  const Decoder& decoder() const;
  std::string_view decoder_input(TokenId id) const;

  std::shared_ptr<const TokenizerParts> parts_;
  std::optional<std::string> other_template_;
};

}  // namespace memoir::text
