#pragma once

// The functions of the recurrent kernels that are written for each instruction set, beside those of kernels.h. No MLX.

#include "memoir/kernels/cpu/gated_delta.h"
#include "memoir/kernels/cpu/selective_scan.h"
#include "memoir/kernels/cpu/short_convolution.h"

namespace memoir::kernels::cpu {

/// Rows of one head's state that are worked on together: [n_rows, N] with N side by side, each row a lane.
struct StateBlock {
  int sequence;
  int head;
  int row_begin;
  int n_rows;
};

struct RecurrentKernels {
  const char* name;  // as that of the Kernels
  int block_rows;    // rows of a block at most, a multiple of 16

  /// One token's queries, keys and gates into args.prepared.
  void (*prepare_delta)(const GatedDeltaArgs& args, int sequence, int token);
  /// All of the call's tokens for one block. scratch: block_rows * args.key_dim.
  void (*delta_block)(const GatedDeltaArgs& args, const StateBlock& block, float* scratch);

  /// One token's steps and decays into args.prepared.
  void (*prepare_scan)(const SelectiveScanArgs& args, int sequence, int token);
  /// scratch: 2 * block_rows * args.state_dim.
  void (*scan_block)(const SelectiveScanArgs& args, const StateBlock& block, float* scratch);

  /// n channels of one output from its `width` inputs, oldest first; null is a row of zeros.
  void (*convolve)(const ShortConvolutionArgs& args, const float* const* inputs, int channel, int n, float* y);
};

/// That of the set in use, see kernels() in kernels.h.
const RecurrentKernels& recurrent_kernels();

extern const RecurrentKernels kRecurrentAvx512;
extern const RecurrentKernels kRecurrentAvx2;
extern const RecurrentKernels kRecurrentNeon;
extern const RecurrentKernels kRecurrentPortable;

/// The sets of this build, in the order of built_kernels().
struct RecurrentKernelList {
  const RecurrentKernels* sets[3];
  int n_sets;
};
RecurrentKernelList built_recurrent_kernels();

}  // namespace memoir::kernels::cpu
