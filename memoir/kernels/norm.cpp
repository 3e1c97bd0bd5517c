#include "memoir/kernels/norm.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <stdexcept>

#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps) {
  if (x.ndim() < 1 || weight.ndim() != 1 || weight.shape(0) != x.shape(-1)) {
    throw std::invalid_argument("[kernels.rms_norm] weight has shape " + shape_text(weight) +
                                ", expected the last axis of x " + shape_text(x));
  }
  return mx::fast::rms_norm(x, mx::astype(weight, x.dtype()), eps);
}

}  // namespace memoir::kernels
