#include "memoir/text/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

constexpr std::size_t kTwoByteChars = 0x800;

std::array<TokenId, 256> byte_ids(const Vocabulary& vocabulary) {
  std::array<TokenId, 256> ids{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    ids[byte] = vocabulary.id(byte_token_text(static_cast<unsigned char>(byte))).value_or(-1);
  }
  return ids;
}

std::uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string byte_token_text(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15U], '>'};
}

std::optional<unsigned char> byte_of_token_text(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const int high = hex_digit(text[3]);
  const int low = hex_digit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

void PairTable::reserve(std::size_t n_merges) {
  std::size_t n_slots = 16;
  while (n_slots < 2 * n_merges) n_slots *= 2;
  if (n_slots > slots_.size()) grow(n_slots);
}

std::size_t PairTable::slot_of(std::uint64_t pair) const {
  std::uint64_t hash = pair ^ (pair >> 32);
  hash *= 0x9E3779B97F4A7C15U;
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = static_cast<std::size_t>(hash >> 32) & mask;
  while (slots_[i].pair != kEmpty && slots_[i].pair != pair) i = (i + 1) & mask;
  return i;
}

void PairTable::grow(std::size_t n_slots) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(n_slots, Slot{kEmpty, {0, 0}}));
  for (const Slot& slot : old) {
    if (slot.pair != kEmpty) slots_[slot_of(slot.pair)] = slot;
  }
}

bool PairTable::insert(TokenId left, TokenId right, Merge merge, bool replace) {
  if (2 * (n_used_ + 1) > slots_.size()) grow(slots_.empty() ? 16 : 2 * slots_.size());
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.pair != kEmpty && !replace) return false;
  if (slot.pair == kEmpty) ++n_used_;
  slot = {pair_key(left, right), merge};
  return true;
}

const PairTable::Merge* PairTable::find(TokenId left, TokenId right) const {
  if (slots_.empty()) return nullptr;
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.pair == kEmpty ? nullptr : &slot.merge;
}

MergeBpe::MergeBpe(const Vocabulary& vocabulary, MergeBpeOptions options)
    : vocabulary_(vocabulary), options_(std::move(options)), byte_ids_(byte_ids(vocabulary)) {
  two_byte_chars_.resize(kTwoByteChars);
  for (std::size_t code = 0; code < kTwoByteChars; ++code) {
    std::string text;
    utf8::append(text, static_cast<char32_t>(code));
    two_byte_chars_[code] = vocabulary.word(text).value_or(kNone);
  }
}

void MergeBpe::add_merge(TokenId left, TokenId right, TokenId merged, bool replace) {
  merges_.insert(left, right, {n_merges_++, merged}, replace);
}

const MergeBpe::Merge* MergeBpe::merge_of(TokenId left, TokenId right) const {
  if (left == kNone || right == kNone) return nullptr;
  return merges_.find(left, right);
}

TokenId MergeBpe::char_id(std::string_view text) const {
  if (text.size() <= 2) return two_byte_chars_[utf8::decode(text, 0).code];
  return vocabulary_.word(text).value_or(kNone);
}

void MergeBpe::add_unknown(std::string_view text, std::vector<Symbol>& symbols, bool& last_is_unk) const {
  if (options_.byte_fallback) {
    const bool all = std::all_of(text.begin(), text.end(),
                                 [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] != kNone; });
    if (all) {
      for (const char c : text) symbols.push_back({byte_ids_[static_cast<unsigned char>(c)], 0, 0, true});
      last_is_unk = false;
      return;
    }
  }
  if (options_.unk) {
    if (!(options_.fuse_unk && last_is_unk)) symbols.push_back({*options_.unk, 0, 0, true});
    last_is_unk = true;
  } else if (options_.unknown_blocks_merges) {
    symbols.push_back({kNone, 0, 0, true});
  }
}

void MergeBpe::start(std::string_view word, std::vector<Symbol>& symbols) const {
  const bool plain = options_.continuing_prefix.empty() && options_.end_suffix.empty();
  bool last_is_unk = false;
  for (std::size_t pos = 0; pos < word.size();) {
    const std::size_t n_bytes = utf8::decode(word, pos).n_bytes;
    const std::string_view c = word.substr(pos, n_bytes);
    const bool is_first = pos == 0;
    pos += n_bytes;
    std::string dressed;
    TokenId id = kNone;
    if (plain) {
      id = char_id(c);
    } else {
      if (!is_first) dressed = options_.continuing_prefix;
      dressed += c;
      if (pos >= word.size()) dressed += options_.end_suffix;
      id = vocabulary_.word(dressed).value_or(kNone);
    }
    if (id != kNone) {
      symbols.push_back({id, 0, 0, true});
      last_is_unk = false;
    } else {
      add_unknown(plain ? c : dressed, symbols, last_is_unk);
    }
  }
  const auto n = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t i = 0; i < n; ++i) {
    symbols[static_cast<std::size_t>(i)].previous = i - 1;
    symbols[static_cast<std::size_t>(i)].next = i + 1 < n ? i + 1 : -1;
  }
}

