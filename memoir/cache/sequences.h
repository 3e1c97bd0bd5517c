#pragma once

// What is done to the sequences of a batch's arrays, the first axis of each: to pick, to join. All lazy.

#include <mlx/array.h>

#include <optional>
#include <vector>

namespace memoir::cache {

/// Throws std::invalid_argument "[cache.<function>] ..." if none is named, or one isn't among n_sequences.
void check_sequences(const char* function, const std::vector<int>& sequences, int n_sequences);

/// a: [B, ...]. These sequences, in this order. One, or several in a row, are a view.
mlx::core::array sequences_of(const mlx::core::array& a, const std::vector<int>& sequences);

/// The n sequences of a, then the m of b; zeros like the other's for one that isn't there. None if neither is.
std::optional<mlx::core::array> sequences_joined(const std::optional<mlx::core::array>& a, int n,
                                                 const std::optional<mlx::core::array>& b, int m);

}  // namespace memoir::cache
