#pragma once

// The names in a prompt-cache file, "3.0.1" being item 1 of item 0 of item 3, as mlx's tree_flatten writes them, and
// the tree that they make. Values, any thread.

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace memoir::cache {

inline constexpr int kMaxNesting = 8;                                                    // CacheLists in each other
inline constexpr std::size_t kMaxNameDepth = 3 * static_cast<std::size_t>(kMaxNesting);  // dots in a name

struct PromptNode {
  enum class Mark { kNone, kArray, kScalar, kString, kText };
  bool is_leaf = false;
  Mark mark = Mark::kNone;          // what a leaf is
  std::size_t tensor = 0;           // kArray, kScalar, kString
  std::string text;                 // kText: a piece of metadata
  std::map<int, PromptNode> items;  // of a list

  bool is_none() const { return is_leaf && mark == Mark::kNone; }
};

/// A whole decimal number and nothing else.
std::optional<int> parse_item_number(std::string_view text);

/// "3.0.1" as numbers; nullopt for what tree_flatten doesn't write, and deeper than kMaxNameDepth.
std::optional<std::vector<int>> parse_item_path(std::string_view text);

}  // namespace memoir::cache
