#include "memoir/kernels/huge_pages.h"

namespace memoir::kernels {

// Its kernel chooses pages by itself, of 16 KiB at least.
void prefer_huge_pages(void*, std::size_t) noexcept {}

}  // namespace memoir::kernels
