#include "memoir/prefix/keys.h"

#include <cstddef>
#include <stdexcept>
#include <string>

namespace memoir::prefix {
namespace {

constexpr Key kNotAToken = Key{1} << 63;

// The finalizer of splitmix64: a bijection that spreads every bit over all.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Not symmetric in its two arguments.
Key hash_of(std::uint64_t first, std::uint64_t second) {
  return mix(mix(first + 0x9e3779b97f4a7c15ULL) + second) | kNotAToken;
}

bool is_token(Key key) {
  return key >> 32 == 0;
}

}  // namespace

std::vector<Key> token_keys(std::span<const TokenId> tokens) {
  std::vector<Key> keys;
  keys.reserve(tokens.size());
  for (const TokenId token : tokens) {
    if (token < 0) throw std::invalid_argument("[prefix.token_keys] token " + std::to_string(token) + " is negative");
    keys.push_back(static_cast<Key>(token));
  }
  return keys;
}

Key media_key(std::uint64_t content_hash, std::uint32_t index) {
  return hash_of(content_hash, index);
}

std::vector<Key> pair_keys(std::span<const Key> keys) {
  std::vector<Key> pairs;
  if (keys.size() < 2) return pairs;
  pairs.reserve(keys.size() - 1);
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    const bool tokens = is_token(keys[i]) && is_token(keys[i + 1]);
    pairs.push_back(tokens ? keys[i] << 32 | keys[i + 1] : hash_of(keys[i], keys[i + 1]));
  }
  return pairs;
}

}  // namespace memoir::prefix
