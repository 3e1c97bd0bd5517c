#pragma once

// What the system is asked about the pages of memory. Wishes: nothing fails where it can't or won't.

#include <cstddef>
#include <span>

namespace memoir::kernels {

inline constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;

/// Asks the system to back this memory, of whole huge pages at a multiple of one, with huge pages: reading it then
/// takes a processor fewer look-ups of addresses.
void prefer_huge_pages(void* begin, std::size_t n_bytes) noexcept;

/// Has the system find and clear the pages of this memory now, which it does else one by one, when each is first
/// written to. What is in it stays, also what another thread is writing to it.
void make_pages(std::span<std::byte> memory) noexcept;

}  // namespace memoir::kernels
