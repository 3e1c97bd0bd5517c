#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace memoir::kernels {

inline constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;

/// Asks the system to back this memory, of whole huge pages at a multiple of one, with huge pages: reading it then
/// takes a processor fewer look-ups of addresses. A wish: nothing happens where the system doesn't have them.
void prefer_huge_pages(void* begin, std::size_t n_bytes) noexcept;

/// The same for the huge pages that lie wholly within some memory, if any do.
inline void prefer_huge_pages_within(std::span<std::byte> memory) noexcept {
  const std::size_t before =
      (kHugePageBytes - reinterpret_cast<std::uintptr_t>(memory.data()) % kHugePageBytes) % kHugePageBytes;
  if (memory.size() < before + kHugePageBytes) return;
  prefer_huge_pages(memory.data() + before, (memory.size() - before) / kHugePageBytes * kHugePageBytes);
}

}  // namespace memoir::kernels
