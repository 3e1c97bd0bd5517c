#pragma once

// Text by characters, as Python's str sees it: the few functions the template interpreter needs.
//
// A character is a code point. A byte that is not part of valid UTF-8 counts as one character and is kept as it is,
// so no function here fails on any bytes. Upper, lower and title case follow Unicode's full mappings (utf8proc's
// simple ones, and the multi-character ones of SpecialCasing.txt that have no condition, and the final sigma).
// Threads: any; nothing is kept.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memoir::text::jinja {

struct Character {
  std::int32_t code;    // -1 for a byte that is not valid UTF-8
  std::size_t n_bytes;  // at least 1
};

/// The character that begins at byte `at` (at < text.size()).
Character character_at(std::string_view text, std::size_t at);

void append_character(std::string& out, std::int32_t code);

bool is_ascii(std::string_view text);
std::size_t n_characters(std::string_view text);

/// The byte at which each character begins, and the size at the end.
std::vector<std::size_t> character_offsets(std::string_view text);

/// The byte at which character `index` begins; the size where there are fewer.
std::size_t byte_of_character(std::string_view text, std::size_t index);

bool is_space(std::int32_t code);
bool is_decimal(std::int32_t code);
bool is_alpha(std::int32_t code);
bool is_numeric(std::int32_t code);
bool is_upper(std::int32_t code);
bool is_lower(std::int32_t code);
bool is_printable(std::int32_t code);
/// A letter, digit or underscore: \w of Python's re.
bool is_word(std::int32_t code);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
/// First character in title case, the rest in lower case.
std::string capitalize(std::string_view text);
/// Each run of letters capitalized (str.title()).
std::string title_words(std::string_view text);
std::string swap_case(std::string_view text);

/// Searches for one text, in time linear in what it goes through (std::string::find can take the product of both
/// lengths, which a hostile template would use). The needle must outlive the finder.
class TextFinder {
 public:
  explicit TextFinder(std::string_view needle);
  /// The first occurrence at `from` or later, or npos.
  std::size_t find(std::string_view text, std::size_t from = 0) const;

 private:
  std::string_view needle_;
  std::vector<std::size_t> borders_;  // of each prefix, for needles long enough to matter
};

/// Python's strip family. `characters` is what to strip; nullptr strips white space.
std::string_view strip(std::string_view text, const std::string_view* characters, bool left, bool right);

/// str.splitlines().
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

/// Replaces the first max_count occurrences (negative: all). An empty `from` matches between all characters.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to, std::int64_t max_count);

/// & < > ' " as HTML entities, as markupsafe.
std::string escape_html(std::string_view text);

}  // namespace memoir::text::jinja
