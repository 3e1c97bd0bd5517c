#pragma once

// A chat in a JSON file: what `memoir template` and `memoir generate --messages` read.

#include <string>

#include "memoir/text/chat_template.h"
#include "memoir/text/tokenizer.h"

namespace memoir::cli {

/// Reads {"messages": [...], "tools": [...], "add_generation_prompt": true}, all but messages optional, or the array of
/// messages alone. Other keys become variables of the template ("enable_thinking": false).
/// path: a file, a FIFO or the like, or - for stdin.
/// Throws FileError, or FormatError if it is not such JSON.
text::ChatTemplate::Inputs read_messages_file(const std::string& path, const text::Tokenizer& tokenizer);

}  // namespace memoir::cli
