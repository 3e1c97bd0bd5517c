#include "memoir/kernels/weight.h"

namespace memoir::kernels {

int Weight::columns() const {
  if (!quantization) return data.shape(1);
  return static_cast<int>(static_cast<std::int64_t>(data.shape(1)) * 32 / quantization->bits);
}

mlx::core::Dtype Weight::dtype() const {
  return quantization ? quantization->scales.dtype() : data.dtype();
}

std::size_t Weight::size_bytes() const {
  std::size_t n_bytes = data.nbytes();
  if (quantization) n_bytes += quantization->scales.nbytes() + quantization->biases.nbytes();
  return n_bytes;
}

}  // namespace memoir::kernels
