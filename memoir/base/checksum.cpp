#include "memoir/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>

namespace memoir {

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

void Checksum::add(std::string_view text) {
  add(std::as_bytes(std::span(text)));
  add(std::as_bytes(std::span("\xff", 1)));  // in no UTF-8 text
}

std::string Checksum::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::uint64_t value = XXH3_64bits_digest(&state_->xxh3);
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; value >>= 4) text[i] = kDigits[value & 0xF];
  return text;
}

}  // namespace memoir
