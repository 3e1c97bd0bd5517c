#pragma once

// Token texts by id and ids by token text.
//
// Invariants: ids are in [0, size()); an id may have no text (a hole in the file's numbering); a text names one id.
// Threads: const use from any number of threads.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memoir/base/types.h"

namespace memoir::text {

/// Lets maps with std::string keys be searched with a std::string_view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

class Vocabulary {
 public:
  /// Ids up to this are accepted for n_entries entries. A file that numbers higher is refused before memory is taken.
  static std::int64_t max_id(std::size_t n_entries);

  /// Names `id`; the set of ids grows as needed. A second name replaces the first as the id's text, and both find it;
  /// a text that had another id now finds this one.
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
  std::vector<std::string> texts_;
  std::vector<bool> named_;
  std::vector<bool> hidden_;
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> ids_;
  std::size_t longest_bytes_ = 0;
};

}  // namespace memoir::text
