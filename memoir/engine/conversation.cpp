#include "memoir/engine/conversation.h"

#include <utility>

namespace memoir::engine {

text::ChatTemplate::Inputs template_inputs(const text::Tokenizer& tokenizer, nlohmann::ordered_json messages) {
  text::ChatTemplate::Inputs inputs;
  inputs.messages = std::move(messages);
  if (tokenizer.bos()) inputs.bos_token = tokenizer.bos_text();
  if (tokenizer.eos()) inputs.eos_token = tokenizer.eos_text();
  return inputs;
}

Conversation::Conversation(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template)
    : tokenizer_(tokenizer), template_(chat_template) {}

void Conversation::add_message(const std::string& role, const std::string& content) {
  messages_.push_back({{"role", role}, {"content", content}});
}

void Conversation::drop_last_message() {
  if (!messages_.empty()) messages_.erase(messages_.size() - 1);
}

std::vector<TokenId> Conversation::prompt() {
  std::string text = template_.render(template_inputs(tokenizer_, messages_));
  const text::Tokenizer::EncodeOptions options{.add_special = false, .parse_special = true};
  if (known_tokens_.empty() || !text.starts_with(known_text_)) {
    known_tokens_ = tokenizer_.encode(text, options);
  } else {
    const std::vector<TokenId> added = tokenizer_.encode(std::string_view(text).substr(known_text_.size()), options);
    known_tokens_.insert(known_tokens_.end(), added.begin(), added.end());
  }
  known_text_ = std::move(text);
  return known_tokens_;
}

void Conversation::add_answer(const std::string& text, const std::vector<TokenId>& tokens,
                              const std::string& raw_text) {
  add_message("assistant", text);
  known_text_ += raw_text;
  known_tokens_.insert(known_tokens_.end(), tokens.begin(), tokens.end());
}

}  // namespace memoir::engine
