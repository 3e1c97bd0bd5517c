#pragma once

// The few Unicode properties that tokenizers ask about single characters (data: utf8proc).
// Threads: free functions over constant tables.

#include <string>

namespace memoir::text {

/// White_Space.
bool is_space(char32_t c);

/// General category N (Nd, Nl, No).
bool is_number(char32_t c);

/// General category Nd.
bool is_decimal(char32_t c);

/// General category P, or one of the 32 ASCII punctuation characters.
bool is_punctuation(char32_t c);

/// General category M.
bool is_mark(char32_t c);

/// Alphabetic, or a mark, a decimal digit or connecting punctuation: what regular expressions call \w.
bool is_word(char32_t c);

/// Appends the lower-case form of c.
void append_lower(std::string& text, char32_t c);

}  // namespace memoir::text
