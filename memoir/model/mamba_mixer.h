#pragma once

// The mixer of Mamba 2 (arXiv:2405.21060), alone in a layer (Mamba 2, Granite) or beside attention (Falcon-H1):
//   out_proj(selective scan over the convolution of x, B, C, through the gate)
// where in_proj makes the gate, x, B, C and the time steps of the layer's input.
//
// Threads and ownership: as a model's parts (layers.h).

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/recurrent.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/mixer_block.h"
#include "memoir/kernels/norm.h"
#include "memoir/kernels/selective_scan.h"
#include "memoir/kernels/short_convolution.h"
#include "memoir/model/config.h"
#include "memoir/model/step.h"
#include "memoir/model/weights.h"

namespace memoir::model {

struct MambaSizes {
  int hidden;
  int n_heads;
  int head_dim;
  int n_groups;  // a divisor of n_heads
  int state;     // of each element of a head
  int width;     // of the convolution

  int inner() const { return n_heads * head_dim; }
  int group_columns() const { return n_groups * state; }          // of B, and of C
  int channels() const { return inner() + 2 * group_columns(); }  // of the convolution: x, B and C
  int in_rows() const { return inner() + channels() + n_heads; }  // the gate, those, and the time steps
};

/// What the sizes are called in a configuration.
struct MambaKeys {
  const char* n_heads;
  const char* head_dim;
  const char* n_groups;
  const char* state;
  const char* width;
  const char* expand;
};

/// mamba_n_heads and so on, of all families but Mamba 2 itself.
inline constexpr MambaKeys kMambaKeys = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups",
                                         "mamba_d_state", "mamba_d_conv", "mamba_expand"};

/// The sizes under these keys; a head_dim that is not there or "auto" divides the inner width among the heads. inner:
/// that width, where it is not expand times hidden_size.
/// Throws FormatError, naming the key, for sizes that don't fit each other.
MambaSizes read_mamba_sizes(const ModelConfig& config, const MambaKeys& keys, std::optional<int> inner = std::nullopt);

struct MambaTraits {
  bool has_in_bias = false;
  bool has_out_bias = false;
  bool has_convolution_bias = true;

  /// A norm of each group's columns: none, or behind the gate or before it.
  using GroupNorm = kernels::GroupNorm;
  GroupNorm group_norm = GroupNorm::kBehindGate;

  /// What in_proj makes is multiplied by: the gate, x, B, C, the time steps. Empty: by nothing.
  std::vector<float> multipliers = {};

  /// kInBias: the weight of in_proj holds them already.
  enum class Multiplies { kOutputs, kInBias };
  Multiplies multiplies = Multiplies::kOutputs;
  float out_bias_multiplier = 1;
};

/// The part of the mixer that has states: the convolution and the scan.
struct MambaScan {
  MambaSizes sizes;
  kernels::ShortConvolution convolution;
  mlx::core::array a;  // [n_heads], as the next two
  mlx::core::array d;
  mlx::core::array dt_bias;
  std::optional<kernels::SelectiveScan::Limits> limits;

  /// inputs: x, B and C [B, T, channels]; dt: [B, T, n_heads]. Takes the states from the cache, and puts there those
  /// behind the T tokens. Returns y [B, T, inner]. Lazy.
  mlx::core::array operator()(const mlx::core::array& inputs, const mlx::core::array& dt,
                              cache::RecurrentCache& cache) const;

 private:
  /// convolved: [B, T, channels].
  kernels::SelectiveScan input(const mlx::core::array& convolved, const mlx::core::array& dt,
                               const std::optional<mlx::core::array>& state) const;
};

class MambaMixer {
 public:
  /// Reads `module`.in_proj, .conv1d, .A_log, .D, .dt_bias, .out_proj and, with a group norm, .norm; and
  /// time_step_limit of the configuration. Throws as Weights, and UnsupportedError for a hidden_act that isn't silu.
  MambaMixer(Weights& weights, const std::string& module, const ModelConfig& config, const MambaSizes& sizes,
             const MambaTraits& traits);

  std::unique_ptr<cache::LayerCache> make_cache() const;

  /// x: [B, T, hidden]; norm: of it; place: of the mixer's cache. Returns the mixer's output (+ residual). Lazy.
  mlx::core::array operator()(const mlx::core::array& x, const kernels::Norm& norm, const Step& step,
                              const CachePlace& place, const std::optional<mlx::core::array>& residual) const;

  std::size_t size_bytes() const;

 private:
  /// The mixer as one operation, where that can be.
  std::optional<mlx::core::array> at_once(const mlx::core::array& x, const kernels::Norm& norm, const Step& step,
                                          const CachePlace& place,
                                          const std::optional<mlx::core::array>& residual) const;

  /// y through the gate, and the norm where there is one. Both [B, T, inner].
  mlx::core::array gated(const mlx::core::array& gate, const mlx::core::array& y) const;
  mlx::core::array normed(const mlx::core::array& y) const;

  MambaTraits::GroupNorm group_norm_;
  kernels::Linear in_;                           // [in_rows, hidden]
  std::optional<mlx::core::array> multipliers_;  // [in_rows]
  MambaScan scan_;
  kernels::Norm plain_norm_;                     // of a group
  std::optional<mlx::core::array> norm_weight_;  // [inner]
  kernels::Linear out_;                          // [hidden, inner]
};

}  // namespace memoir::model
