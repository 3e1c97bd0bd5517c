// The end of a product: sums to outputs. Included as matmul_impl.h is.

#pragma once

#include <algorithm>

#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

// Not inlined: it is called rarely, from many places.
template <typename S>
[[gnu::noinline]] void store_tile(const MatmulArgs& args, int row, int tile, typename S::F y) {
  const int first = tile * kLanes;
  const int n_here = std::min(kLanes, args.format.n_rows - first);
  const std::size_t at =
      static_cast<std::size_t>(row) * static_cast<std::size_t>(args.row_stride()) + static_cast<std::size_t>(first);
  if (args.bias) y = S::add(y, load_some<S>(args.bias + first, n_here));
  if (args.residual) {
    const std::size_t from =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(args.format.n_rows) + static_cast<std::size_t>(first);
    y = S::add(y, load_some<S>(args.residual + from, n_here));
  }
  store_some<S>(args.y + at, n_here, y);
}

}  // namespace
}  // namespace memoir::kernels::cpu
