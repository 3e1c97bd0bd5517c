#pragma once

#include <cstddef>

namespace memoir::kernels {

inline constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;

/// Asks the system to back this memory, of whole huge pages at a multiple of one, with huge pages: reading it then
/// takes a processor fewer look-ups of addresses. A wish: nothing happens where the system doesn't have them.
void prefer_huge_pages(void* begin, std::size_t n_bytes) noexcept;

}  // namespace memoir::kernels
