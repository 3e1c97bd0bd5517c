#include "memoir/kernels/rope.h"

#include <mlx/fast.h>

#include <stdexcept>
#include <string>

#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {

mx::array rope(const mx::array& x, const Rope& spec, int offset) {
  if (x.ndim() != 4 || spec.n_dims <= 0 || spec.n_dims % 2 != 0 || spec.n_dims > x.shape(-1)) {
    throw std::invalid_argument("[kernels.rope] x has shape " + shape_text(x) +
                                ", expected (B,H,T,D) with D >= " + std::to_string(spec.n_dims) + ", an even number");
  }
  if (offset < 0) {
    throw std::invalid_argument("[kernels.rope] offset is " + std::to_string(offset) + ", expected at least 0");
  }
  const std::optional<float> base = spec.periods ? std::nullopt : std::optional<float>(static_cast<float>(spec.base));
  return mx::fast::rope(x, spec.n_dims, spec.traditional, base, static_cast<float>(spec.scale), offset, spec.periods);
}

}  // namespace memoir::kernels
