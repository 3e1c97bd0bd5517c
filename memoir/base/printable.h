#pragma once

// Text from elsewhere (a model file, a command line) made fit for a message: it can't move the cursor, fake a line or
// fill the screen.
// No state, any thread.

#include <cstddef>
#include <string>
#include <string_view>

namespace memoir {

/// The text with what a terminal would obey or hide written out: control characters and bytes that are no UTF-8 as
/// \xNN (\n, \r and \t by name), line separators and marks of writing direction as \u{NNNN}. Cut behind
/// max_characters, with "..." in place of the rest. What is printable already comes back as it is.
std::string printable(std::string_view text, std::size_t max_characters = 200);

}  // namespace memoir
