#pragma once

// Translates a pattern of tokenizer.json (Oniguruma, Ruby syntax) to PCRE2 with UTF and UCP.
//
// What differs and is rewritten:
//   - \s is Unicode White_Space (PCRE2's also takes U+180E); \w is Alphabetic + M + Nd + Pc (PCRE2's version differs
//   from
//     release to release), and \b, \B follow it; \h is a hexadecimal digit; \uHHHH;
//   - nested character classes and intersections: [a[bc]], [\p{L}&&[^\p{Han}]];
//   - x{,n} counts from 0, and x{m,n}+ repeats (it is not possessive).
// ^ and $ match at every line in Ruby: the caller compiles with PCRE2_MULTILINE.
// Threads: a free function without state.

#include <string>
#include <string_view>

namespace memoir::text {

/// Returns the pattern for PCRE2. A pattern that is wrong comes back wrong, for PCRE2 to say where.
/// Throws std::length_error where classes nest deeper than 16.
std::string to_pcre2(std::string_view pattern);

}  // namespace memoir::text
