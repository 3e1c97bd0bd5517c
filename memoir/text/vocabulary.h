#pragma once

// Token texts by id and ids by token text.
//
// Invariants: ids are in [0, size()); an id may have no text (a hole in the file's numbering); a text names one id.
// Threads: const use from any number of threads.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/types.h"

namespace memoir::text {

class Vocabulary {
 public:
  /// Ids up to this are accepted for n_entries entries. A file that numbers higher is refused before memory is taken.
  static std::int64_t max_id(std::size_t n_entries);

  /// Names `id`; the set of ids grows as needed. A second name replaces the first as the id's text, and both find it;
  /// a text that had another id now finds this one. Throws std::length_error where all texts together pass 4 GiB.
  void add(std::string text, TokenId id);

  void reserve(std::size_t n_entries);

  /// From now on word() does not find the id: its text in the input is just text.
  void hide(TokenId id);

  int size() const { return static_cast<int>(texts_.size()); }
  std::size_t longest_bytes() const { return longest_bytes_; }

  std::optional<TokenId> id(std::string_view text) const;

  /// The id that a model may give to a piece of text: as id(), without the hidden ones.
  std::optional<TokenId> word(std::string_view text) const;

  bool has(TokenId id) const;

  /// The text of an id in [0, size()), "" for a hole.
  const std::string& text(TokenId id) const { return texts_[static_cast<std::size_t>(id)]; }

 private:
  // Where a text lies in names_, and its id.
  struct Slot {
    std::uint32_t hash;
    std::uint32_t begin;
    std::uint32_t n_bytes;
    TokenId id;  // kNone: the slot is free
  };
  static constexpr TokenId kNone = -1;

  void name(std::string_view text, TokenId id);
  std::size_t slot_of(std::string_view text) const;
  void grow(std::size_t n_slots);

  std::vector<std::string> texts_;
  std::vector<bool> named_;
  std::vector<bool> hidden_;
  std::string names_;        // all texts that find an id, one behind the other
  std::vector<Slot> slots_;  // a power of two, at most half of them taken; linear probing
  std::size_t n_names_ = 0;
  std::size_t longest_bytes_ = 0;
};

}  // namespace memoir::text
