#pragma once

// UTF-8 as bytes: validate, decode, encode, and cut a stream at character borders.
//
// "Invalid" follows the Unicode Standard, section 3.9, table 3-7: no overlong forms, no surrogates, nothing above
// U+10FFFF. A bad sequence counts as one error per maximal subpart (as browsers and Rust's from_utf8_lossy do), so that
// replacing errors gives the same text whether the bytes come at once or one by one.
// Threads: free functions without state.

#include <cstddef>
#include <string>
#include <string_view>

namespace memoir::text::utf8 {

inline constexpr char32_t kReplacement = 0xFFFD;

/// One character of a text, or one error in it.
struct Char {
  char32_t code;        // kReplacement for an error
  std::size_t n_bytes;  // what to skip: 1 to 4
  bool valid;
  bool cut_short;  // an error only because the text ends: more bytes could complete it
};

/// The character at `pos`. `pos` must be smaller than text.size().
Char decode(std::string_view text, std::size_t pos);

/// Appends `code` as 1 to 4 bytes; a surrogate or a value above U+10FFFF becomes U+FFFD.
void append(std::string& text, char32_t code);

bool valid(std::string_view text);

/// The text with every error replaced by U+FFFD.
std::string replace_errors(std::string_view text);

/// How many bytes at the end are the beginning of a character whose rest is missing: 0 to 3.
std::size_t incomplete_tail(std::string_view text);

}  // namespace memoir::text::utf8
