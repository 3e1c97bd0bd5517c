#pragma once

// How the C library's heap treats freed blocks. One implementation per library, chosen by CMake.

namespace memoir::cli {

/// While one exists, large blocks go back to the system as soon as they are freed: for reading a model, which needs
/// many for a moment each. Afterwards the heap keeps them for the next ones, as a forward pass wants it.
class FreedBlocksReturn {
 public:
  FreedBlocksReturn();
  ~FreedBlocksReturn();
  FreedBlocksReturn(const FreedBlocksReturn&) = delete;
  FreedBlocksReturn& operator=(const FreedBlocksReturn&) = delete;
};

}  // namespace memoir::cli
