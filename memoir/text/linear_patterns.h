#pragma once

// Published patterns that look ahead over a whole run for each of its characters, as functions that need one pass.
// A megabyte of digits or spaces would otherwise take minutes.
// Threads: free functions without state. Texts must be valid UTF-8.

#include <string_view>
#include <vector>

#include "memoir/text/regex.h"

namespace memoir::text {

/// Finds all matches in a text, left to right, not overlapping.
using MatchFinder = std::vector<Span> (*)(std::string_view text);

/// The function that finds what `pattern` (tokenizer.json's dialect) finds, nullptr for a pattern without one.
MatchFinder linear_form(std::string_view pattern);

/// Each run of numbers in groups of three, counted from its end; what is left over comes first (llama.cpp).
std::vector<Span> numbers_in_threes(std::string_view text);

}  // namespace memoir::text
