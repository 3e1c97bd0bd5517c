#include "memoir/cli/memory_size.h"

#include <unistd.h>

namespace memoir::cli {

std::size_t default_prefix_cache_bytes() {
  const long n_pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (n_pages < 1 || page_bytes < 1) return std::size_t{4} << 30;
  return static_cast<std::size_t>(n_pages) * static_cast<std::size_t>(page_bytes) / 4;
}

}  // namespace memoir::cli
