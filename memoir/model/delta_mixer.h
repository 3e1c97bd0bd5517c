#pragma once

// A layer of the gated delta rule (Gated DeltaNet, arXiv:2412.06464) as Qwen3-Next and Qwen3.5 have it:
//   out_proj(norm(delta rule over the convolution of q, k, v) * silu(z))
// where z and the rule's two gates come from the layer's input as q, k and v do.
//
// Threads and ownership: as a model's parts (layers.h).

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "memoir/cache/recurrent.h"
#include "memoir/kernels/gated_delta.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/norm.h"
#include "memoir/kernels/short_convolution.h"
#include "memoir/model/config.h"
#include "memoir/model/step.h"
#include "memoir/model/weights.h"

namespace memoir::model {

struct DeltaSizes {
  int hidden;
  int n_key_heads;
  int n_value_heads;              // a multiple of n_key_heads
  int key_dim;                    // of a head
  int value_dim;                  // of a head
  int width;                      // of the convolution
  bool has_tiled_values = false;  // value head h goes with key head h % n_key_heads rather than h / values_per_key()

  int keys() const { return n_key_heads * key_dim; }
  int values() const { return n_value_heads * value_dim; }
  int channels() const { return 2 * keys() + values(); }
  int values_per_key() const { return n_value_heads / n_key_heads; }
};

/// The keys linear_* of the configuration. Throws FormatError, naming the key, for sizes that don't fit each other.
DeltaSizes read_delta_sizes(const ModelConfig& config);

/// The part of the layer that has states: the convolution and the rule.
struct DeltaRule {
  DeltaSizes sizes;
  kernels::ShortConvolution convolution;
  kernels::DeltaGates gates;  // [n_value_heads] each

  /// joined: [B, T, channels], queries, keys and values; decays, betas: [B, T, n_value_heads]. Takes the states from
  /// the cache, and puts there those behind the T tokens. Returns the rule's outputs [B, T, n_value_heads, value_dim].
  /// Lazy.
  mlx::core::array operator()(const mlx::core::array& joined, const mlx::core::array& decays,
                              const mlx::core::array& betas, cache::RecurrentCache& cache) const;

 private:
  /// convolved: [B, T, channels], the queries, keys and values; decays, betas: [B, T, n_value_heads].
  kernels::GatedDelta input(const mlx::core::array& convolved, const mlx::core::array& decays,
                            const mlx::core::array& betas, const std::optional<mlx::core::array>& state) const;
};

class DeltaMixer {
 public:
  /// Reads `module`.in_proj_qkvz, whose rows are ordered by key head (Qwen3-Next), or .in_proj_qkv and _z; .in_proj_ba
  /// (by key head), or _b and _a (Qwen3.5); and the rest. eps is that of the norm. Throws as Weights.
  DeltaMixer(Weights& weights, const std::string& module, const DeltaSizes& sizes, double eps);

  std::unique_ptr<cache::LayerCache> make_cache() const;

  /// x: [B, T, hidden]; norm: of it; place: of the mixer's cache. Returns the layer's output + residual. Lazy.
  mlx::core::array operator()(const mlx::core::array& x, const kernels::Norm& norm, const Step& step,
                              const CachePlace& place, const mlx::core::array& residual) const;

  std::size_t size_bytes() const;

 private:
  /// What is made of the layer's input.
  struct Projections {
    kernels::Linear joined;  // [channels, hidden]: queries, keys, values
    kernels::Linear gates;   // [values, hidden]: z
    kernels::Linear betas;   // [n_value_heads, hidden]
    kernels::Linear decays;  // the same
  };

  static Projections read_projections(Weights& weights, const std::string& module, const DeltaSizes& sizes);
  static std::pair<kernels::Linear, kernels::Linear> read_joined(Weights& weights, const std::string& module,
                                                                 const DeltaSizes& sizes);
  static std::pair<kernels::Linear, kernels::Linear> read_rule_gates(Weights& weights, const std::string& module,
                                                                     const DeltaSizes& sizes);

  /// The mixer as one operation, where that can be.
  std::optional<mlx::core::array> at_once(const mlx::core::array& x, const kernels::Norm& norm, const Step& step,
                                          const CachePlace& place, const mlx::core::array& residual) const;

  Projections projections_;
  DeltaRule rule_;
  kernels::Norm norm_;   // of a value head
  kernels::Linear out_;  // [hidden, values]
};

}  // namespace memoir::model
