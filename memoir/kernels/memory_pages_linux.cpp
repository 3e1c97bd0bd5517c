#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "memoir/kernels/memory_pages.h"

namespace memoir::kernels {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulate = MADV_POPULATE_WRITE;
#else
constexpr int kPopulate = 23;  // of Linux 5.14 and later; others refuse it
#endif

}  // namespace

void prefer_huge_pages(void* begin, std::size_t n_bytes) noexcept {
  madvise(begin, n_bytes, MADV_HUGEPAGE);
}

void make_pages(std::span<std::byte> memory) noexcept {
  static const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t before = (page_bytes - address % page_bytes) % page_bytes;
  if (memory.size() < before + page_bytes) return;
  const std::size_t n_bytes = (memory.size() - before) / page_bytes * page_bytes;
  madvise(memory.data() + before, n_bytes, kPopulate);
}

}  // namespace memoir::kernels
