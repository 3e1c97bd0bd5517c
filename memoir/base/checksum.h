#pragma once

// A 64-bit checksum (XXH3) of bytes that come piece by piece: it finds damage, not malice.
// Source: https://github.com/Cyan4973/xxHash. Threads: one at a time.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace memoir {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);

  /// The text and where it ends, so that "ab", "c" is not "a", "bc".
  void add(std::string_view text);

  /// Of what was added so far, as 16 hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace memoir
