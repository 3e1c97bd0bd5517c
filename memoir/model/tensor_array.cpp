#include "memoir/model/tensor_array.h"

#include <utility>

#include "memoir/kernels/allocated.h"

namespace mx = mlx::core;

namespace memoir::model {

mx::array filled_array(mx::Shape shape, mx::Dtype dtype, const std::function<void(std::span<std::byte>)>& fill) {
  std::size_t n_bytes = mx::size_of(dtype);
  for (const int n : shape) n_bytes *= static_cast<std::size_t>(n);
  mx::allocator::Data data = kernels::allocated(n_bytes);
  fill({static_cast<std::byte*>(data.buffer().raw_ptr()), n_bytes});
  return mx::array(std::move(data), std::move(shape), dtype);
}

}  // namespace memoir::model
