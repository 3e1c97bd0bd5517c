#include "memoir/engine/prefix_store.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace memoir::engine {
namespace {

std::size_t shared_length(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

std::optional<PrefixStore::Restored> KeptCaches::take(std::span<const TokenId> prompt) {
  std::vector<std::pair<std::size_t, Place>> candidates;  // the tokens each would save
  for (auto place = entries_.begin(); place != entries_.end(); ++place) {
    const std::size_t n_saved = prompt.empty() ? 0 : std::min(shared_length(place->tokens, prompt), prompt.size() - 1);
    if (n_saved > 0 && place->tokens.size() - n_saved <= n_saved) candidates.emplace_back(n_saved, place);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [n_saved, place] : candidates) {
    if (!place->cache.rewind(static_cast<int>(n_saved))) continue;
    Restored restored{std::move(place->cache)};
    erase(place);
    return restored;
  }
  return std::nullopt;
}

void KeptCaches::give(std::vector<TokenId> tokens, cache::ModelCache cache) {
  if (cache.offset() != static_cast<int>(tokens.size())) {
    throw std::invalid_argument("[engine.PrefixStore.give] the cache holds " + std::to_string(cache.offset()) +
                                " tokens, expected the " + std::to_string(tokens.size()) + " that are given");
  }
  const std::size_t n_bytes = cache.size_bytes();
  if (tokens.empty() || n_bytes > max_bytes_) return;
  for (auto place = entries_.begin(); place != entries_.end();) {
    const std::size_t n_shared = shared_length(place->tokens, tokens);
    if (n_shared == tokens.size()) {
      entries_.splice(entries_.begin(), entries_, place);
      return;
    }
    place = n_shared == place->tokens.size() ? erase(place) : std::next(place);
  }
  while (n_bytes > max_bytes_ - n_bytes_) erase(std::prev(entries_.end()));
  entries_.push_front({std::move(tokens), std::move(cache), n_bytes});
  n_bytes_ += n_bytes;
}

KeptCaches::Place KeptCaches::erase(Place place) {
  n_bytes_ -= place->n_bytes;
  return entries_.erase(place);
}

void KeptCaches::clear() {
  entries_.clear();
  n_bytes_ = 0;
}

}  // namespace memoir::engine
