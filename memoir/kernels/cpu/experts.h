#pragma once

// The feed-forward of a mixture, see kernels/experts.h. No MLX.
//
// Rows are sorted by expert, each expert's weights multiplied with its rows (matmul.h), and a row's results added in
// the order of its routes: the same bits whatever the other rows are.

#include <cstddef>
#include <cstdint>

#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/rows.h"

namespace memoir::kernels::cpu {

/// One layer of all experts.
struct ExpertLayer {
  PackedFormat format{};               // of one expert's weights
  const std::byte* weights = nullptr;  // those of expert e at e * stride_bytes
  std::size_t stride_bytes = 0;
  const float* biases = nullptr;  // [n_experts, format.n_rows] or null
};

struct ExpertsArgs {
  int n_rows = 0;
  int n_experts = 0;
  int n_chosen = 0;
  const float* x = nullptr;               // [n_rows, hidden]
  const std::int32_t* experts = nullptr;  // [n_rows, n_chosen], each 0 <= e < n_experts
  const float* weights = nullptr;         // [n_rows, n_chosen]
  bool weighs_inputs = false;
  ExpertLayer gates;
  ExpertLayer ups;
  ExpertLayer down;
  Gate gate = Gate::kSilu;
  const ClampedGate* clamped = nullptr;  // instead of gate
  float* gathered = nullptr;             // scratch [n_rows * n_chosen, hidden]
  float* inner = nullptr;                // scratch [n_rows * n_chosen, intermediate]
  float* inner_ups = nullptr;            // the same
  const float* residual = nullptr;       // [n_rows, hidden] or null
  float* y = nullptr;                    // [n_rows, hidden]
};

void mix_experts(const ExpertsArgs& args);

}  // namespace memoir::kernels::cpu
