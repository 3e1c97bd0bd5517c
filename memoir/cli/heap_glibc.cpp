#include <malloc.h>

#include "memoir/cli/heap.h"

namespace memoir::cli {
namespace {

// Blocks of at least so many bytes get pages of their own. glibc starts with the lower and, left alone, moves towards
// the upper each time such a block is freed, from when on freed blocks stay in the process.
constexpr int kLowestThreshold = 128 << 10;
constexpr int kHighestThreshold = 32 << 20;

}  // namespace

FreedBlocksReturn::FreedBlocksReturn() {
  mallopt(M_MMAP_THRESHOLD, kLowestThreshold);
}

FreedBlocksReturn::~FreedBlocksReturn() {
  malloc_trim(0);
  mallopt(M_MMAP_THRESHOLD, kHighestThreshold);
  mallopt(M_TRIM_THRESHOLD, 2 * kHighestThreshold);
}

}  // namespace memoir::cli
