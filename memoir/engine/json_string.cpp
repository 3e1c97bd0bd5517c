#include "memoir/engine/json_string.h"

#include <string_view>

namespace memoir::engine {
namespace {

bool is_hex(std::uint8_t byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}
bool in(std::uint8_t byte, int low, int high) {
  return byte >= low && byte <= high;
}

using enum JsonStringState;

JsonStringState step_plain(std::uint8_t byte) {
  if (byte == '\\') return kEscape;
  if (in(byte, 0x20, 0x7F)) return kPlain;
  if (in(byte, 0xC2, 0xDF)) return kTail1;
  if (byte == 0xE0) return kAfterE0;
  if (byte == 0xED) return kAfterEd;
  if (in(byte, 0xE1, 0xEF)) return kTail2;
  if (byte == 0xF0) return kAfterF0;
  if (in(byte, 0xF1, 0xF3)) return kTail3;
  return byte == 0xF4 ? kAfterF4 : kBad;
}

JsonStringState step_escape(std::uint8_t byte) {
  if (byte == 'u') return kHex4;
  return std::string_view("\"\\/bfnrt").find(static_cast<char>(byte)) != std::string_view::npos ? kPlain : kBad;
}

JsonStringState after_d(std::uint8_t byte) {
  if (in(byte, '0', '7')) return kHex2;
  return in(byte, '8', '9') || in(byte | 0x20, 'a', 'b') ? kHigh2 : kBad;
}

}  // namespace

JsonStringState step_json_string(JsonStringState state, std::uint8_t byte) {
  const auto if_hex = [&](JsonStringState next) { return is_hex(byte) ? next : kBad; };
  const auto if_in = [&](int low, int high, JsonStringState next) { return in(byte, low, high) ? next : kBad; };
  switch (state) {
    case kPlain:
      return step_plain(byte);
    case kEscape:
      return step_escape(byte);
    case kHex4:
      return (byte | 0x20) == 'd' ? kAfterD : if_hex(kHex3);
    case kHex3:
      return if_hex(kHex2);
    case kHex2:
      return if_hex(kHex1);
    case kHex1:
      return if_hex(kPlain);
    case kAfterD:
      return after_d(byte);
    case kHigh2:
      return if_hex(kHigh1);
    case kHigh1:
      return if_hex(kWantEscape);
    case kWantEscape:
      return byte == '\\' ? kWantU : kBad;
    case kWantU:
      return byte == 'u' ? kWantD : kBad;
    case kWantD:
      return (byte | 0x20) == 'd' ? kWantLow : kBad;
    case kWantLow:
      return in(byte | 0x20, 'c', 'f') ? kHex2 : kBad;
    case kTail1:
      return if_in(0x80, 0xBF, kPlain);
    case kTail2:
      return if_in(0x80, 0xBF, kTail1);
    case kTail3:
      return if_in(0x80, 0xBF, kTail2);
    case kAfterE0:
      return if_in(0xA0, 0xBF, kTail1);
    case kAfterEd:
      return if_in(0x80, 0x9F, kTail1);
    case kAfterF0:
      return if_in(0x90, 0xBF, kTail2);
    case kAfterF4:
      return if_in(0x80, 0x8F, kTail2);
    case kBad:
      break;
  }
  return kBad;
}

}  // namespace memoir::engine
