#include "memoir/text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "memoir/text/jinja_special_casing.h"

namespace memoir::text::jinja {
namespace {

utf8proc_category_t category(std::int32_t code) {
  return code < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(code);
}

const SpecialCase* special_case(std::int32_t code) {
  if (code < 0xDF) return nullptr;
  const auto* found = std::lower_bound(
      std::begin(kSpecialCases), std::end(kSpecialCases), code,
      [](const SpecialCase& entry, std::int32_t wanted) { return entry.code < static_cast<char32_t>(wanted); });
  const bool hit = found != std::end(kSpecialCases) && found->code == static_cast<char32_t>(code);
  return hit ? found : nullptr;
}

void append_all(std::string& out, std::u32string_view characters) {
  for (const char32_t code : characters) append_character(out, static_cast<std::int32_t>(code));
}

void append_upper(std::string& out, std::int32_t code) {
  if (const SpecialCase* special = special_case(code)) return append_all(out, special->upper);
  append_character(out, utf8proc_toupper(code));
}

void append_title(std::string& out, std::int32_t code) {
  if (const SpecialCase* special = special_case(code)) return append_all(out, special->title);
  append_character(out, utf8proc_totitle(code));
}

bool is_cased(std::int32_t code) {
  const auto kind = category(code);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT;
}

constexpr std::int32_t kCapitalSigma = 0x3A3;

// Greek writes a sigma that ends a word differently: one after a letter and not before one.
std::int32_t lower_sigma(std::string_view text, std::size_t at, bool after_letter) {
  const std::size_t next = at + character_at(text, at).n_bytes;
  const bool before_letter = next < text.size() && is_cased(character_at(text, next).code);
  return after_letter && !before_letter ? 0x3C2 : 0x3C3;
}

void append_lower(std::string& out, std::string_view text, std::size_t at, bool after_letter) {
  const std::int32_t code = character_at(text, at).code;
  if (code == kCapitalSigma) return append_character(out, lower_sigma(text, at, after_letter));
  if (code == 0x130) return append_all(out, U"i\x0307");
  append_character(out, utf8proc_tolower(code));
}

// Calls change(out, text, at, after_letter, code) for each valid character; other bytes are kept.
template <class Change>
std::string map_characters(std::string_view text, const Change& change) {
  std::string out;
  out.reserve(text.size());
  bool after_letter = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (character.code < 0) {
      out += text[at];
    } else {
      change(out, at, after_letter, character.code);
    }
    after_letter = is_cased(character.code);
    at += character.n_bytes;
  }
  return out;
}

bool contains_character(std::string_view characters, std::string_view wanted) {
  for (std::size_t at = 0; at < characters.size();) {
    const std::size_t n_bytes = character_at(characters, at).n_bytes;
    if (characters.substr(at, n_bytes) == wanted) return true;
    at += n_bytes;
  }
  return false;
}

// The byte at which the last character of text (not empty) begins.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  const std::size_t lowest = text.size() >= 4 ? text.size() - 4 : 0;
  for (std::size_t start = at + 1; start-- > lowest;) {
    if (start + character_at(text, start).n_bytes == text.size()) at = start;
    if ((static_cast<unsigned char>(text[start]) & 0xC0) != 0x80) break;
  }
  return at;
}

bool is_line_end(std::int32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = -1;
  const auto n_bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                       static_cast<utf8proc_ssize_t>(std::min<std::size_t>(4, text.size() - at)), &code);
  if (n_bytes < 1) return {-1, 1};
  return {code, static_cast<std::size_t>(n_bytes)};
}

void append_character(std::string& out, std::int32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto n_bytes = utf8proc_encode_char(code, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n_bytes));
}

bool is_ascii(std::string_view text) {
  unsigned char any = 0;
  for (const char byte : text) any |= static_cast<unsigned char>(byte);
  return any < 0x80;
}

std::size_t n_characters(std::string_view text) {
  std::size_t n = 0;
  for (std::size_t at = 0; at < text.size(); ++n) at += character_at(text, at).n_bytes;
  return n;
}

std::vector<std::size_t> character_offsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < text.size();) {
    offsets.push_back(at);
    at += character_at(text, at).n_bytes;
  }
  offsets.push_back(text.size());
  return offsets;
}

std::size_t byte_of_character(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += character_at(text, at).n_bytes;
    --index;
  }
  return at;
}

