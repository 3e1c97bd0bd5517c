#pragma once

// Every truncation and every damaged byte of a small file, for the tests of parsers.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/byte_source.h"

namespace memoir::test {

inline std::vector<std::byte> file_bytes(const std::filesystem::path& path) {
  auto source = open_file(path);
  std::vector<std::byte> bytes(source->size_bytes());
  source->read(0, bytes);
  return bytes;
}

inline std::unique_ptr<ByteSource> source_of(std::vector<std::byte> bytes) {
  return memory_source("memory", std::move(bytes));
}

/// Calls `open` with each proper prefix of `valid`.
inline void for_each_truncation(const std::vector<std::byte>& valid,
                                const std::function<void(const std::vector<std::byte>&)>& open) {
  for (std::size_t n_bytes = 0; n_bytes < valid.size(); ++n_bytes) {
    open({valid.begin(), valid.begin() + static_cast<std::ptrdiff_t>(n_bytes)});
  }
}

/// Calls `open` with `valid` after one byte was changed: each of its eight bits flipped, then all of them, then 0.
inline void for_each_damage(const std::vector<std::byte>& valid,
                            const std::function<void(const std::vector<std::byte>&)>& open) {
  std::vector<std::byte> bytes = valid;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = valid[i] ^ (std::byte{1} << bit);
      open(bytes);
    }
    for (const std::byte damage : {~valid[i], std::byte{0}}) {
      bytes[i] = damage;
      open(bytes);
    }
    bytes[i] = valid[i];
  }
}

}  // namespace memoir::test
