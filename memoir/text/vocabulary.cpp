#include "memoir/text/vocabulary.h"

#include <algorithm>
#include <utility>

namespace memoir::text {
namespace {

// Published files number without holes, or with a few hundred; a quarter of a million empty strings are cheap.
constexpr std::int64_t kMaxHoles = 1 << 18;

}  // namespace

std::int64_t Vocabulary::max_id(std::size_t n_entries) {
  return static_cast<std::int64_t>(n_entries) + kMaxHoles;
}

void Vocabulary::reserve(std::size_t n_entries) {
  texts_.reserve(n_entries);
  named_.reserve(n_entries);
  hidden_.reserve(n_entries);
  ids_.reserve(n_entries);
}

void Vocabulary::add(std::string text, TokenId id) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= texts_.size()) {
    texts_.resize(index + 1);
    named_.resize(index + 1);
    hidden_.resize(index + 1);
  }
  longest_bytes_ = std::max(longest_bytes_, text.size());
  ids_.insert_or_assign(text, id);
  texts_[index] = std::move(text);
  named_[index] = true;
}

std::optional<TokenId> Vocabulary::id(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

void Vocabulary::hide(TokenId id) {
  hidden_[static_cast<std::size_t>(id)] = true;
}

std::optional<TokenId> Vocabulary::word(std::string_view text) const {
  const std::optional<TokenId> found = id(text);
  return found && !hidden_[static_cast<std::size_t>(*found)] ? found : std::nullopt;
}

bool Vocabulary::has(TokenId id) const {
  return id >= 0 && id < size() && named_[static_cast<std::size_t>(id)];
}

}  // namespace memoir::text
