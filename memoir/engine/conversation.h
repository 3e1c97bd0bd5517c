#pragma once

// A chat as the model sees it: messages in, the tokens of the next prompt out, such that each prompt begins with the
// tokens of the one before and of its answer whenever the template allows.
//
// Encoding the rendered chat anew each turn is not enough: a model's own tokens for an answer need not be those the
// tokenizer would choose for its text, and one that differs makes everything behind it be computed again. So while the
// rendering continues the text of the last prompt and answer, only what is new is encoded. A template that rewrites
// earlier turns (drops thoughts, trims) falls back to encoding all; Session::reuse then keeps what still matches.
//
// The new part is encoded as what it is, a continuation: the spaces that a SentencePiece tokenizer puts before texts
// are where they are when all is encoded at once. The rendered chat is encoded with special tokens parsed, so a message
// that contains a special token's text contains the token.
//
// Ownership: refers to the tokenizer and template, which must outlive it. Threads: one at a time.

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/text/chat_template.h"
#include "memoir/text/tokenizer.h"

namespace memoir::engine {

class Conversation {
 public:
  Conversation(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template);

  /// Adds {"role": role, "content": content} to the messages.
  void add_message(const std::string& role, const std::string& content);

  /// The tokens of the chat so far and the beginning of an answer.
  /// Throws what ChatTemplate::render and Tokenizer::encode throw.
  std::vector<TokenId> prompt();

  /// Adds the answer to the last prompt(): its text as shown, and the tokens that the model really produced.
  /// Throws as Tokenizer::decode.
  void add_answer(const std::string& text, const std::vector<TokenId>& tokens);

  /// Takes the last message back (one that could not be answered).
  void drop_last_message();

  const nlohmann::ordered_json& messages() const { return messages_; }

 private:
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::string prompt_text_;  // of the last prompt()
  std::vector<TokenId> prompt_tokens_;
  std::string known_text_;  // the last prompt that was answered, and its answer
  std::vector<TokenId> known_tokens_;
};

/// The offsets behind those tokens of a prompt that end a turn, but for its last.
std::vector<int> turn_ends(std::span<const TokenId> prompt, std::span<const TokenId> end_tokens);

/// What a chat template needs to know of a model's tokenizer.
text::ChatTemplate::Inputs template_inputs(const text::Tokenizer& tokenizer, nlohmann::ordered_json messages);

}  // namespace memoir::engine
