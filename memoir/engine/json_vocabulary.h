#pragma once

// A vocabulary as JSON sees it: all tokens as a trie, those that stay inside a string, and those that end one.
//
// Most tokens may come inside a string, whatever its place in the text: these are known once and for all, and only the
// few that end it must be tried for each place.
// Threads: read only, any number of them.

#include <cstdint>
#include <string>
#include <vector>

#include "memoir/engine/token_trie.h"
#include "memoir/text/tokenizer.h"

namespace memoir::engine {

class JsonVocabulary {
 public:
  /// pieces as for TokenTrie.
  explicit JsonVocabulary(std::vector<std::string> pieces);

  /// The vocabulary without its special tokens, which stand for no text.
  static JsonVocabulary of(const text::Tokenizer& tokenizer);

  const TokenTrie& all() const { return all_; }

  /// A bit for each token: between two characters of a string it goes on with it and does not end it.
  const std::vector<std::uint64_t>& inside_string() const { return inside_string_; }

  /// The tokens whose bytes end a string that they come in.
  const TokenTrie& ending_string() const { return ending_string_; }

 private:
  struct Parts {
    std::vector<std::string> ending;
    std::vector<std::uint64_t> inside;
  };
  static Parts divide(const std::vector<std::string>& pieces);
  JsonVocabulary(std::vector<std::string> pieces, Parts parts);

  TokenTrie all_;
  std::vector<std::uint64_t> inside_string_;
  TokenTrie ending_string_;
};

}  // namespace memoir::engine
