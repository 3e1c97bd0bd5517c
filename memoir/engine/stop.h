#pragma once

// Stop strings over text that arrives in pieces: what may be shown now, and when to stop.
//
// The matcher works on bytes, so a piece may end anywhere, inside a character too. With stop strings and text in valid
// UTF-8, a stop string is found at character borders only, and the matcher never splits a character itself.
// Which one wins: the match whose end comes first; of several that end together, the one that starts first.
//
// Invariant: all text pushed so far = text returned + text held back (before a stop). What is held back is the
// longest end of the text that begins some stop string, no more: everything else has been returned.
// Cost: linear in the stop strings and in the text, whatever they are (Aho-Corasick, doi:10.1145/360825.360855).
// Ownership: a value, owns its stop strings. Threads: one at a time.
//
// Stop tokens are not here: the caller compares ids.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memoir::engine {

class StopMatcher {
 public:
  struct Result {
    std::string text;                 // safe to show now
    std::optional<std::size_t> stop;  // index of the stop string that was completed, the first of equal ones
  };

  /// No stop strings: all text passes through. Throws std::invalid_argument if one is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  /// Takes the next piece of text (may be empty). Returns
  ///   - no stop: the text that can't be part of a stop string any more;
  ///   - a stop: the text before it that was not returned yet. The stop string and all that follows is dropped; each
  ///     push from then on returns no text and the same stop.
  Result push(std::string_view piece);

  /// The text ended. Returns what was held back, empty after a stop. The matcher is then as new.
  std::string finish();

 private:
  /// A beginning of a stop string. Node 0 is the empty one.
  struct Node {
    std::vector<std::pair<std::uint8_t, std::size_t>> next;  // longer beginnings by their last byte, ascending
    std::size_t fallback = 0;                                // its longest end that is also a beginning
    std::size_t length = 0;
    std::size_t owner = 0;            // a stop string that begins so
    std::optional<std::size_t> stop;  // the longest stop string that ends here
  };

  void insert(std::size_t stop);
  void link();
  std::optional<std::size_t> child(std::size_t node, std::uint8_t byte) const;
  std::size_t advance(std::size_t node, std::uint8_t byte) const;

  std::vector<std::string> stops_;
  std::vector<Node> nodes_;
  std::size_t node_ = 0;  // the longest beginning that the text ends with: the text held back
  std::optional<std::size_t> stopped_;
};

}  // namespace memoir::engine
