#pragma once

// The parts that model families share, read from a model's weights.

#include <mlx/array.h>

#include <optional>
#include <string>

#include "memoir/kernels/mlp.h"
#include "memoir/kernels/rope.h"
#include "memoir/model/config.h"
#include "memoir/model/weights.h"

namespace memoir::model {

/// Reads `module`.weight, and `module`.bias where has_bias says that there must be one.
kernels::Linear read_linear(Weights& weights, const std::string& module, int rows, int columns, bool has_bias);

/// Reads `module`.weight of a root mean square norm, in the activations' type.
kernels::Norm read_rms_norm(Weights& weights, const std::string& module, int size, double eps);

/// Reads `module`.gate_proj, .up_proj and .down_proj of a SwiGLU.
kernels::GatedMlp read_gated_mlp(Weights& weights, const std::string& module, const ModelConfig& config);

/// How the heads of a model turn. Formulas: "default" theta^(2i/d); "linear" divides positions by the factor
/// (arXiv:2306.15595); "llama3" stretches long periods by the factor, leaves short ones, and blends between (as
/// transformers' _compute_llama3_parameters). `factors`, where a file carries them (GGUF's rope_freqs.weight,
/// [n_dims / 2]), multiply the periods instead.
/// Throws UnsupportedError for any other type.
kernels::Rope make_rope(const ModelConfig& config, const std::optional<mlx::core::array>& factors);

}  // namespace memoir::model
