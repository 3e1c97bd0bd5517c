#pragma once

// From what a user gives to the tokens that a model continues.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <optional>

#include "memoir/base/types.h"
#include "memoir/model/package.h"
#include "memoir/text/chat_template.h"
#include "memoir/text/tokenizer.h"

namespace memoir::cli {

/// The messages in the tokenizer's chat template. Throws UnsupportedError naming `model` if it has none, and what
/// rendering throws.
std::vector<TokenId> chat_tokens(const text::Tokenizer& tokenizer, const text::ChatTemplate::Inputs& inputs,
                                 const std::string& model);

/// What goes before every conversation with a model.
struct Preface {
  std::optional<std::string> system;
  std::vector<model::ModelfileMessage> messages;

  /// Nothing, or what the package says.
  static Preface of(const std::optional<model::Package>& package);
};

/// The conversation (an array of messages) behind the preface: a system message of its own stands for the preface's.
nlohmann::ordered_json with_preface(const Preface& preface, const nlohmann::ordered_json& conversation);

/// The text as one user's message where the tokenizer has a chat template; else, and where it is raw, as it is.
std::vector<TokenId> text_tokens(const text::Tokenizer& tokenizer, const std::string& text, bool is_raw,
                                 const Preface& preface = {});

}  // namespace memoir::cli
