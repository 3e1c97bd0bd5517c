#include "memoir/text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

namespace memoir::text {
namespace {

// Published files number without holes, or with a few hundred; a quarter of a million empty strings are cheap.
constexpr std::int64_t kMaxHoles = 1 << 18;

std::uint32_t hash_of(std::string_view text) {
  return static_cast<std::uint32_t>(std::hash<std::string_view>{}(text));
}

}  // namespace

std::int64_t Vocabulary::max_id(std::size_t n_entries) {
  return static_cast<std::int64_t>(n_entries) + kMaxHoles;
}

void Vocabulary::reserve(std::size_t n_entries) {
  texts_.reserve(n_entries);
  named_.reserve(n_entries);
  hidden_.reserve(n_entries);
  if (2 * n_entries > slots_.size()) grow(std::bit_ceil(2 * n_entries));
}

void Vocabulary::add(std::string text, TokenId id) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= texts_.size()) {
    texts_.resize(index + 1);
    named_.resize(index + 1);
    hidden_.resize(index + 1);
  }
  longest_bytes_ = std::max(longest_bytes_, text.size());
  name(text, id);
  texts_[index] = std::move(text);
  named_[index] = true;
}

// The slot that holds the text, else the free one where it belongs. There must be a free one.
std::size_t Vocabulary::slot_of(std::string_view text) const {
  const std::uint32_t hash = hash_of(text);
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  for (;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.id == kNone) return i;
    if (slot.hash == hash && std::string_view(names_).substr(slot.begin, slot.n_bytes) == text) return i;
  }
}

void Vocabulary::grow(std::size_t n_slots) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(n_slots, Slot{0, 0, 0, kNone}));
  for (const Slot& slot : old) {
    if (slot.id == kNone) continue;
    std::size_t i = slot.hash & (n_slots - 1);
    while (slots_[i].id != kNone) i = (i + 1) & (n_slots - 1);
    slots_[i] = slot;
  }
}

void Vocabulary::name(std::string_view text, TokenId id) {
  if (2 * (n_names_ + 1) > slots_.size()) grow(std::bit_ceil(2 * (n_names_ + 1)));
  Slot& slot = slots_[slot_of(text)];
  if (slot.id == kNone) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max() - names_.size()) {
      throw std::length_error("[vocabulary.add] the texts take more than 4 GiB");
    }
    slot = {hash_of(text), static_cast<std::uint32_t>(names_.size()), static_cast<std::uint32_t>(text.size()), id};
    names_ += text;
    ++n_names_;
  }
  slot.id = id;
}

std::optional<TokenId> Vocabulary::id(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[slot_of(text)];
  if (slot.id == kNone) return std::nullopt;
  return slot.id;
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
