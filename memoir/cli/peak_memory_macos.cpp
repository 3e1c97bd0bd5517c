#include <sys/resource.h>

#include "memoir/cli/peak_memory.h"

namespace memoir::cli {

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;  // macOS counts bytes
}

}  // namespace memoir::cli
