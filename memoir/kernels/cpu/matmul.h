#pragma once

// y = x W^T for packed weights. No MLX.
//
// Exactness: y[m][n] depends on row m of x, row n of W and nothing else. So the bits are the same for one row and for
// many, for every number of threads and for every instruction set.
// - Dense weights: one fused multiply-add in float32 for each column, in their order. NaN and infinity spread as in any
//   such sum.
// - Quantized weights, scale * code + bias: the row of x is turned to fixed point (fixed_rows.h). For each block of 32
//   columns, in their order, the sum of code * q is an integer, rounded to float32, and y = fma(bias, sum of x,
//   fma(scale * that, scale of x, y)). A value of x that isn't finite makes its row of y NaN.
// Then the bias of the layer and the residual are added, in this order.

#include <cstddef>
#include <span>

#include "memoir/kernels/cpu/fixed_rows.h"
#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels::cpu {

struct MatmulArgs {
  PackedFormat format;
  const std::byte* weights;           // format.size_bytes()
  int n_rows;                         // M
  const float* x = nullptr;           // [M, K]
  const float* bias = nullptr;        // [N] or null
  const float* residual = nullptr;    // [M, N] or null, added to the product
  float* y = nullptr;                 // [M, N], rows y_stride apart
  int y_stride = 0;                   // in floats, at least N; 0: N
  const FixedBlock* fixed = nullptr;  // x in fixed point, [M, K / kBlock]: see fix_inputs()

  int row_stride() const { return y_stride > 0 ? y_stride : format.n_rows; }
};

/// What one part of a product computes: the outputs of some tiles for some rows of x.
struct MatmulPart {
  int tile_begin;
  int tile_end;
  int row_begin;
  int row_end;
};

/// For many rows parts are cut at multiples of so many tiles: no instruction set multiplies more of them side by side.
inline constexpr int kTileRun = 4;

/// How a product of n_rows rows is cut into parts, to be taken in order: runs of tiles, and for many rows also blocks
/// of rows.
class MatmulPlan {
 public:
  MatmulPlan(int n_tiles, int n_rows, int n_threads);

  int n_parts() const { return n_tile_parts_ * n_row_parts_; }
  MatmulPart part(int index) const;

 private:
  int begin_of(int tile_part) const;  // its first tile

  int n_tiles_;
  int n_rows_;
  int n_long_ = 0;  // parts that are longer than the rest; 0: all are alike
  int n_tile_parts_;
  int n_row_parts_ = 1;
};

/// Gives the products with quantized weights their x in fixed point; neighbours with the same x share it. The blocks
/// lie in memory of the calling thread, which only grows, and stay until its next call. Throws std::bad_alloc.
void fix_inputs(std::span<MatmulArgs> products);

/// Several products, on all threads as one job, after fix_inputs().
void matmul(std::span<MatmulArgs> products);

}  // namespace memoir::kernels::cpu
