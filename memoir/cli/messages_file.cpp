#include "memoir/cli/messages_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/engine/conversation.h"

namespace memoir::cli {

using Json = nlohmann::ordered_json;

text::ChatTemplate::Inputs read_messages_file(const std::string& path, const text::Tokenizer& tokenizer) {
  Json json = Json::parse(read_text_file(path), nullptr, /* allow_exceptions = */ false);
  if (json.is_discarded()) throw FormatError(path, "", "is not JSON");
  if (json.is_array()) json = Json{{"messages", std::move(json)}};
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    throw FormatError(path, "messages", "expected an array of messages");
  }
  text::ChatTemplate::Inputs inputs = engine::template_inputs(tokenizer, std::move(json["messages"]));
  json.erase("messages");
  if (json.contains("tools")) {
    inputs.tools = std::move(json["tools"]);
    if (!inputs.tools.is_array() && !inputs.tools.is_null()) throw FormatError(path, "tools", "expected an array");
    json.erase("tools");
  }
  if (json.contains("add_generation_prompt")) {
    if (!json["add_generation_prompt"].is_boolean()) {
      throw FormatError(path, "add_generation_prompt", "expected true or false");
    }
    inputs.add_generation_prompt = json["add_generation_prompt"];
    json.erase("add_generation_prompt");
  }
  inputs.extra = std::move(json);
  return inputs;
}

}  // namespace memoir::cli
