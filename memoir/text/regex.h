#pragma once

// A compiled pattern over UTF-8 text (PCRE2, just-in-time compiled where the platform can).
//
// Invariants: the pattern is compiled once, at construction; matching never recurses on the stack and never runs
// without a limit. Threads: const use from any number of threads. Copies share the compiled pattern.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace memoir::text {

/// A half-open range of bytes in a text.
struct Span {
  std::size_t begin;
  std::size_t end;

  bool operator==(const Span&) const = default;
};

/// Where a pattern or a step stands, for messages.
struct Origin {
  std::string path;  // the file
  std::string key;   // the key in it
};

class Regex {
 public:
  /// Compiles a pattern of tokenizer.json (Oniguruma's dialect, see regex_dialect.h).
  /// Throws FormatError (origin) if the pattern is wrong or uses what PCRE2 can't do.
  Regex(std::string_view pattern, Origin origin);

  /// Calls `found` for each match, left to right. Matches do not overlap; an empty match directly behind another one is
  /// passed over (as in tokenizers). `text` must be valid UTF-8.
  /// Throws UnsupportedError (origin) if the pattern needs more backtracking on this text than the limit allows.
  void for_each(std::string_view text, const std::function<void(Span)>& found) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace memoir::text
