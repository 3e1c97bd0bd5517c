#pragma once

// What a transformer's layer does between two attentions, each as one operation: nothing but the calls of matmul.h and
// rows.h one after the other, so their bits are the same as those of the single calls. No MLX.

#include <array>

#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/rows.h"

namespace memoir::kernels::cpu {

/// A weight as stored, without what it is multiplied with.
struct LinearArgs {
  PackedFormat format;
  const std::byte* weights;
  const float* bias = nullptr;  // [N] or null
};

/// y = x W^T (+ bias) of n_rows rows.
MatmulArgs product(const LinearArgs& linear, int n_rows, const float* x, float* y);

/// Queries, keys and values of a layer: y = linear(norm(x)), cut into heads, each head normed, then turned.
struct ProjectionArgs {
  int n_sequences = 0;
  int n_tokens = 0;
  const float* x = nullptr;        // [n_sequences * n_tokens, hidden]
  const NormArgs* norm = nullptr;  // of x, or null
  float* normed = nullptr;         // scratch as x; unused without norm
  float* joined = nullptr;         // scratch [n_sequences * n_tokens, all outputs of the three]
  RopeArgs rope{};                 // of queries and keys
  const float* turns = nullptr;    // [n_tokens, rope.n_dims] or null

  struct Part {
    LinearArgs linear{};
    int n_heads = 0;
    const NormArgs* norm = nullptr;  // of each head, or null
    float* out = nullptr;            // [n_sequences, n_heads, n_tokens, head_dim]
  };
  std::array<Part, 3> parts;  // queries, keys, values
};
void project_heads(const ProjectionArgs& args);

/// y = down(gate(gates(norm(x))) * ups(norm(x))) (+ residual).
struct GatedMlpArgs {
  int n_rows = 0;
  const float* x = nullptr;        // [n_rows, hidden]
  const NormArgs* norm = nullptr;  // of x, or null
  float* normed = nullptr;         // scratch as x; unused without norm
  Gate gate = Gate::kSilu;
  LinearArgs gates{};  // [intermediate, hidden]
  LinearArgs ups{};
  LinearArgs down{};                // [hidden, intermediate]
  float* inner = nullptr;           // scratch [n_rows, intermediate]
  float* inner_ups = nullptr;       // scratch as inner
  const float* residual = nullptr;  // [n_rows, hidden] or null
  float* y = nullptr;               // [n_rows, hidden]
};
void gated_mlp(const GatedMlpArgs& args);

}  // namespace memoir::kernels::cpu
