#pragma once

// Rotary position embedding (arXiv:2104.09864).
// Threads: rope_periods on any; the rest on the thread that owns MLX's work. Ownership: all here are values.

#include <mlx/array.h>

#include <optional>
#include <vector>

namespace memoir::kernels {

/// What is rotated by how much. Pair i of a head turns by position * scale / periods[i].
struct Rope {
  int n_dims;                  // leading dimensions of a head that turn, even; the rest pass unchanged
  bool traditional;            // pairs (2i, 2i + 1) rather than (i, i + n_dims / 2)
  std::vector<float> periods;  // [n_dims / 2]
  double scale = 1;            // positions are multiplied by it (linear scaling: 1 / factor)
  float magnitude = 1;         // what turns is multiplied by it too (yarn's attention factor)
};

/// base^(2i / n_dims) for each pair: the periods of a plain rope.
std::vector<float> rope_periods(int n_dims, double base);

/// Tokens at the positions first, first + 1, ...
struct PositionRun {
  int first;
  int n_tokens;
};

/// By how much T tokens turn, worked out once for all layers.
struct Turns {
  Rope rope;
  std::vector<PositionRun> runs;
  int n_tokens;            // T, of all runs
  mlx::core::array table;  // [T, n_dims] float32, for each pair cosine and sine; on a GPU empty
};

/// The turns of the tokens of one run after the other: angles in float32, as in the models' own code.
/// Throws std::invalid_argument if n_dims is odd, there are not n_dims / 2 periods, or a number in a run is negative.
Turns make_turns(const Rope& rope, const std::vector<PositionRun>& runs);

/// Of T tokens at positions offset, offset + 1, ...
Turns make_turns(const Rope& rope, int offset, int n_tokens);

/// x: [B, H, T, D] float, row t turned by token t. Returns x's shape and type. Lazy.
/// Throws std::invalid_argument if T is not that of the turns, or n_dims is larger than D.
mlx::core::array rope(const mlx::core::array& x, const Turns& turns);

/// x: [B, H, T, D] float, rows turned already, at whatever positions. Returns them as they would be `shift` positions
/// on, back where it is negative; rotations add up, so that is one more turn, of the same magnitude. Shape and type
/// stay. Lazy. Throws std::invalid_argument as make_turns() and rope().
mlx::core::array turned_on(const mlx::core::array& x, const Rope& rope, int shift);

}  // namespace memoir::kernels
