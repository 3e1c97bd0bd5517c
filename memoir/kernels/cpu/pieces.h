#pragma once

// How the drivers that make several calls lay out what lies between them.

#include <cstddef>

#include "memoir/kernels/cpu/packed.h"
#include "memoir/kernels/cpu/scratch.h"

namespace memoir::kernels::cpu {

/// Cuts one buffer into pieces: counted first, then handed out. The caller takes the same pieces twice, before and
/// after place_in().
class Pieces {
 public:
  /// n floats, at a multiple of 64 bytes. Null while the buffer is not there.
  float* take(std::size_t n) {
    float* piece = memory_ ? memory_ + n_taken_ : nullptr;
    n_taken_ += (n + kLanes - 1) / kLanes * kLanes;
    return piece;
  }

  /// Throws std::bad_alloc.
  void place_in(Scratch& scratch) {
    memory_ = scratch.floats(n_taken_);
    n_taken_ = 0;
  }

 private:
  float* memory_ = nullptr;
  std::size_t n_taken_ = 0;
};

}  // namespace memoir::kernels::cpu
