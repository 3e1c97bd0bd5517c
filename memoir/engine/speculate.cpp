#include "memoir/engine/speculate.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace memoir::engine {

NgramDrafter::NgramDrafter(const NgramOptions& options) : options_(options) {
  constexpr int kLongest = 8;
  if (options.shortest < 1 || options.shortest > options.longest || options.longest > kLongest) {
    throw std::invalid_argument("[ngram] lengths from " + std::to_string(options.shortest) + " to " +
                                std::to_string(options.longest) + ", expected 1 <= shortest <= longest <= 8");
  }
  follows_.resize(static_cast<std::size_t>(options.longest - options.shortest) + 1);
}

// FNV-1a over the n tokens before `end`; two n-grams may share a key, so places are compared.
std::uint64_t NgramDrafter::key(std::size_t end, int n) const {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::size_t i = end - static_cast<std::size_t>(n); i < end; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(text_[i])) * 0x100000001b3U;
  }
  return hash;
}

bool NgramDrafter::is_same(std::size_t a_end, std::size_t b_end, int n) const {
  const auto a = text_.begin() + static_cast<std::ptrdiff_t>(a_end);
  const auto b = text_.begin() + static_cast<std::ptrdiff_t>(b_end);
  return std::equal(a - n, a, b - n);
}

// Brings the index to the text. N-grams that end where the text does are left out: nothing follows them yet.
void NgramDrafter::index(std::span<const TokenId> tokens) {
  const bool goes_on = tokens.size() >= text_.size() && std::equal(text_.begin(), text_.end(), tokens.begin());
  if (!goes_on) {
    text_.clear();
    for (auto& places : follows_) places.clear();
  }
  const std::size_t begin = std::max<std::size_t>(text_.size(), 1);
  text_.insert(text_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(text_.size()), tokens.end());
  for (std::size_t end = begin; end < text_.size(); ++end) {
    for (int n = options_.shortest; n <= options_.longest && static_cast<std::size_t>(n) <= end; ++n) {
      follows_[static_cast<std::size_t>(n - options_.shortest)][key(end, n)] = end;
    }
  }
}

std::vector<TokenId> NgramDrafter::propose(std::span<const TokenId> tokens, int n_max) {
  index(tokens);
  const std::size_t end = text_.size();
  for (int n = options_.longest; n >= options_.shortest; --n) {
    if (static_cast<std::size_t>(n) > end) continue;
    const auto& places = follows_[static_cast<std::size_t>(n - options_.shortest)];
    const auto place = places.find(key(end, n));
    if (place == places.end() || !is_same(place->second, end, n)) continue;
    std::vector<TokenId> drafts;
    for (std::size_t i = place->second; drafts.size() < static_cast<std::size_t>(std::max(0, n_max)); ++i) {
      drafts.push_back(i < end ? text_[i] : drafts[i - end]);
    }
    return drafts;
  }
  return {};
}

void check_drafts(std::span<const TokenId> drafts, int n_max, int n_vocab) {
  if (drafts.size() > static_cast<std::size_t>(n_max)) {
    throw std::invalid_argument("[engine.generate] the drafter proposed " + std::to_string(drafts.size()) +
                                " tokens, expected at most " + std::to_string(n_max));
  }
  for (const TokenId token : drafts) {
    if (token >= 0 && token < n_vocab) continue;
    throw std::invalid_argument("[engine.generate] the drafter proposed token " + std::to_string(token) +
                                ", outside the vocabulary of " + std::to_string(n_vocab));
  }
}

Verdict judge(Sampler& sampler, std::span<float> logits, TokenId draft) {
  const TokenId token = sampler.sample(logits);
  return {token, token == draft};
}

}  // namespace memoir::engine
