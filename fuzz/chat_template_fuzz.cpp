// Parses any bytes as a chat template and renders a small conversation with it. Only the library's own errors may come
// out.

#include <cstddef>
#include <cstdint>
#include <string>

#include "memoir/base/error.h"
#include "memoir/text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t n_bytes) {
  static const auto kMessages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": "s"},
    {"role": "user", "content": "h\u00e9 <b>"},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]}
  ])");
  memoir::text::ChatTemplate::Inputs inputs;
  inputs.messages = kMessages;
  inputs.bos_token = "<s>";
  try {
    const memoir::text::ChatTemplate chat_template(std::string(reinterpret_cast<const char*>(data), n_bytes));
    chat_template.render(inputs);
  } catch (const memoir::InputError&) {
  }
  return 0;
}
