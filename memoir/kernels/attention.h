#pragma once

// Attention of new queries over the rows of a cache.

#include <mlx/array.h>

#include <optional>

namespace memoir::kernels {

struct AttentionOptions {
  float scale;                               // applied to query-key products, usually 1 / sqrt(D)
  std::optional<int> window = std::nullopt;  // a query sees itself and the window - 1 positions before it
};

/// Causal softmax attention; query heads share key heads in equal runs (H a multiple of the keys' heads).
/// queries: [B, H, T, Dk]. keys: [B, Hkv, S, Dk], values: [B, Hkv, S, Dv], rows oldest first and the last T of them
/// those of the queries, so S >= T. Returns [B, H, T, Dv] in the queries' type. Lazy. Keeps no reference to its
/// arguments after evaluation.
/// Throws std::invalid_argument if the shapes don't fit or the window is not positive.
mlx::core::array attention(const mlx::core::array& queries, const mlx::core::array& keys,
                           const mlx::core::array& values, const AttentionOptions& options);

}  // namespace memoir::kernels
