#include "memoir/text/added_tokens.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "memoir/text/character.h"
#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

std::uint64_t edge(std::uint32_t node, unsigned char byte) {
  return (static_cast<std::uint64_t>(node) << 8) | byte;
}

// The character that ends at `end`; end > 0.
char32_t char_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) --begin;
  return utf8::decode(text, begin).code;
}

// The two zero-width joiners count as part of a word here, as in Rust's regular expressions.
bool joins_words(char32_t c) {
  return is_word(c) || c == 0x200C || c == 0x200D;
}

bool stands_alone(std::string_view text, Span span) {
  if (span.begin > 0 && joins_words(char_before(text, span.begin))) return false;
  return span.end == text.size() || !joins_words(utf8::decode(text, span.end).code);
}

std::size_t skip_space_back(std::string_view text, std::size_t end, std::size_t stop) {
  while (end > stop) {
    const char32_t c = char_before(text, end);
    if (!is_space(c)) break;
    std::string bytes;
    utf8::append(bytes, c);
    if (end - stop < bytes.size()) break;
    end -= bytes.size();
  }
  return end;
}

std::size_t skip_space(std::string_view text, std::size_t begin, std::size_t stop) {
  while (begin < stop) {
    const utf8::Char c = utf8::decode(text, begin);
    if (!is_space(c.code)) break;
    begin += c.n_bytes;
  }
  return begin;
}

}  // namespace

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto found = std::find_if(tokens_.begin(), tokens_.end(), [id](const auto& token) { return token.id == id; });
  return found == tokens_.end() ? nullptr : &*found;
}

void AddedTokens::add(AddedToken token) {
  if (token.pattern.empty()) return;
  std::uint32_t node = 0;
  for (const char c : token.pattern) {
    const auto next = static_cast<std::uint32_t>(token_of_node_.size());
    const auto [found, is_new] = edges_.try_emplace(edge(node, static_cast<unsigned char>(c)), next);
    if (is_new) token_of_node_.push_back(-1);
    node = found->second;
  }
  first_bytes_[static_cast<unsigned char>(token.pattern[0])] = true;
  token_of_node_[node] = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

// All tokens that begin at `pos`, shortest first.
void AddedTokens::hits_at(std::string_view text, std::size_t pos, std::vector<Hit>& hits) const {
  hits.clear();
  if (!first_bytes_[static_cast<unsigned char>(text[pos])]) return;
  std::uint32_t node = 0;
  for (std::size_t i = pos; i < text.size(); ++i) {
    const auto found = edges_.find(edge(node, static_cast<unsigned char>(text[i])));
    if (found == edges_.end()) return;
    node = found->second;
    if (const std::int32_t index = token_of_node_[node]; index >= 0) {
      hits.push_back({i + 1 - pos, &tokens_[static_cast<std::size_t>(index)]});
    }
  }
}

std::vector<Section> AddedTokens::split(std::string_view text, bool parse_special) const {
  if (text.empty()) return {};
  if (tokens_.empty()) return {{{0, text.size()}, std::nullopt}};
  return overlap_ == Overlap::kLeftmostLongest ? split_leftmost(text, parse_special)
                                               : split_longest(text, parse_special);
}

std::vector<Section> AddedTokens::split_leftmost(std::string_view text, bool parse_special) const {
  std::vector<Section> sections;
  std::vector<Hit> hits;
  std::size_t done = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    hits_at(text, pos, hits);
    if (hits.empty()) {
      ++pos;
      continue;
    }
    const AddedToken& token = *hits.back().token;
    Span span{pos, pos + hits.back().n_bytes};
    // A match that is not wanted still hides what lies inside it, as in tokenizers.
    pos = span.end;
    if (token.special && !parse_special) continue;
    if (token.single_word && !stands_alone(text, span)) continue;
    if (token.lstrip) span.begin = skip_space_back(text, span.begin, done);
    if (token.rstrip) span.end = skip_space(text, span.end, text.size());
    span.begin = std::max(span.begin, done);
    if (done < span.begin) sections.push_back({{done, span.begin}, std::nullopt});
    sections.push_back({span, token.id});
    done = span.end;
  }
  if (done < text.size()) sections.push_back({{done, text.size()}, std::nullopt});
  return sections;
}

std::vector<Section> AddedTokens::split_longest(std::string_view text, bool parse_special) const {
  std::vector<Hit> hits;
  std::vector<std::size_t> places;                // where any wanted token begins
  std::set<std::size_t, std::greater<>> lengths;  // of the tokens found, longest first
  const auto wanted = [&](const Hit& hit) { return parse_special || !hit.token->special; };
  for (std::size_t pos = 0; pos < text.size(); ++pos) {
    hits_at(text, pos, hits);
    bool any = false;
    for (const Hit& hit : hits) {
      if (!wanted(hit)) continue;
      any = true;
      lengths.insert(hit.n_bytes);
    }
    if (any) places.push_back(pos);
  }

  std::vector<bool> taken(places.empty() ? 0 : text.size());
  struct Found {
    Span span;
    const AddedToken* token;
  };
  std::vector<Found> found;
  for (const std::size_t n_bytes : lengths) {
    for (const std::size_t pos : places) {
      if (pos + n_bytes > text.size()) break;
      const auto first = taken.begin() + static_cast<std::ptrdiff_t>(pos);
      if (*first) continue;
      hits_at(text, pos, hits);
      const auto hit =
          std::find_if(hits.begin(), hits.end(), [&](const Hit& h) { return h.n_bytes == n_bytes && wanted(h); });
      if (hit == hits.end()) continue;
      const auto last = first + static_cast<std::ptrdiff_t>(n_bytes);
      if (std::find(first, last, true) != last) continue;
      std::fill(first, last, true);
      found.push_back({{pos, pos + n_bytes}, hit->token});
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.span.begin < b.span.begin; });

  std::vector<Section> sections;
  std::size_t done = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    Span span = found[i].span;
    const std::size_t next = i + 1 < found.size() ? found[i + 1].span.begin : text.size();
    if (found[i].token->lstrip) span.begin = skip_space_back(text, span.begin, done);
    if (found[i].token->rstrip) span.end = skip_space(text, span.end, next);
    if (done < span.begin) sections.push_back({{done, span.begin}, std::nullopt});
    sections.push_back({span, found[i].token->id});
    done = span.end;
  }
  if (done < text.size()) sections.push_back({{done, text.size()}, std::nullopt});
  return sections;
}

}  // namespace memoir::text
