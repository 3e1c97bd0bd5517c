#include "memoir/text/byte_level.h"

#include <array>

#include "memoir/text/utf8.h"

namespace memoir::text {
namespace {

// Bytes that are printable in Latin-1 stand for themselves; the other 68 take U+0100 onwards, in order.
constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr unsigned kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<std::array<char, 2>, 256> text{};
  std::array<unsigned char, 256> n_bytes{};
  std::array<int, kAlphabetEnd> byte_of{};

  constexpr Alphabet() {
    byte_of.fill(-1);
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const unsigned code = stands_for_itself(byte) ? byte : next++;
      byte_of[code] = static_cast<int>(byte);
      if (code < 0x80) {
        text[byte] = {static_cast<char>(code), 0};
        n_bytes[byte] = 1;
      } else {
        text[byte] = {static_cast<char>(0xC0U | (code >> 6)), static_cast<char>(0x80U | (code & 0x3FU))};
        n_bytes[byte] = 2;
      }
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out.append(kAlphabet.text[byte].data(), kAlphabet.n_bytes[byte]);
  }
}

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    const utf8::Char c = utf8::decode(text, pos);
    const int byte = c.valid && c.code < kAlphabetEnd ? kAlphabet.byte_of[c.code] : -1;
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    pos += c.n_bytes;
  }
  return bytes;
}

}  // namespace memoir::text
