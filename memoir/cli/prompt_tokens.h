#pragma once

// From what a user gives to the tokens that a model continues.

#include <string>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/text/chat_template.h"
#include "memoir/text/tokenizer.h"

namespace memoir::cli {

/// The messages in the tokenizer's chat template. Throws UnsupportedError naming `model` if it has none, and what
/// rendering throws.
std::vector<TokenId> chat_tokens(const text::Tokenizer& tokenizer, const text::ChatTemplate::Inputs& inputs,
                                 const std::string& model);

/// The text as one user's message where the tokenizer has a chat template; else, and where it is raw, as it is.
std::vector<TokenId> text_tokens(const text::Tokenizer& tokenizer, const std::string& text, bool is_raw);

}  // namespace memoir::cli
