#include "memoir/base/printable.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace memoir {
namespace {

std::string escaped(const char* format, std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof(text), format, static_cast<unsigned>(value));
  return text;
}

std::string escaped_control(utf8proc_int32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  return escaped("\\x%02x", static_cast<std::uint32_t>(code));
}

// Joiners are format characters too, and parts of ordinary words and emoji.
bool is_hidden(utf8proc_int32_t code) {
  constexpr utf8proc_int32_t kNonJoiner = 0x200C;
  constexpr utf8proc_int32_t kJoiner = 0x200D;
  const utf8proc_category_t category = utf8proc_category(code);
  if (category == UTF8PROC_CATEGORY_CF) return code != kNonJoiner && code != kJoiner;
  return category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_characters) {
  std::string out;
  for (std::size_t n_characters = 0; !text.empty(); ++n_characters) {
    if (n_characters == max_characters) return out + "...";
    utf8proc_int32_t code = 0;
    const auto n_offered = static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size(), 4));
    const utf8proc_ssize_t n_used =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), n_offered, &code);
    const std::size_t n_bytes = n_used > 0 ? static_cast<std::size_t>(n_used) : 1;
    if (n_used <= 0) {
      out += escaped("\\x%02x", static_cast<unsigned char>(text.front()));
    } else if (utf8proc_category(code) == UTF8PROC_CATEGORY_CC) {
      out += escaped_control(code);
    } else if (is_hidden(code)) {
      out += escaped("\\u{%04x}", static_cast<std::uint32_t>(code));
    } else {
      out += text.substr(0, n_bytes);
    }
    text.remove_prefix(n_bytes);
  }
  return out;
}

}  // namespace memoir
