#pragma once

// The parts that model families share, read from a model's weights.
//
// A reading function asks `weights` for every tensor of its part and throws what that throws. What is read takes part
// in a forward pass through the functions beside it, all of them lazy.

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/kv.h"
#include "memoir/kernels/attention.h"
#include "memoir/kernels/experts.h"
#include "memoir/kernels/mlp.h"
#include "memoir/kernels/projection.h"
#include "memoir/kernels/rope.h"
#include "memoir/model/config.h"
#include "memoir/model/step.h"
#include "memoir/model/weights.h"

namespace memoir::model {

// ---- linear layers and norms ----

/// Reads `module`.weight, and `module`.bias where has_bias says that there must be one.
kernels::Linear read_linear(Weights& weights, const std::string& module, int rows, int columns, bool has_bias);

/// Reads `module`.weight of a root mean square norm, in the activations' type.
kernels::Norm read_rms_norm(Weights& weights, const std::string& module, int size, double eps);

/// The same for a norm that multiplies by 1 + weight.
kernels::Norm read_centered_norm(Weights& weights, const std::string& module, int size, double eps);

/// A root mean square norm that multiplies by nothing.
kernels::Norm plain_norm(int size, double eps);

/// A vector in the activations' type, evaluated.
mlx::core::array typed_vector(const mlx::core::array& values);

// ---- rotary position embedding ----

/// How heads of head_dim turn. Formulas: "default" theta^(2i/d); "linear" divides positions by the factor
/// (arXiv:2306.15595); "llama3" stretches long periods by the factor, leaves short ones, and blends between (as
/// transformers' _compute_llama3_parameters); "yarn" blends by dimension and scales queries and keys
/// (arXiv:2309.00071); "dynamic" is "default" within the context, which memoir doesn't pass; "proportional" turns the
/// first pairs of the head with the periods of a whole one. `factors`, where a file carries them (GGUF's
/// rope_freqs.weight, [n_dims / 2]), multiply the periods instead. Throws UnsupportedError for any other type, naming
/// `path`.
kernels::Rope make_rope(const RopeConfig& rope, int head_dim, const std::string& path,
                        const std::optional<mlx::core::array>& factors = std::nullopt);

/// The same with the factors of the weights, if they have any.
kernels::Rope read_rope(Weights& weights, const ModelConfig& config);

// ---- attention ----

struct SelfAttention {
  kernels::HeadProjection projection;
  kernels::Linear output;  // [hidden, n_heads * head_dim]
  kernels::AttentionOptions options;
  std::optional<std::size_t> rope = std::nullopt;  // which of the step's turns; nullopt: heads don't turn

  /// [n_heads * head_dim, hidden]: the sigmoid of it multiplies what the heads gather.
  std::optional<kernels::Linear> gates = std::nullopt;

  std::size_t size_bytes() const {
    return projection.size_bytes() + output.size_bytes() + (gates ? gates->size_bytes() : 0);
  }
  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& chosen) const {
    return cache::make_kv_cache(options.window, options.chunk, chosen);
  }
};

/// How to read a SelfAttention.
struct AttentionLayout {
  int n_heads;
  int n_kv_heads;
  int head_dim;
  bool has_qkv_bias = false;
  bool has_output_bias = false;
};

/// Heads as the configuration has them, with biases where attention_bias says so.
AttentionLayout attention_layout(const ModelConfig& config);

/// Reads `module`.q_proj, .k_proj, .v_proj and .o_proj. The scale is 1 / sqrt(head_dim).
SelfAttention read_self_attention(Weights& weights, const std::string& module, int hidden_size,
                                  const AttentionLayout& layout);

/// output(attention of the heads of norm(x), through the gates) (+ residual). x: [B, T, hidden]; place: of the layer's
/// cache.
mlx::core::array attend(const mlx::core::array& x, const std::optional<kernels::Norm>& norm,
                        const SelfAttention& attention, const Step& step, const CachePlace& place,
                        const std::optional<mlx::core::array>& residual);

/// A feed-forward and the norm before it.
struct NormedMlp {
  const kernels::Norm& norm;
  const kernels::GatedMlp& mlp;
};

/// With y = attend(...): mlp(norm(y)) + y.
mlx::core::array attend_and_feed(const mlx::core::array& x, const std::optional<kernels::Norm>& norm,
                                 const SelfAttention& attention, const Step& step, const CachePlace& place,
                                 const std::optional<mlx::core::array>& residual, const NormedMlp& behind);

/// [B, T, n * D] as [B, n, T, D], and back.
mlx::core::array cut_heads(const mlx::core::array& x, int n_heads);
mlx::core::array join_heads(const mlx::core::array& heads);

// ---- feed-forward ----

/// hidden_act, or hidden_activation, as a gate. Throws UnsupportedError for one that the kernels don't have.
kernels::Gate read_gate(const ModelConfig& config);

/// Reads `module`.gate_proj, .up_proj and .down_proj, with biases where mlp_bias says so.
kernels::GatedMlp read_gated_mlp(Weights& weights, const std::string& module, const ModelConfig& config,
                                 int intermediate_size);

struct ExpertsShape {
  int n;
  int hidden;
  int intermediate;
};

/// Reads the experts of the mixture `module`, however they are stored: stacked as MLX writes them (`stack`.gate_proj,
/// .up_proj, .down_proj) or with gates and ups in one (`stack`.gate_up_proj [n, 2 * intermediate, hidden]), one by one
/// (`module`.experts.N.gate_proj, ...), or fused (`module`.experts.gate_up_proj [n, 2 * intermediate, hidden],
/// .down_proj [n, hidden, intermediate]).
kernels::Experts read_experts(Weights& weights, const std::string& module, const std::string& stack,
                              const ExpertsShape& shape, kernels::Gate gate);

/// The experts of dense tensors: gates_and_ups [n, 2 * intermediate, hidden], down [n, hidden, intermediate].
kernels::Experts fused_experts(const mlx::core::array& gates_and_ups, const mlx::core::array& down, kernels::Gate gate);

/// Of a dense tensor [n, columns, all], which holds matrices column by column: the rows begin, begin + step, ... below
/// end of each.
kernels::WeightStack transposed_stack(const mlx::core::array& all, int begin, int end, int step = 1);

/// How many experts there are, and how many of them a token goes to (num_experts_per_tok), in the configuration.
struct ExpertCounts {
  int n;
  int n_chosen;
};
ExpertCounts read_expert_counts(const ModelConfig& config);

/// Experts that a router chooses among, and a feed-forward that all tokens go through.
struct Mixture {
  kernels::Linear router;
  kernels::Routing routing;
  kernels::Experts experts;
  std::optional<kernels::GatedMlp> shared = std::nullopt;
  std::optional<kernels::Linear> shared_gate = std::nullopt;  // [1, hidden]: the sigmoid of it multiplies `shared`

  std::size_t size_bytes() const {
    return router.size_bytes() + experts.size_bytes() + (shared ? shared->size_bytes() : 0) +
           (shared_gate ? shared_gate->size_bytes() : 0);
  }
};

/// The experts' sum (+ the shared feed-forward) (+ residual). x: [B, T, hidden], normed.
mlx::core::array mix(const mlx::core::array& x, const Mixture& mixture,
                     const std::optional<mlx::core::array>& residual);

}  // namespace memoir::model
