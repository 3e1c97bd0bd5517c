#pragma once

// What the recurrent operations have in common: gated_delta.h, short_convolution.h, selective_scan.h.
//
// Each takes B sequences of T tokens and the state before them, and returns outputs and the state after them. On the
// CPU a state's bits depend on the tokens alone: the same for one call, for any split into several, alone or in a
// batch, and a state that nothing else holds is updated in place. (On a GPU MLX's kernels choose by shape.)

#include <mlx/array.h>

#include <vector>

#include "memoir/kernels/cpu/token_rows.h"

namespace memoir::kernels {

using TokenSpan = cpu::TokenSpan;

struct RecurrenceOptions {
  /// Steps of the call after which the state is handed out too, for checkpoints and drafts: ascending, each from 1 to
  /// T. A step counts padding.
  std::vector<int> capture = {};

  /// Each sequence's real tokens, [begin, end) of [0, T). What lies outside is padding: it leaves no trace in the state
  /// and its outputs are zeros. Empty: every token is real.
  std::vector<TokenSpan> spans = {};
};

struct Recurrence {
  mlx::core::array y;
  mlx::core::array state;                       // after all T tokens
  std::vector<mlx::core::array> captured = {};  // one for each step of `capture`
};

}  // namespace memoir::kernels
