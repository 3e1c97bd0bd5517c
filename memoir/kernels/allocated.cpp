#include "memoir/kernels/allocated.h"

#include <new>

namespace memoir::kernels {

mlx::core::allocator::Data allocated(std::size_t n_bytes) {
  mlx::core::allocator::Data data = mlx::core::allocator::malloc(n_bytes);
  if (n_bytes > 0 && data.buffer().ptr() == nullptr) throw std::bad_alloc();  // no bytes may be null
  return data;
}

}  // namespace memoir::kernels
