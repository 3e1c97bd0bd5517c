#pragma once

// The filters by what they work on; find_filter of jinja_builtins.h looks through all. nullptr where there is no such
// name.

#include <string_view>

#include "memoir/text/jinja_builtins.h"

namespace memoir::text::jinja {

FilterFunction find_text_filter(std::string_view name);
FilterFunction find_sequence_filter(std::string_view name);
FilterFunction find_value_filter(std::string_view name);

}  // namespace memoir::text::jinja
