#pragma once

// How the operations that hold a gated feed-forward check it and pass its arrays on. Internal to kernels/.

#include <mlx/array.h>

#include <optional>
#include <vector>

#include "memoir/kernels/linear_args.h"
#include "memoir/kernels/mlp.h"
#include "memoir/kernels/norm_args.h"

namespace memoir::kernels {

/// Throws std::invalid_argument, naming the function, if the sizes of the norm or the layers don't fit x.
void check_mlp(const char* function, const mlx::core::array& x, const std::optional<Norm>& norm, const GatedMlp& mlp);

/// Whether its weights are packed.
bool is_packed(const GatedMlp& mlp);

/// The arrays of the three layers.
void append_arrays(const GatedMlp& mlp, std::vector<mlx::core::array>& arrays);

/// What an operation remembers of a feed-forward, to read its arrays.
struct GatedMlpReader {
  explicit GatedMlpReader(const GatedMlp& mlp) : gate(mlp.gate), gates(mlp.gates), ups(mlp.ups), down(mlp.down) {}

  /// The weights and the gate. floats: array -> const float*, its elements in row-major order.
  template <typename Floats>
  cpu::GatedMlpArgs read(ArrayReader& next, const Floats& floats) const {
    cpu::GatedMlpArgs args;
    args.gate = gate;
    args.gates = gates.read(next, floats);
    args.ups = ups.read(next, floats);
    args.down = down.read(next, floats);
    return args;
  }

  Gate gate;
  LinearReader gates;
  LinearReader ups;
  LinearReader down;
};

}  // namespace memoir::kernels
