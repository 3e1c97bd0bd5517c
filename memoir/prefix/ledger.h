#pragma once

// Bytes held by payloads, those that share a storage counted once.
// Threads: none of its own; the owner serializes.

#include <cstddef>
#include <unordered_map>

#include "memoir/prefix/payload.h"

namespace memoir::prefix {

class Ledger {
 public:
  enum class Sort { kRows, kCheckpoint };

  void add(const Payload& payload, Sort sort);

  /// Takes one payload out, by the storage that it was added with.
  void remove(const void* storage);

  /// Reads the size anew.
  void recount(const Payload& payload);

  std::size_t rows_bytes() const { return rows_bytes_; }
  std::size_t checkpoint_bytes() const { return checkpoint_bytes_; }

  /// The payload's part: its storage's bytes divided by the payloads in it.
  std::size_t share_bytes(const Payload& payload) const;

 private:
  struct Storage {
    std::size_t n_bytes;
    int n_payloads;
    Sort sort;  // of the first payload in it
  };

  std::size_t& total(Sort sort) { return sort == Sort::kRows ? rows_bytes_ : checkpoint_bytes_; }

  std::unordered_map<const void*, Storage> storages_;
  std::size_t rows_bytes_ = 0;
  std::size_t checkpoint_bytes_ = 0;
};

}  // namespace memoir::prefix
