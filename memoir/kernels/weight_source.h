#pragma once

// A weight matrix that still lies in a file, packed for the CPU kernels piece by piece as it is read: by all threads of
// the pool, with no other form of it in memory than the piece that each of them has in hand.

#include <cstddef>
#include <functional>
#include <optional>

#include "memoir/kernels/cpu/packed.h"
#include "memoir/kernels/weight.h"

namespace memoir::kernels {

struct WeightSource {
  /// Rows begin to end - 1, which may lie in `scratch`, at a multiple of 64, the reader's own until they are packed.
  /// nullopt where a value can't be held in this format. Called from several threads at once; may throw.
  using Read = std::function<std::optional<cpu::StoredRows>(int begin, int end, std::byte* scratch)>;

  cpu::PackedFormat format;
  std::size_t row_scratch_bytes;  // for each row that is read
  Read read = nullptr;
  int row_multiple = 1;  // begin is a multiple of it, and end is one too, or the number of rows
};

/// The whole of it, packed, in weight_memory(). nullopt if read() returned that for some rows. For the CPU. Throws what
/// read() throws, and std::bad_alloc.
std::optional<Weight> prepared(const WeightSource& source);

}  // namespace memoir::kernels
