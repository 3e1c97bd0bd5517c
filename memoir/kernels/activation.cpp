#include "memoir/kernels/activation.h"

#include <mlx/ops.h>

#include <stdexcept>

#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::kernels {

mx::array swiglu(const mx::array& gate, const mx::array& up) {
  if (gate.shape() != up.shape()) {
    throw std::invalid_argument("[kernels.swiglu] up has shape " + shape_text(up) + ", expected that of gate " +
                                shape_text(gate));
  }
  return mx::multiply(mx::multiply(gate, mx::sigmoid(gate)), up);
}

}  // namespace memoir::kernels
