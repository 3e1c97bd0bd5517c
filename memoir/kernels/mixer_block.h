#pragma once

// A recurrent mixer, from its layer's input to its output, with its states before and after: on the CPU one operation,
// as attention_block.h has it for attention, and for the same reason.
//
// The bits are those of norm(), linear(), short_convolution(), selective_scan() or gated_delta(), gate_product() and
// linear() one after the other.
// Threads: the thread that owns MLX's work.

#include <mlx/array.h>

#include <optional>
#include <vector>

#include "memoir/kernels/cpu/mixer_block.h"
#include "memoir/kernels/gated_delta.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/norm.h"
#include "memoir/kernels/selective_scan.h"
#include "memoir/kernels/short_convolution.h"

namespace memoir::kernels {

using cpu::GroupNorm;

/// The mixer of Mamba 2. inner: n_heads * head_dim.
struct MambaBlock {
  const std::optional<Norm>& norm;      // of the layer's input
  const Linear& input;                  // [inner + channels + n_heads, hidden]: the gate; x, B, C; the time steps
  const ShortConvolution& convolution;  // of channels = inner + 2 * n_groups * state, with SiLU
  int n_heads;
  int head_dim;
  int n_groups;
  int state;
  const mlx::core::array& a;  // [n_heads], as the next two
  const mlx::core::array& d;
  const mlx::core::array& dt_bias;
  std::optional<SelectiveScan::Limits> limits;
  GroupNorm group_norm;
  float eps;                                           // of that norm
  const std::optional<mlx::core::array>& norm_weight;  // [inner], if there is one
  const Linear& output;                                // [*, inner]
};

/// The gated delta rule of Qwen3-Next and Qwen3.5.
struct DeltaBlock {
  const std::optional<Norm>& norm;
  const Linear& joined;  // [channels, hidden]: queries, keys, values
  const Linear& gates;   // [n_value_heads * value_dim, hidden]
  const Linear& decays;  // [n_value_heads, hidden], as the next
  const Linear& betas;   //
  const ShortConvolution&
      convolution;  // of channels = 2 * n_key_heads * key_dim + n_value_heads * value_dim, with SiLU
  int n_key_heads;
  int n_value_heads;
  int key_dim;
  int value_dim;
  bool has_tiled_values;
  const DeltaGates& rule_gates;
  float scale;             // of normalized queries
  const Norm& value_norm;  // of a value head
  const Linear& output;    // [*, n_value_heads * value_dim]
};

/// The states of a sequence (or of several of one length), before its next tokens or behind them.
struct MixerStates {
  int n_tokens;
  mlx::core::array tail;   // [B, K - 1, channels] float32, K > 1
  mlx::core::array state;  // [B, n_heads, head_dim, state] or [B, n_value_heads, value_dim, key_dim] float32
};

/// Whether mamba_block() and delta_block() take these: on the CPU, x float32, every weight packed, K > 1.
bool is_block(const MambaBlock& block, const mlx::core::array& x);
bool is_block(const DeltaBlock& block, const mlx::core::array& x);

struct MixerOutput {
  mlx::core::array y;               // [B, T, output rows]
  std::vector<MixerStates> states;  // of each sequence, after its tokens
};

/// x: [B, T, hidden], what is_block() takes; one pair of states for B sequences of T tokens, or with B = 1 several, one
/// after the other in T. residual: added to the output, as it is shaped, or null. Lazy. States are updated in place
/// where these are the last handles on them.
/// Throws std::invalid_argument if sizes or types don't fit.
MixerOutput mamba_block(const mlx::core::array& x, const MambaBlock& block, std::vector<MixerStates> before,
                        const std::optional<mlx::core::array>& residual);
MixerOutput delta_block(const mlx::core::array& x, const DeltaBlock& block, std::vector<MixerStates> before,
                        const std::optional<mlx::core::array>& residual);

}  // namespace memoir::kernels
