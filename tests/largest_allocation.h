#pragma once

// Watches the largest single allocation of a test program, to show that a lying size in a file is refused before
// memory is reserved for it. Include it in one .cpp of the program only: it replaces the global operator new.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace memoir::test {

inline std::atomic<std::size_t> largest_allocation_bytes = 0;

}  // namespace memoir::test

// Not inlined: once a compiler sees malloc and free behind new and delete it warns of mismatched pairs.
[[gnu::noinline]] void* operator new(std::size_t n_bytes) {
  std::size_t largest = memoir::test::largest_allocation_bytes;
  while (n_bytes > largest && !memoir::test::largest_allocation_bytes.compare_exchange_weak(largest, n_bytes)) {
  }
  void* memory = std::malloc(n_bytes == 0 ? 1 : n_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Used by the temporary buffer of std::stable_sort.
[[gnu::noinline]] void* operator new(std::size_t n_bytes, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(n_bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*n_bytes*/) noexcept {
  std::free(memory);
}
