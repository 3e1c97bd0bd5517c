#include <sys/mman.h>

#include "memoir/kernels/huge_pages.h"

namespace memoir::kernels {

void prefer_huge_pages(void* begin, std::size_t n_bytes) noexcept {
  madvise(begin, n_bytes, MADV_HUGEPAGE);
}

}  // namespace memoir::kernels
