#pragma once

// Which rows a query may see, where that is not what kernels::attention knows by position already: masks for MLX's own
// attention, masks of a caller, and what brings them into the order in which a ring stores its rows.
//
// A mask is logical: its columns are the rows of a history by position, the last of them the last query's own row.
// Array masks are [.., T, S], bool (may it be seen) or float (added to the score).
// Pure functions, all lazy.

#include <mlx/array.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "memoir/kernels/position_mask.h"

namespace memoir::cache {

struct Mask {
  enum class Kind { kNone, kCausal, kArray };

  Kind kind = Kind::kNone;
  std::optional<mlx::core::array> array = std::nullopt;  // of kArray alone

  static Mask none() { return {}; }
  static Mask causal() { return {Kind::kCausal}; }
  static Mask of(mlx::core::array a) { return {Kind::kArray, std::move(a)}; }

  bool is_none() const { return kind == Kind::kNone; }
  bool is_causal() const { return kind == Kind::kCausal; }

  /// "", "causal" or "array", as mx::fast::scaled_dot_product_attention calls them.
  std::string_view mode() const;
};

struct CausalMaskOptions {
  std::optional<int> window = std::nullopt;  // a query sees itself and the window - 1 positions before it,
  int keep = 0;                              // and, with a window, the positions below keep
  std::optional<mlx::core::array> left_padding = std::nullopt;   // [B]: the first columns of a sequence are hidden
  std::optional<mlx::core::array> right_padding = std::nullopt;  // [B]: its last ones are
};

/// n_tokens queries behind offset rows: bool [T, offset + T], with padding [B, 1, T, offset + T].
/// Throws std::invalid_argument if n_tokens < 1, offset < 0, window < 1 or keep < 0.
mlx::core::array create_causal_mask(int n_tokens, int offset, const CausalMaskOptions& options = {});

/// The mask of n_tokens queries behind offset rows that all stay, after mlx-lm's rules. None for one query without a
/// window, causal for more; an array where a window is given or return_array asks for one. A window hides rows behind
/// it; it makes an array even where it hides none, since the rows will outgrow it.
Mask create_attention_mask(int n_tokens, int offset, std::optional<int> window, bool return_array);

/// The mask of n_tokens queries that have no cache: none for one, causal for as many as the window, else an array.
Mask create_attention_mask(int n_tokens, std::optional<int> window, bool return_array);

using kernels::PositionRule;

/// Columns at these positions (ascending), for queries at the last n_tokens of them. bool [T, S].
mlx::core::array position_mask(const std::vector<int>& positions, int n_tokens, const PositionRule& rule);

/// Only what both allow. Bool masks are combined with and, float masks added; a bool mask beside a float one becomes
/// -infinity. `n_tokens` and `n_rows` give a causal mask its shape where it meets an array.
Mask intersect(const Mask& a, const Mask& b, int n_tokens, int n_rows);

/// Reorders the last axis from the order of positions to that of a ring's rows, where the oldest position lies in row
/// ring_index mod n_rows. An axis of 1 (one value for all rows) stays.
/// Throws std::invalid_argument if the axis is neither 1 nor n_rows, n_rows is below 1, or ring_index is negative.
mlx::core::array gather_ring_columns(const mlx::core::array& mask, int ring_index, int n_rows);

/// Makes a logical mask fit a ring whose rows are read in the order they are stored in.
struct RingApplier {
  int n_rows;      // of the history
  int n_tokens;    // queries
  int window;      // of the ring
  int keep = 0;    // the first keep rows hold the positions below keep, and don't turn
  int ring_index;  // row of the oldest position behind them, counted from row keep

  /// One query: the ring holds what it sees and no more, so none and causal give none; an array is put into the order
  /// of the rows. More queries (their rows are in the order of positions): the window, and what it keeps, is
  /// intersected with the mask. Throws std::invalid_argument where the numbers or the mask's last axis don't fit.
  Mask apply(const Mask& logical) const;
};

}  // namespace memoir::cache
