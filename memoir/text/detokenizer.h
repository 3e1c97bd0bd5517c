#pragma once

// Text from tokens as they are generated.
//
// push() returns only whole UTF-8 characters; all that push() and finish() return, joined, equals Tokenizer::decode of
// the same ids with the same options, in every case: characters spread over tokens, byte tokens, bad bytes, the leading
// space of SentencePiece. With a byte-fallback decoder of tokenizer.json a run of byte tokens appears when it ends,
// because tokenizers judges it as a whole. Threads: one at a time. Ownership: keeps its own handle on the tokenizer's
// data.

#include <string>

#include "memoir/base/types.h"
#include "memoir/text/decoder.h"
#include "memoir/text/tokenizer.h"

namespace memoir::text {

class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(Tokenizer tokenizer, Tokenizer::DecodeOptions options = {});

  /// The text that is certain after this token, possibly "".
  /// Throws std::invalid_argument for an id outside the vocabulary; the state is then as before. Throws
  /// UnsupportedError as Tokenizer::decode; the next push() then begins a new text.
  std::string push(TokenId id);

  /// The rest: "" or U+FFFD for bytes that never became a character. The next push() begins a new text, or another
  /// continuation. Throws UnsupportedError as push().
  std::string finish();

 private:
  Tokenizer tokenizer_;
  Tokenizer::DecodeOptions options_;
  DecodeStream stream_;
};

}  // namespace memoir::text
