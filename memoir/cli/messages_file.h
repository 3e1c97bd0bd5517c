#pragma once

// A chat in a JSON file: what `memoir template` and `memoir generate --messages` read.

#include <nlohmann/json.hpp>
#include <string>

#include "memoir/text/chat_template.h"
#include "memoir/text/tokenizer.h"

namespace memoir::cli {

/// Reads {"messages": [...], "tools": [...], "add_generation_prompt": true}, all but messages optional, or the array of
/// messages alone. Other keys become variables of the template ("enable_thinking": false).
/// path: a file, a FIFO or the like, or - for stdin.
/// Throws FileError, or FormatError if it is not such JSON, or there is no message.
text::ChatTemplate::Inputs read_messages_file(const std::string& path, const text::Tokenizer& tokenizer);

/// The same from JSON that has been read. name: of where it comes from, for messages. Throws FormatError.
text::ChatTemplate::Inputs read_messages(nlohmann::ordered_json json, const std::string& name,
                                         const text::Tokenizer& tokenizer);

}  // namespace memoir::cli
