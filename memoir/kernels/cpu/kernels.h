#pragma once

// The functions that are written for each instruction set, and which set is used. No MLX.
//
// Every set gives the same bits: all are made from the same templates over a vector of 16 lanes, with the same
// operations in the same order, each of which IEEE 754 rounds in one way.

#include <string_view>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/rows.h"

namespace memoir::kernels::cpu {

struct Kernels {
  const char* name;
  bool (*is_supported)();  // by this processor

  /// One row to fixed point, see fixed_rows.h.
  void (*fix_row)(int n, const float* x, FixedBlock* out);

  /// The outputs of a part. For quantized weights args.fixed is set.
  void (*matmul_part)(const MatmulArgs& args, const MatmulPart& part);

  /// One row, see rows.h.
  void (*norm_row)(const NormArgs& norm, const float* x, float* out);
  void (*rotate_row)(const RopeArgs& rope, const float* turns, const float* x, float* out);
  void (*gate_row)(Gate gate, int n, const float* gates, const float* ups, float* out);
  void (*clamped_gate_row)(const ClampedGate& gate, int n, const float* gates, const float* ups, float* out);
  void (*cap_row)(float cap, int n, const float* x, float* out);

  /// One part of an attention, see attention.h. scratch: attention_scratch_floats(args).
  void (*attention_part)(const AttentionArgs& args, const AttentionPart& part, float* scratch);
  /// out of one query head from the blocks' partial results, in their order.
  void (*merge_blocks)(const AttentionArgs& args, int head, int query);
};

/// The set in use: the best that this processor has, unless choose_kernels() named another.
const Kernels& kernels();

/// Uses the set of this name (avx512vnni, avx512, avx2, neondotprod, neon, portable) from now on; empty: the best one.
/// Throws std::invalid_argument, naming those there are, if this build or processor doesn't have it.
void choose_kernels(std::string_view name);

/// All that this build has and this processor supports, the best first.
struct KernelList {
  const Kernels* sets[4];
  int n_sets;
};
KernelList supported_kernels();

}  // namespace memoir::kernels::cpu
