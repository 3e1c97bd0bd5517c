#pragma once

// From a layer's input to the queries, keys and values of its attention, as one operation.
// Threads: the thread that owns MLX's work. Ownership: a HeadProjection is a value of shared handles.

#include <mlx/array.h>

#include <optional>

#include "memoir/kernels/linear.h"
#include "memoir/kernels/norm.h"
#include "memoir/kernels/rope.h"

namespace memoir::kernels {

struct HeadProjection {
  Linear queries;  // [n_heads * head_dim, hidden]
  Linear keys;     // [n_kv_heads * head_dim, hidden]
  Linear values;   // [n_kv_heads * head_dim, hidden]
  int n_heads;
  int n_kv_heads;
  int head_dim;
  std::optional<Norm> query_norm = std::nullopt;  // [head_dim], of each head before it turns
  std::optional<Norm> key_norm = std::nullopt;

  std::size_t size_bytes() const { return queries.size_bytes() + keys.size_bytes() + values.size_bytes(); }
};

struct Heads {
  mlx::core::array queries;  // [B, H, T, D]
  mlx::core::array keys;     // [B, Hkv, T, D]
  mlx::core::array values;   // [B, Hkv, T, D]
};

/// The heads of norm(x), queries and keys normed and turned where that is asked for.
/// x: [B, T, hidden] float; turns: of T tokens. Returns x's type. Lazy. On the CPU the bits of a row don't depend on
/// the others, and are those of the single operations. Throws std::invalid_argument if the sizes of the norms, the
/// layers or the turns don't fit.
Heads project_heads(const mlx::core::array& x, const std::optional<Norm>& norm, const HeadProjection& projection,
                    const std::optional<Turns>& turns);

}  // namespace memoir::kernels
