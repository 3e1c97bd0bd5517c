#include "memoir/kernels/memory_pages.h"

namespace memoir::kernels {

// Its kernel chooses pages by itself, of 16 KiB at least, and takes no such wishes.
void prefer_huge_pages(void*, std::size_t) noexcept {}

void make_pages(std::span<std::byte>) noexcept {}

}  // namespace memoir::kernels