void MergeBpe::merge_all(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols_;
  std::vector<std::uint64_t>& heap = scratch.heap_;
  heap.clear();
  const auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto consider = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0) return false;
    const Merge* merge = merge_of(at(left).id, at(right).id);
    if (merge == nullptr) return false;
    heap.push_back((static_cast<std::uint64_t>(merge->rank) << 32) | static_cast<std::uint32_t>(left));
    return true;
  };
  constexpr std::greater<> kLowestOnTop;
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) consider(i, i + 1);
  std::make_heap(heap.begin(), heap.end(), kLowestOnTop);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kLowestOnTop);
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto place = static_cast<std::int32_t>(top & 0xFFFF'FFFFU);
    Symbol& left = at(place);
    if (!left.alive || left.next < 0) continue;
    Symbol& right = at(left.next);
    // One of the two may have grown since.
    const Merge* merge = merge_of(left.id, right.id);
    if (merge == nullptr || merge->rank != top >> 32) continue;

    left.id = merge->id;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) at(left.next).previous = place;
    if (consider(left.previous, place)) std::push_heap(heap.begin(), heap.end(), kLowestOnTop);
    if (consider(place, left.next)) std::push_heap(heap.begin(), heap.end(), kLowestOnTop);
  }
}

void MergeBpe::encode(std::string_view word, std::vector<TokenId>& out, Scratch& scratch) const {
  if (word.empty()) return;
  const bool newlines = options_.whole_newlines && word.find_first_not_of('\n') == std::string_view::npos;
  if (options_.ignore_merges || newlines) {
    if (const std::optional<TokenId> id = vocabulary_.word(word)) {
      out.push_back(*id);
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch.symbols_;
  symbols.clear();
  start(word, symbols);
  merge_all(scratch);
  for (const Symbol& symbol : symbols) {
    if (symbol.alive && symbol.id != kNone) out.push_back(symbol.id);
  }
}

ScoreBpe::ScoreBpe(const Vocabulary& vocabulary, std::vector<float> scores, std::optional<TokenId> unk)
    : vocabulary_(vocabulary), scores_(std::move(scores)), unk_(unk), byte_ids_(byte_ids(vocabulary)) {
  scores_.resize(static_cast<std::size_t>(vocabulary.size()));
}

void ScoreBpe::consider(std::string_view text, const std::vector<Symbol>& symbols, std::int32_t left,
                        std::vector<Pair>& heap) const {
  if (left < 0) return;
  const Symbol& first = symbols[static_cast<std::size_t>(left)];
  if (first.next < 0) return;
  const std::size_t n_bytes = first.n_bytes + symbols[static_cast<std::size_t>(first.next)].n_bytes;
  if (n_bytes > vocabulary_.longest_bytes()) return;
  const std::optional<TokenId> id = vocabulary_.word(text.substr(first.begin, n_bytes));
  if (!id) return;
  heap.push_back({scores_[static_cast<std::size_t>(*id)], left, n_bytes});
  std::push_heap(heap.begin(), heap.end(),
                 [](const Pair& a, const Pair& b) { return a.score != b.score ? a.score < b.score : a.left > b.left; });
}

void ScoreBpe::emit(std::string_view symbol, std::vector<TokenId>& out) const {
  if (const std::optional<TokenId> id = vocabulary_.word(symbol)) {
    out.push_back(*id);
    return;
  }
  for (const char c : symbol) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      out.push_back(id);
    } else if (unk_) {
      out.push_back(*unk_);
    }
  }
}

void ScoreBpe::encode(std::string_view text, std::vector<TokenId>& out) const {
  std::vector<Symbol> symbols;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t n_bytes = utf8::decode(text, pos).n_bytes;
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({pos, n_bytes, index - 1, index + 1});
    pos += n_bytes;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  const auto worse = [](const Pair& a, const Pair& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  };
  std::vector<Pair> heap;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(symbols.size()); ++i) consider(text, symbols, i, heap);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), worse);
    const Pair top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<std::size_t>(top.left)];
    if (left.n_bytes == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (left.n_bytes + right.n_bytes != top.n_bytes) continue;
    left.n_bytes += right.n_bytes;
    right.n_bytes = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.left;
    consider(text, symbols, left.previous, heap);
    consider(text, symbols, top.left, heap);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
    emit(text.substr(symbol.begin, symbol.n_bytes), out);
  }
}

}  // namespace memoir::text
