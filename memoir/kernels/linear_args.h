#pragma once

// How the operations that hold linear layers and norms check them and pass their arrays on. Internal to kernels/.

#include <mlx/array.h>

#include <vector>

#include "memoir/kernels/cpu/fused.h"
#include "memoir/kernels/linear.h"

namespace memoir::kernels {

/// Throws std::invalid_argument, naming the function, if the last axis of x or the layer's bias does not fit it.
void check_columns(const char* function, const mlx::core::array& x, const Linear& layer);

/// An operation's inputs, one after the other, in the order in which append_arrays() put them there.
class ArrayReader {
 public:
  explicit ArrayReader(const std::vector<mlx::core::array>& arrays) : next_(arrays.data()) {}
  const mlx::core::array& operator()() { return *next_++; }

 private:
  const mlx::core::array* next_;
};

/// The packed weight, and the bias where there is one.
void append_arrays(const Linear& layer, std::vector<mlx::core::array>& arrays);

/// What an operation remembers of a layer, to read its arrays.
struct LinearReader {
  explicit LinearReader(const Linear& layer) : format(*layer.weight.packed), has_bias(layer.bias.has_value()) {}

  /// floats: array -> const float*, its elements in row-major order.
  template <typename Floats>
  cpu::LinearArgs read(ArrayReader& next, const Floats& floats) const {
    cpu::LinearArgs args{format, packed_bytes(next())};
    if (has_bias) args.bias = floats(next());
    return args;
  }

  cpu::PackedFormat format;
  bool has_bias;
};

}  // namespace memoir::kernels
