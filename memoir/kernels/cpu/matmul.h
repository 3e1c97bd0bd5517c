#pragma once

// y = x W^T for packed weights, one implementation per instruction set. No MLX.
//
// Exactness: y[m][n] depends on row m of x, row n of W and nothing else: one fused multiply-add in float32 for each
// column, in their order, of a weight that for quantized formats is fma(code, scale, bias). So the bits are the same
// for one row and for many, for every number of threads and for every instruction set. NaN and infinity spread as in
// any such sum.

#include <cstddef>
#include <cstdint>

#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels::cpu {

struct MatmulArgs {
  PackedFormat format;
  const std::byte* weights;     // format.size_bytes()
  int n_rows;                   // M
  const float* x = nullptr;     // [M, K]
  const float* bias = nullptr;  // [N] or null, added to the product
  float* y = nullptr;           // [M, N]
};

/// Tiles that are multiplied side by side, so that their sums hide each other's latency.
inline constexpr int kTileRun = 4;

/// What an instruction set provides.
struct Kernels {
  const char* name;
  bool (*is_supported)();  // by this processor

  /// The outputs of tiles [begin, end), for all rows. panel: scratch of kTileRun * kLanes * K floats.
  void (*matmul_tiles)(const MatmulArgs& args, int begin, int end, float* panel);
};

/// y = x W^T with kernels(), on all threads. Scratch is kept per thread.
void matmul(const MatmulArgs& args);

/// The best of the instruction sets that this processor has, or the one named by the environment variable MEMOIR_CPU
/// (avx512, avx2, portable). Throws std::invalid_argument if that one isn't here.
const Kernels& kernels();

/// All that this build has and this processor supports, the best first.
struct KernelList {
  const Kernels* sets[3];
  int n_sets;
};
KernelList supported_kernels();

}  // namespace memoir::kernels::cpu
