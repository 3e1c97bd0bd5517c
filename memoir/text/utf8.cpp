#include "memoir/text/utf8.h"

#include <algorithm>
#include <array>

namespace memoir::text::utf8 {
namespace {

// What may follow a lead byte: how many bytes in all, and the range of the second (the others are 80..BF).
struct Lead {
  std::size_t n_bytes;  // 0: not a lead byte
  unsigned char second_low;
  unsigned char second_high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Char decode(std::string_view text, std::size_t pos) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte_at(pos);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = lead_of(first);
  if (lead.n_bytes == 0) return {kReplacement, 1, false, false};

  char32_t code = first & (0x7FU >> lead.n_bytes);
  for (std::size_t i = 1; i < lead.n_bytes; ++i) {
    if (pos + i >= text.size()) return {kReplacement, i, false, true};
    const unsigned char next = byte_at(pos + i);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (next < low || next > high) return {kReplacement, i, false, false};
    code = (code << 6) | (next & 0x3FU);
  }
  return {code, lead.n_bytes, true, false};
}

void append(std::string& text, char32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = kReplacement;
  const auto tail = [&](unsigned shift) { text.push_back(static_cast<char>(0x80U | ((code >> shift) & 0x3FU))); };
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text.push_back(static_cast<char>(0xC0U | (code >> 6)));
    tail(0);
  } else if (code < 0x10000) {
    text.push_back(static_cast<char>(0xE0U | (code >> 12)));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0U | (code >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool valid(std::string_view text) {
  for (std::size_t pos = 0; pos < text.size();) {
    const Char c = decode(text, pos);
    if (!c.valid) return false;
    pos += c.n_bytes;
  }
  return true;
}

std::string replace_errors(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    const Char c = decode(text, pos);
    if (c.valid) {
      result.append(text.substr(pos, c.n_bytes));
    } else {
      append(result, kReplacement);
    }
    pos += c.n_bytes;
  }
  return result;
}

std::size_t incomplete_tail(std::string_view text) {
  const std::size_t n_checked = std::min<std::size_t>(3, text.size());
  for (std::size_t n = 1; n <= n_checked; ++n) {
    const Char c = decode(text, text.size() - n);
    if (c.cut_short && c.n_bytes == n) return n;
  }
  return 0;
}

}  // namespace memoir::text::utf8
