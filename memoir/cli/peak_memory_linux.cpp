#include <sys/resource.h>

#include "memoir/cli/peak_memory.h"

namespace memoir::cli {

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;  // Linux counts KiB
}

}  // namespace memoir::cli
