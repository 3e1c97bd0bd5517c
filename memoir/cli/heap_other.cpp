// Heaps without such a setting, macOS's among them, give large blocks back by themselves.
#include "memoir/cli/heap.h"

namespace memoir::cli {

FreedBlocksReturn::FreedBlocksReturn() = default;
FreedBlocksReturn::~FreedBlocksReturn() = default;

}  // namespace memoir::cli
