#include "memoir/engine/token_trie.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

namespace memoir::engine {
namespace {

constexpr std::size_t kMaxPieceBytes = std::numeric_limits<std::uint16_t>::max();

std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto [end, ignored] =
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  return static_cast<std::size_t>(end - a.begin());
}

}  // namespace

TokenTrie::TokenTrie(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    if (pieces_[id].size() > kMaxPieceBytes) pieces_[id].clear();
    if (!pieces_[id].empty()) ids_.push_back(static_cast<TokenId>(id));
  }
  std::sort(ids_.begin(), ids_.end(), [&](TokenId a, TokenId b) {
    const int order = piece(a).compare(piece(b));
    return order < 0 || (order == 0 && a < b);
  });

  std::vector<std::size_t> open;  // the nodes from the root to the last token's
  std::string_view last;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    const std::string_view bytes = piece(ids_[i]);
    const std::size_t n_shared = common_prefix(last, bytes);
    for (; open.size() > n_shared; open.pop_back()) nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
    for (std::size_t depth = n_shared; depth < bytes.size(); ++depth) {
      open.push_back(nodes_.size());
      nodes_.push_back({0, static_cast<std::uint32_t>(i), 0, static_cast<std::uint16_t>(depth),
                        static_cast<std::uint8_t>(bytes[depth])});
    }
    ++nodes_[open.back()].n_tokens;
    max_depth_ = std::max(max_depth_, bytes.size());
    last = bytes;
  }
  for (; !open.empty(); open.pop_back()) nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
}

}  // namespace memoir::engine
