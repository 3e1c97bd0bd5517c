#include "memoir/engine/text_stream.h"

#include <utility>

namespace memoir::engine {

TextStream::TextStream(const text::Tokenizer& tokenizer, std::vector<std::string> stop_strings)
    : detokenizer_(tokenizer, {.skip_special = true}), matcher_(std::move(stop_strings)) {}

TextStream::Piece TextStream::push(TokenId token) {
  return match(detokenizer_.push(token));
}

TextStream::Piece TextStream::finish() {
  Piece piece = match(detokenizer_.finish());
  piece.text += matcher_.finish();
  return piece;
}

TextStream::Piece TextStream::match(const std::string& text) {
  StopMatcher::Result result = matcher_.push(text);
  return {std::move(result.text), result.stop.has_value()};
}

}  // namespace memoir::engine
