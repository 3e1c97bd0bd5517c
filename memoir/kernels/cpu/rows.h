#pragma once

// Functions of single rows of activations: norms, rotary position embedding, gated activations. No MLX.
//
// A row's result depends on that row alone. Sums over a row are kept in 16 lanes, element i in lane i % 16, which are
// then added in halves (lane i to lane i + 8, then + 4, + 2, + 1): the same bits for every instruction set.

namespace memoir::kernels::cpu {

struct NormArgs {
  int n;  // elements of a row
  float eps;
  const float* weight;          // [n] or null
  const float* bias = nullptr;  // [n] or null
  bool subtracts_mean = false;  // layer norm; else root mean square
};

struct RopeArgs {
  int n_dims;        // leading elements of a head that turn, even
  int head_dim;      // elements of a head; those after n_dims are copied
  bool traditional;  // pairs (2i, 2i + 1) rather than (i, i + n_dims / 2)
};

/// The nonlinear factor of a gated feed-forward, or (kSigmoid) of a layer's output.
enum class Gate {
  kSilu,      // z * sigmoid(z)
  kGeluTanh,  // z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3)))
  kSigmoid,   // 1 / (1 + exp(-z))
};

/// The gated activation of gpt-oss (its model card's "clamped SwiGLU").
struct ClampedGate {
  float alpha;  // gain inside the sigmoid
  float limit;  // above 0
};

// The functions of a Kernels (kernels.h):
//
// norm_row: out[i] = (x[i] - mean) / sqrt(variance + eps) * weight[i] + bias[i]; without a mean, the variance is that
// of the plain squares. out may be x.
//
// rotate_row: turns[2 i] and turns[2 i + 1] are the cosine and sine of pair i's angle; (a, b) becomes
// (a cos - b sin, a sin + b cos), each product rounded. out may be x.
//
// gate_row: out[i] = gate(gates[i]) * ups[i]. out may be gates or ups.
//
// clamped_gate_row: out[i] = g * sigmoid(alpha * g) * (u + 1) with g = min(gates[i], limit) and
// u = min(max(ups[i], -limit), limit). out may be gates or ups. NaN stays NaN.
//
// cap_row: out[i] = cap * tanh(x[i] / cap). out may be x.

/// The norm of each of n_rows rows. x, out: [n_rows, norm.n]; out may be x.
void norm_rows(const NormArgs& norm, int n_rows, const float* x, float* out);

/// gate(gates) * ups, element by element, of n_rows rows of n; with `clamped` that instead of `gate`. out may be gates
/// or ups.
struct GateArgs {
  Gate gate = Gate::kSilu;
  const ClampedGate* clamped = nullptr;
  int n_rows = 0;
  int n = 0;
  const float* gates = nullptr;
  const float* ups = nullptr;
  float* out = nullptr;
};
void gate_rows(const GateArgs& args);

/// cap * tanh(x / cap) of n_rows rows of n. out may be x.
void cap_rows(float cap, int n_rows, int n, const float* x, float* out);

/// The heads of a projection, brought from rows of tokens to the order of a cache.
struct HeadsArgs {
  int n_sequences = 0;
  int n_tokens = 0;  // of each sequence
  int n_heads = 0;
  RopeArgs rope{};                 // head_dim holds also where nothing turns
  const NormArgs* norm = nullptr;  // of a head, before it turns, or null
  const float* turns = nullptr;    // [n_tokens, rope.n_dims], see rotate_row, or null
  const float* x = nullptr;        // [n_sequences, n_tokens, n_heads * head_dim], rows row_stride apart
  int row_stride = 0;
  float* out = nullptr;  // [n_sequences, n_heads, n_tokens, head_dim]
};
void split_heads(const HeadsArgs& args);

}  // namespace memoir::kernels::cpu
