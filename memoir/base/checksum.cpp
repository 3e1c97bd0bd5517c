#include "memoir/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>

namespace memoir {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

std::string hex_of(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; value >>= 4) text[i] = kDigits[value & 0xF];
  return text;
}

}  // namespace

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

std::uint64_t Checksum::value() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

std::string Checksum::hex() const {
  return hex_of(value());
}

// The two sizes take bytes in alike; only the last step differs.
Digest Checksum::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return {hash.high64, hash.low64};
}

std::string Digest::hex() const {
  return hex_of(high) + hex_of(low);
}

std::optional<Digest> Digest::parse(std::string_view hex) {
  if (hex.size() != 32 || hex.find_first_not_of(kDigits) != std::string_view::npos) return std::nullopt;
  Digest digest;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    std::uint64_t& half = i < 16 ? digest.high : digest.low;
    half = half << 4 | kDigits.find(hex[i]);
  }
  return digest;
}

}  // namespace memoir
