#include "memoir/cli/prompt_tokens.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/engine/conversation.h"

namespace memoir::cli {

std::vector<TokenId> chat_tokens(const text::Tokenizer& tokenizer, const text::ChatTemplate::Inputs& inputs,
                                 const std::string& model) {
  if (!tokenizer.chat_template()) {
    throw UnsupportedError(model, "chat_template", "the model has none, so messages can't be rendered");
  }
  const text::ChatTemplate chat_template(*tokenizer.chat_template());
  return tokenizer.encode(chat_template.render(inputs), {.add_special = false, .parse_special = true});
}

std::vector<TokenId> text_tokens(const text::Tokenizer& tokenizer, const std::string& text, bool is_raw) {
  if (is_raw || !tokenizer.chat_template()) {
    return tokenizer.encode(text, {.add_special = true, .parse_special = true});
  }
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  messages.push_back({{"role", "user"}, {"content", text}});
  return chat_tokens(tokenizer, engine::template_inputs(tokenizer, std::move(messages)), "");
}

}  // namespace memoir::cli
