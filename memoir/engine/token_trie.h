#pragma once

// A vocabulary as a trie over the tokens' bytes, so that an automaton over bytes can tell in one walk which tokens it
// would take: tokens that begin alike are refused together.
//
// Nodes lie in one array in the order of a depth-first walk, each with the place behind its subtree.
// Threads: read only, any number of them. Ownership: a value.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/types.h"

namespace memoir::engine {

class TokenTrie {
 public:
  struct Node {
    std::uint32_t end;  // index of the first node behind this one's subtree
    std::uint32_t first_token;
    std::uint32_t n_tokens;  // tokens that end here: ids()[first_token, first_token + n_tokens)
    std::uint16_t depth;     // of the byte in its tokens, from 0
    std::uint8_t byte;
  };

  /// pieces[id] are a token's bytes; tokens without any, or with more than 65,535, are left out.
  explicit TokenTrie(std::vector<std::string> pieces);

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const TokenId> ids() const { return ids_; }

  /// Of the longest token, in bytes.
  std::size_t max_depth() const { return max_depth_; }

  int n_vocab() const { return static_cast<int>(pieces_.size()); }

  /// The bytes of a token, empty for one that was left out. Throws std::out_of_range outside the vocabulary.
  const std::string& piece(TokenId id) const { return pieces_.at(static_cast<std::size_t>(id)); }

 private:
  std::vector<std::string> pieces_;
  std::vector<Node> nodes_;
  std::vector<TokenId> ids_;
  std::size_t max_depth_ = 0;
};

}  // namespace memoir::engine
