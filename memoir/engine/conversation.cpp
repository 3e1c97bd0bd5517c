#include "memoir/engine/conversation.h"

#include <algorithm>

#include <utility>

namespace memoir::engine {

std::vector<int> turn_ends(std::span<const TokenId> prompt, std::span<const TokenId> end_tokens) {
  std::vector<int> offsets;
  for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
    if (std::find(end_tokens.begin(), end_tokens.end(), prompt[i]) == end_tokens.end()) continue;
    offsets.push_back(static_cast<int>(i) + 1);
  }
  return offsets;
}

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
  prompt_text_ = template_.render(template_inputs(tokenizer_, messages_));
  text::Tokenizer::EncodeOptions options{.add_special = false, .parse_special = true};
  if (known_tokens_.empty() || !prompt_text_.starts_with(known_text_)) {
    prompt_tokens_ = tokenizer_.encode(prompt_text_, options);
  } else {
    options.previous = known_tokens_.back();
    prompt_tokens_ = known_tokens_;
    const std::string_view added = std::string_view(prompt_text_).substr(known_text_.size());
    const std::vector<TokenId> tokens = tokenizer_.encode(added, options);
    prompt_tokens_.insert(prompt_tokens_.end(), tokens.begin(), tokens.end());
  }
  return prompt_tokens_;
}

void Conversation::add_answer(const std::string& text, const std::vector<TokenId>& tokens) {
  const std::string raw_text = tokenizer_.decode(tokens, {.is_continuation = true});
  add_message("assistant", text);
  known_text_ = prompt_text_ + raw_text;
  known_tokens_ = prompt_tokens_;
  known_tokens_.insert(known_tokens_.end(), tokens.begin(), tokens.end());
}

}  // namespace memoir::engine
