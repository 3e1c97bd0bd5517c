#pragma once

// Weight matrices of one shape and format, side by side: the experts of a mixture, the heads of a latent attention.
//
// On the CPU each matrix is packed for the kernels (weight.h), one after the other; on a GPU they are stacked as MLX's
// gathering products read them.
// Ownership: arrays are shared handles; copying a WeightStack copies no data.

#include <mlx/array.h>

#include <cstddef>
#include <functional>
#include <optional>

#include "memoir/kernels/weight.h"

namespace memoir::kernels {

struct WeightStack {
  int n;                  // matrices
  int rows;               // of each
  int columns;            // of each
  mlx::core::array data;  // dense: [n, rows, columns]; quantized: [n, rows, columns * bits / 32] uint32; packed: bytes
  std::optional<Quantization> quantization = std::nullopt;  // its scales and biases: [n, rows, columns / group_size]
  std::optional<cpu::PackedFormat> packed = std::nullopt;   // of one matrix

  /// Packed: from one matrix to the next.
  std::size_t stride_bytes() const;

  std::size_t size_bytes() const;
};

/// The matrices that read(0), ..., read(n - 1) return, none of them packed, in the form that is fastest on this device.
/// Each is packed and dropped before the next is asked for. n at least 1.
/// Throws std::invalid_argument if one has another shape, type or quantization than the first.
WeightStack stacked(int n, const std::function<Weight(int)>& read);

/// y = x W^T, with a matrix of its own for each head: x: [B, n, T, columns] float. Returns [B, n, T, rows] in x's type.
/// Lazy. On the CPU the bits of a row don't depend on the others.
/// Throws std::invalid_argument if x has another shape.
mlx::core::array linear_of_heads(const mlx::core::array& x, const WeightStack& heads);

}  // namespace memoir::kernels
