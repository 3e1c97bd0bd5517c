#pragma once

// What stands at each position of a prompt, as one 64-bit number for the trie (trie.h).
//
//   token   its id; bits 32 to 63 are clear
//   media   a hash of its content and of the place within it; bit 63 is set, so that it never equals a token
//   pair    for a drafter that looks one token ahead: its state at offset p depends on the tokens 0 to p, so position
//           p - 1 is told by what stands there and by what follows
//
// Equal keys are taken for equal content. Tokens and pairs of tokens are exact; where media are, two contents are
// confused if the caller's hash does so, or with odds of 2^-63: a caller whose users must not be able to provoke that
// passes a keyed hash.

#include <cstdint>
#include <span>
#include <vector>

#include "memoir/base/types.h"

namespace memoir::prefix {

using Key = std::uint64_t;

/// The keys of a text. Throws std::invalid_argument if an id is negative.
std::vector<Key> token_keys(std::span<const TokenId> tokens);

/// The key of the index-th position of an image or other media. `content_hash` tells bytes and dimensions.
Key media_key(std::uint64_t content_hash, std::uint32_t index);

/// n - 1 pairs of n keys (none of none): two tokens are (first << 32 | second), other pairs a hash with bit 63 set.
/// k equal pairs prove k + 1 equal positions.
std::vector<Key> pair_keys(std::span<const Key> keys);

}  // namespace memoir::prefix
