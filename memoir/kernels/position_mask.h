#pragma once

// Which rows a query may see by their positions alone, as an array. (The CPU's attention works this out by itself.)

#include <mlx/array.h>

#include <optional>

namespace memoir::kernels {

struct PositionRule {
  std::optional<int> window = std::nullopt;  // a query sees itself and the window - 1 positions before it
  int keep = 0;                              // and, with a window, the positions below keep
  std::optional<int> chunk = std::nullopt;   // only positions p with the same p / chunk are seen
  bool is_causal = true;                     // false: positions after the query's are seen too
};

/// queries: [.., T, 1], rows: [.., 1, S], positions as int32. Returns bool [.., T, S]. Lazy. No position and no sum of
/// two here overflows for positions below 2^30 and any window.
mlx::core::array position_mask(const mlx::core::array& queries, const mlx::core::array& rows, const PositionRule& rule);

}  // namespace memoir::kernels