bool is_space(std::int32_t code) {
  if (code < 0x80) return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_decimal(std::int32_t code) {
  return category(code) == UTF8PROC_CATEGORY_ND;
}

bool is_alpha(std::int32_t code) {
  const auto kind = category(code);
  return is_cased(code) || kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_LO;
}

bool is_numeric(std::int32_t code) {
  const auto kind = category(code);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_upper(std::int32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU;
}
bool is_lower(std::int32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL;
}

bool is_printable(std::int32_t code) {
  if (code == ' ') return true;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_word(std::int32_t code) {
  return code == '_' || is_alpha(code) || is_numeric(code);
}

std::string to_upper(std::string_view text) {
  return map_characters(text, [](std::string& out, std::size_t, bool, std::int32_t code) { append_upper(out, code); });
}

std::string to_lower(std::string_view text) {
  return map_characters(text, [text](std::string& out, std::size_t at, bool after_letter, std::int32_t) {
    append_lower(out, text, at, after_letter);
  });
}

std::string capitalize(std::string_view text) {
  return map_characters(text, [text](std::string& out, std::size_t at, bool after_letter, std::int32_t code) {
    if (at == 0) return append_title(out, code);
    append_lower(out, text, at, after_letter);
  });
}

std::string title_words(std::string_view text) {
  return map_characters(text, [text](std::string& out, std::size_t at, bool after_letter, std::int32_t code) {
    if (!after_letter) return append_title(out, code);
    append_lower(out, text, at, after_letter);
  });
}

std::string swap_case(std::string_view text) {
  return map_characters(text, [text](std::string& out, std::size_t at, bool after_letter, std::int32_t code) {
    if (is_upper(code)) return append_lower(out, text, at, after_letter);
    if (is_lower(code)) return append_upper(out, code);
    append_character(out, code);
  });
}

TextFinder::TextFinder(std::string_view needle) : needle_(needle) {
  constexpr std::size_t kShort = 64;
  if (needle_.size() < kShort) return;
  borders_.resize(needle_.size(), 0);
  std::size_t border = 0;
  for (std::size_t i = 1; i < needle_.size(); ++i) {
    while (border > 0 && needle_[i] != needle_[border]) border = borders_[border - 1];
    if (needle_[i] == needle_[border]) ++border;
    borders_[i] = border;
  }
}

// Knuth, Morris, Pratt for long needles.
std::size_t TextFinder::find(std::string_view text, std::size_t from) const {
  if (borders_.empty()) return text.find(needle_, from);
  std::size_t n_matched = 0;
  for (std::size_t i = from; i < text.size(); ++i) {
    while (n_matched > 0 && text[i] != needle_[n_matched]) n_matched = borders_[n_matched - 1];
    if (text[i] == needle_[n_matched]) ++n_matched;
    if (n_matched == needle_.size()) return i + 1 - n_matched;
  }
  return std::string_view::npos;
}

std::string_view strip(std::string_view text, const std::string_view* characters, bool left, bool right) {
  const auto strippable = [&](std::size_t at, std::size_t n_bytes) {
    return characters == nullptr ? is_space(character_at(text, at).code)
                                 : contains_character(*characters, text.substr(at, n_bytes));
  };
  while (left && !text.empty()) {
    const std::size_t n_bytes = character_at(text, 0).n_bytes;
    if (!strippable(0, n_bytes)) break;
    text.remove_prefix(n_bytes);
  }
  while (right && !text.empty()) {
    const std::size_t at = last_character(text);
    if (!strippable(at, text.size() - at)) break;
    text = text.substr(0, at);
  }
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    std::size_t next = at + character.n_bytes;
    if (is_line_end(character.code)) {
      if (character.code == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(start, (keep_ends ? next : at) - start));
      start = next;
    }
    at = next;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, std::int64_t max_count) {
  std::string out;
  const TextFinder finder(from);
  std::size_t at = 0;
  std::int64_t n_replaced = 0;
  while (n_replaced != max_count && at <= text.size()) {
    const std::size_t found = finder.find(text, at);
    if (found == std::string_view::npos) break;
    out.append(text, at, found - at).append(to);
    at = found + from.size();
    ++n_replaced;
    if (!from.empty()) continue;
    if (at == text.size()) return out;
    const std::size_t n_bytes = character_at(text, at).n_bytes;
    out.append(text, at, n_bytes);
    at += n_bytes;
  }
  return out.append(text, at, std::string_view::npos);
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char byte : text) {
    switch (byte) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += byte;
    }
  }
  return out;
}

}  // namespace memoir::text::jinja
