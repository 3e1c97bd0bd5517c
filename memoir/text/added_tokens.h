#pragma once

// Tokens that are found in the text as they stand, before the model sees it: <|im_end|>, runs of spaces, ...
//
// Two ways to resolve overlaps: tokenizers takes the leftmost and then the longest; llama.cpp takes the longest of all
// first, wherever it stands. Threads: const use from any number of threads after the last add().

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/text/regex.h"

namespace memoir::text {

/// How a token is looked for. The fields are tokenizer.json's.
struct AddedToken {
  TokenId id = 0;
  std::string pattern;       // what to look for in the text
  bool single_word = false;  // not where a letter, digit or mark stands directly before or behind
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool special = false;      // found only with parse_special
};

/// A piece of a text: an added token, or text between them (token is nullopt).
struct Section {
  Span span;
  std::optional<TokenId> token;
};

enum class Overlap { kLeftmostLongest, kLongestFirst };

class AddedTokens {
 public:
  /// Longer patterns are refused by the readers, which keeps the search linear in the text.
  static constexpr std::size_t kMaxPatternBytes = 1024;

  explicit AddedTokens(Overlap overlap = Overlap::kLeftmostLongest) : overlap_(overlap) {}

  /// An empty pattern is ignored; a second token with the same pattern replaces the first.
  void add(AddedToken token);

  /// One with this id, nullptr where there is none. Looks at each.
  const AddedToken* find(TokenId id) const;

  /// Cuts `text` at the tokens. The sections cover the text except white space that lstrip and rstrip take (which
  /// belongs to the token's section); no section of plain text is empty. Special tokens count only with parse_special.
  std::vector<Section> split(std::string_view text, bool parse_special) const;

 private:
  struct Hit {
    std::size_t n_bytes;
    const AddedToken* token;
  };

  void hits_at(std::string_view text, std::size_t pos, std::vector<Hit>& hits) const;
  std::vector<Section> split_leftmost(std::string_view text, bool parse_special) const;
  std::vector<Section> split_longest(std::string_view text, bool parse_special) const;

  Overlap overlap_;
  std::vector<AddedToken> tokens_;
  // A trie: (node, byte) -> node, and node -> token.
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> token_of_node_{-1};
  std::vector<bool> first_bytes_ = std::vector<bool>(256);
};

}  // namespace memoir::text
