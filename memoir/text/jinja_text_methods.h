#pragma once

// The methods of Python's str. Where the text is markup, what comes back is markup too.

#include <string_view>

#include "memoir/text/jinja_builtins.h"

namespace memoir::text::jinja {

Method find_text_method(std::string_view name);

/// str.isupper() and str.islower(): there is a letter with case and none of the other case.
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);

}  // namespace memoir::text::jinja
