#pragma once

// Memory for arrays that are filled by hand.

#include <mlx/allocator.h>

#include <cstddef>

namespace memoir::kernels {

/// n_bytes of MLX's memory, with any contents. Throws std::bad_alloc where they can't be had, which MLX's own function
/// answers with a null pointer.
mlx::core::allocator::Data allocated(std::size_t n_bytes);

}  // namespace memoir::kernels
