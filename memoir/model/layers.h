#pragma once

// The parts that model families share. Each part holds its weights and is a function of its input; none keeps state.

#include <mlx/array.h>

#include <optional>
#include <string>

#include "memoir/kernels/rope.h"
#include "memoir/kernels/weight.h"
#include "memoir/model/config.h"
#include "memoir/model/weights.h"

namespace memoir::model {

/// y = x W^T (+ b). x: [..., columns] -> [..., rows].
struct Linear {
  kernels::Weight weight;                // [rows, columns]
  std::optional<mlx::core::array> bias;  // [rows]

  /// Reads `module`.weight, and `module`.bias where has_bias says that there must be one.
  static Linear read(Weights& weights, const std::string& module, int rows, int columns, bool has_bias);

  mlx::core::array operator()(const mlx::core::array& x) const;
  std::size_t size_bytes() const;
};

/// RMS norm over the last axis.
struct RmsNorm {
  mlx::core::array weight;  // [D]
  float eps;

  /// Reads `module`.weight.
  static RmsNorm read(Weights& weights, const std::string& module, int size, double eps);

  mlx::core::array operator()(const mlx::core::array& x) const;
};

/// A gated feed-forward: down(silu(gate(x)) * up(x)).
struct GatedMlp {
  Linear gate;  // [intermediate, hidden]
  Linear up;    // [intermediate, hidden]
  Linear down;  // [hidden, intermediate]

  /// Reads `module`.gate_proj, .up_proj and .down_proj.
  static GatedMlp read(Weights& weights, const std::string& module, const ModelConfig& config);

  mlx::core::array operator()(const mlx::core::array& x) const;
  std::size_t size_bytes() const { return gate.size_bytes() + up.size_bytes() + down.size_bytes(); }
};

/// How the heads of a model turn. Formulas: "default" theta^(2i/d); "linear" divides positions by the factor
/// (arXiv:2306.15595); "llama3" stretches long periods by the factor, leaves short ones, and blends between (as
/// transformers' _compute_llama3_parameters). `factors`, where a file carries them (GGUF's rope_freqs.weight,
/// [n_dims / 2]), multiply the periods instead.
/// Throws UnsupportedError for any other type.
kernels::Rope make_rope(const ModelConfig& config, const std::optional<mlx::core::array>& factors);

/// [B, T, H * D] -> [B, H, T, D].
mlx::core::array split_heads(const mlx::core::array& x, int n_heads, int head_dim);

/// [B, H, T, D] -> [B, T, H * D].
mlx::core::array join_heads(const mlx::core::array& x);

}  // namespace memoir::model
