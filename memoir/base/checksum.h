#pragma once

// A checksum (XXH3, 64 or 128 bits) of bytes that come piece by piece: it finds damage, not malice.
// Source: https://github.com/Cyan4973/xxHash. Threads: one at a time.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace memoir {

/// 128 bits: wide enough to name things by, as long as nobody tries to make two that have the same.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Digest&) const = default;

  /// 32 hexadecimal digits, and back: nullopt for anything else.
  std::string hex() const;
  static std::optional<Digest> parse(std::string_view hex);
};

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);

  /// The text and where it ends, so that "ab", "c" is not "a", "bc".
  void add(std::string_view text);

  /// Of what was added so far: 64 bits, the same as 16 hexadecimal digits, and 128 bits.
  std::uint64_t value() const;
  std::string hex() const;
  Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace memoir
