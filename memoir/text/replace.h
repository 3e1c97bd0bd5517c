#pragma once

// Replacing parts of a text, and how long the steps of a tokenizer file may make one. Internal to text/.
//
// A file may chain steps that each lengthen the text: 30 that double it make a gigabyte of one byte. So whatever a
// chain of steps makes of n bytes is bounded: kMaxGrowth bytes for each of them and one more. The longest that
// published files get to is 11 (NFKD of U+FDFA), twice that with GPT-2's alphabet behind it.
// No state, any thread.

#include <cstddef>
#include <string>
#include <string_view>

#include "memoir/text/regex.h"

namespace memoir::text {

inline constexpr std::size_t kMaxGrowth = 32;

/// The most bytes that a chain of steps may make of n_bytes.
constexpr std::size_t max_grown_bytes(std::size_t n_bytes) {
  return kMaxGrowth * (n_bytes + 1);
}

/// How long a text may become in one step. Refers to the step's origin.
struct GrowthLimit {
  std::size_t max_bytes;
  const Origin& step;

  /// Throws UnsupportedError naming the step if n_bytes are too many.
  void check(std::size_t n_bytes) const;
};

/// The text with each `pattern`, which is not empty, or each match of a regex replaced by `content`, taken literally.
/// Throws as `limit` does, before it takes more memory than that; with a regex also as Regex::for_each.
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content,
                        const GrowthLimit& limit);
std::string replace_all(std::string_view text, const Regex& regex, std::string_view content, const GrowthLimit& limit);

}  // namespace memoir::text
