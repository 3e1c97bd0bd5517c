#include "memoir/text/detokenizer.h"

#include <utility>

#include "memoir/text/tokenizer_parts.h"

namespace memoir::text {

StreamingDetokenizer::StreamingDetokenizer(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), stream_(tokenizer_.decoder()) {}

std::string StreamingDetokenizer::push(TokenId id) {
  tokenizer_.check(id, "push");
  if (!tokenizer_.parts_->vocabulary.has(id) || (skip_special_ && tokenizer_.is_special(id))) return {};
  return stream_.push(tokenizer_.decoder_input(id));
}

std::string StreamingDetokenizer::finish() {
  return stream_.finish();
}

}  // namespace memoir::text
