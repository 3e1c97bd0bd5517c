#pragma once

// A recurrent mixer from its layer's input to its output, as one piece of work: nothing but the calls of matmul.h,
// rows.h, short_convolution.h and selective_scan.h or gated_delta.h one after the other, so the bits are those of the
// single calls. No MLX.
//
// What lies between the calls is kept in memory of the calling thread (scratch.h), as in attention_block.h.

#include <vector>

#include "memoir/kernels/cpu/fused.h"
#include "memoir/kernels/cpu/gated_delta.h"
#include "memoir/kernels/cpu/selective_scan.h"
#include "memoir/kernels/cpu/short_convolution.h"

namespace memoir::kernels::cpu {

/// The rows of one sequence (or of several of one length that share states): [begin, begin + n_tokens) of T.
struct MixerSequence {
  int begin = 0;
  int n_tokens = 0;
  StateArgs tail{};   // of the convolution
  StateArgs state{};  // of the scan or the rule
};

/// What both mixers have: rows of x, and what is made of the mixed ones.
struct MixerEnds {
  int n_sequences = 0;
  int n_tokens = 0;
  const float* x = nullptr;  // [n_sequences * n_tokens, hidden]
  bool has_norm = false;     // of x
  NormArgs norm{};
  std::vector<MixerSequence> sequences;  // by their rows; several only if n_sequences is 1
  LinearArgs output;
  const float* residual = nullptr;  // [n_sequences * n_tokens, output rows] or null
  float* y = nullptr;               // as residual

  int n_rows() const { return n_sequences * n_tokens; }
};

/// A norm of each group's columns: none, or behind the gate or before it.
enum class GroupNorm { kNone, kBehindGate, kBeforeGate };

/// y = output(scan of the convolution of x, B, C, through the gate) (+ residual); input's rows are the gate, x, B, C
/// and the time steps.
struct MambaBlockArgs {
  MixerEnds ends;
  LinearArgs input{};
  ShortConvolutionArgs convolution{};  // weights; sizes, rows and states are set here
  SelectiveScanArgs scan{};            // sizes of heads, groups and states, and what they share; the rest is set here
  GroupNorm group_norm = GroupNorm::kNone;
  float eps = 0;
  const float* norm_weight = nullptr;  // [inner]
};

/// y = output(norm(rule over the convolution of q, k, v) * silu(gates)) (+ residual).
struct DeltaBlockArgs {
  MixerEnds ends;
  LinearArgs joined{};  // q, k, v
  LinearArgs gates{};
  LinearArgs decays{};
  LinearArgs betas{};
  ShortConvolutionArgs convolution{};  // as above
  GatedDeltaArgs rule{};               // as the scan
  NormArgs norm{};                     // of a value head
};

/// args are changed: they are good for one call. Throw std::bad_alloc.
void mamba_block(MambaBlockArgs& args);
void delta_block(DeltaBlockArgs& args);

}  // namespace memoir::kernels::cpu
