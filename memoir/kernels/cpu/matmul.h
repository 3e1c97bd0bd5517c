#pragma once

// y = x W^T for packed weights. No MLX.
//
// Exactness: y[m][n] depends on row m of x, row n of W and nothing else: one fused multiply-add in float32 for each
// column, in their order, of a weight that for quantized formats is fma(code, scale, bias); then the bias and the
// residual are added, in this order. So the bits are the same for one row and for many, for every number of threads and
// for every instruction set. NaN and infinity spread as in any such sum.

#include <cstddef>
#include <span>

#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels::cpu {

struct MatmulArgs {
  PackedFormat format;
  const std::byte* weights;         // format.size_bytes()
  int n_rows;                       // M
  const float* x = nullptr;         // [M, K]
  const float* bias = nullptr;      // [N] or null
  const float* residual = nullptr;  // [M, N] or null, added to the product
  float* y = nullptr;               // [M, N], rows y_stride apart
  int y_stride = 0;                 // in floats, at least N; 0: N

  int row_stride() const { return y_stride > 0 ? y_stride : format.n_rows; }
};

/// What one part of a product computes: the outputs of some tiles for some rows of x.
struct MatmulPart {
  int tile_begin;
  int tile_end;
  int row_begin;
  int row_end;
};

/// Parts are cut at multiples of so many tiles: no instruction set multiplies more of them side by side.
inline constexpr int kTileRun = 4;

/// How a product of n_rows rows is cut into parts: runs of tiles, and for many rows also blocks of rows.
class MatmulPlan {
 public:
  MatmulPlan(int n_tiles, int n_rows, int n_threads);

  int n_parts() const { return n_tile_parts_ * n_row_parts_; }
  MatmulPart part(int index) const;

 private:
  int n_tiles_;
  int n_rows_;
  int n_tile_parts_;
  int n_row_parts_;
};

/// Floats of scratch that one part of this product needs.
std::size_t panel_floats(const PackedFormat& format);

/// Several products, on all threads as one job.
void matmul(std::span<const MatmulArgs> products);

}  // namespace memoir::kernels::cpu
