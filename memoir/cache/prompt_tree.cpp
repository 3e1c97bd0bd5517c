#include "memoir/cache/prompt_tree.h"

#include <charconv>

namespace memoir::cache {

std::optional<int> parse_item_number(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::vector<int>> parse_item_path(std::string_view text) {
  std::vector<int> path;
  while (path.size() <= kMaxNameDepth) {
    const std::size_t dot = text.find('.');
    const std::string_view part = text.substr(0, dot);
    const std::optional<int> number = parse_item_number(part);
    if (!number || *number < 0 || (part.size() > 1 && part[0] == '0')) return std::nullopt;
    path.push_back(*number);
    if (dot == std::string_view::npos) return path;
    text.remove_prefix(dot + 1);
  }
  return std::nullopt;
}

}  // namespace memoir::cache
