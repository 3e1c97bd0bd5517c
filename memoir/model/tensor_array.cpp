#include "memoir/model/tensor_array.h"

#include <utility>

#include "memoir/kernels/allocated.h"

namespace mx = mlx::core;

namespace memoir::model {

std::optional<mx::Dtype> floating_dtype(std::string_view name) {
  if (name == "F32") return mx::float32;
  if (name == "F16") return mx::float16;
  if (name == "BF16") return mx::bfloat16;
  return std::nullopt;
}

mx::array filled_array(mx::Shape shape, mx::Dtype dtype, const std::function<void(std::span<std::byte>)>& fill) {
  std::size_t n_bytes = mx::size_of(dtype);
  for (const int n : shape) n_bytes *= static_cast<std::size_t>(n);
  mx::allocator::Data data = kernels::allocated(n_bytes);
  fill({static_cast<std::byte*>(data.buffer().raw_ptr()), n_bytes});
  return mx::array(std::move(data), std::move(shape), dtype);
}

}  // namespace memoir::model
