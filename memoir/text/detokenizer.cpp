#include "memoir/text/detokenizer.h"

#include <utility>

#include "memoir/text/tokenizer_parts.h"

namespace memoir::text {

StreamingDetokenizer::StreamingDetokenizer(Tokenizer tokenizer, Tokenizer::DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options), stream_(tokenizer_.decoder(), options.is_continuation) {}

std::string StreamingDetokenizer::push(TokenId id) {
  tokenizer_.check(id, "push");
  if (!tokenizer_.parts_->vocabulary.has(id) || (options_.skip_special && tokenizer_.is_special(id))) return {};
  return stream_.push(tokenizer_.decoder_input(id));
}

std::string StreamingDetokenizer::finish() {
  return stream_.finish();
}

}  // namespace memoir::text
