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

Preface Preface::of(const std::optional<model::Package>& package) {
  if (!package) return {};
  return {package->modelfile.system, package->modelfile.messages};
}

nlohmann::ordered_json with_preface(const Preface& preface, const nlohmann::ordered_json& conversation) {
  using Json = nlohmann::ordered_json;
  if (!conversation.is_array()) return conversation;
  const auto is_system = [](const Json& message) {
    return message.is_object() && message.value("role", Json()) == "system";
  };
  const bool has_own = !conversation.empty() && is_system(conversation.front());
  Json all = Json::array();
  if (has_own) all.push_back(conversation.front());
  if (!has_own && preface.system) all.push_back({{"role", "system"}, {"content", *preface.system}});
  for (const auto& [role, content] : preface.messages) all.push_back({{"role", role}, {"content", content}});
  all.insert(all.end(), conversation.begin() + (has_own ? 1 : 0), conversation.end());
  return all;
}

std::vector<TokenId> text_tokens(const text::Tokenizer& tokenizer, const std::string& text, bool is_raw,
                                 const Preface& preface) {
  if (is_raw || !tokenizer.chat_template()) {
    return tokenizer.encode(text, {.add_special = true, .parse_special = true});
  }
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  messages.push_back({{"role", "user"}, {"content", text}});
  return chat_tokens(tokenizer, engine::template_inputs(tokenizer, with_preface(preface, messages)), "");
}

}  // namespace memoir::cli
