#include "memoir/cli/messages_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/conversation.h"

namespace memoir::cli {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::uint64_t kMaxBytes = 256U << 20;

// Devices and FIFOs have no size to read by.
std::string read_all(const std::string& path) {
  if (path.empty()) throw FileError("", "", "the path of the messages is empty");
  if (path == "-") return read_stream(stdin, "stdin", kMaxBytes);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool is_stream = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
                         !std::filesystem::is_directory(status);
  if (!is_stream) return read_text_file(path, kMaxBytes);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw FileError(path, "", std::string("can't open: ") + std::strerror(errno));
  return read_stream(file.get(), path, kMaxBytes);
}

}  // namespace

text::ChatTemplate::Inputs read_messages_file(const std::string& path, const text::Tokenizer& tokenizer) {
  const std::string name = path == "-" ? "stdin" : path;
  return read_messages(parse_ordered_json(read_all(path), name), name, tokenizer);
}

text::ChatTemplate::Inputs read_messages(Json json, const std::string& name, const text::Tokenizer& tokenizer) {
  if (json.is_array()) json = Json{{"messages", std::move(json)}};
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    throw FormatError(name, "messages", "expected an array of messages");
  }
  if (json["messages"].empty()) throw FormatError(name, "messages", "the list is empty");
  text::ChatTemplate::Inputs inputs = engine::template_inputs(tokenizer, std::move(json["messages"]));
  json.erase("messages");
  if (json.contains("tools")) {
    inputs.tools = std::move(json["tools"]);
    if (!inputs.tools.is_array() && !inputs.tools.is_null()) throw FormatError(name, "tools", "expected an array");
    json.erase("tools");
  }
  if (json.contains("add_generation_prompt")) {
    if (!json["add_generation_prompt"].is_boolean()) {
      throw FormatError(name, "add_generation_prompt", "expected true or false");
    }
    inputs.add_generation_prompt = json["add_generation_prompt"];
    json.erase("add_generation_prompt");
  }
  inputs.extra = std::move(json);
  return inputs;
}

}  // namespace memoir::cli
