// The gated delta rule in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include <cmath>

#include "memoir/kernels/cpu/gated_delta.h"
#include "memoir/kernels/cpu/state_block_impl.h"

namespace memoir::kernels::cpu {
namespace {

// What prepare_delta leaves for one token of a key head: query [Dk], key [Dk], their product; of a value head: g, beta.
struct PreparedDelta {
  explicit PreparedDelta(const GatedDeltaArgs& args)
      : n_tokens(args.n_tokens),
        key_dim(args.key_dim),
        n_key_heads(args.n_key_heads),
        n_value_heads(args.n_value_heads),
        rows(args.prepared),
        gates(args.prepared + row_floats() * args.n_sequences * n_key_heads * n_tokens) {}

  std::ptrdiff_t row_floats() const { return 2 * key_dim + 1; }
  float* row(int sequence, int key_head, int token) const {
    return rows + ((static_cast<std::ptrdiff_t>(sequence) * n_key_heads + key_head) * n_tokens + token) * row_floats();
  }
  float* gate(int sequence, int value_head, int token) const {
    return gates + ((static_cast<std::ptrdiff_t>(sequence) * n_value_heads + value_head) * n_tokens + token) * 2;
  }

  int n_tokens, key_dim, n_key_heads, n_value_heads;
  float* rows;
  float* gates;
};

template <typename S>
float product_of(const float* a, const float* b, int n) {
  auto sum = S::zero();
  for (int i = 0; i < n; i += 16) sum = S::fma(load_some<S>(a + i, n - i), load_some<S>(b + i, n - i), sum);
  return sum_of_lanes<S>(sum);
}

template <typename S>
void scale_row(const float* x, int n, float factor, float* out) {
  for (int i = 0; i < n; i += 16) store_some<S>(out + i, n - i, S::mul(load_some<S>(x + i, n - i), S::set(factor)));
}

template <typename S>
void prepare_gates(const GatedDeltaArgs& args, const PreparedDelta& prepared, int sequence, int token) {
  using F = typename S::F;
  const float* decays = args.decays.at(sequence, token);
  const float* betas = args.betas.at(sequence, token);
  const int n_heads = args.n_value_heads;
  for (int head = 0; head < n_heads; head += 16) {
    const int n = n_heads - head;
    F decay = load_some<S>(decays + head, n);
    F beta = load_some<S>(betas + head, n);
    if (args.a) {
      const F step = softplus_of<S>(S::add(decay, load_some<S>(args.dt_bias + head, n)));
      decay = S::mul(load_some<S>(args.a + head, n), step);
      beta = sigmoid_of<S>(beta);
    }
    float lanes[2][16];
    S::store(lanes[0], exp_of<S>(decay));
    S::store(lanes[1], beta);
    for (int i = 0; i < std::min(16, n); ++i) {
      float* gate = prepared.gate(sequence, head + i, token);
      gate[0] = lanes[0][i];
      gate[1] = lanes[1][i];
    }
  }
}

template <typename S>
void prepare_delta(const GatedDeltaArgs& args, int sequence, int token) {
  const PreparedDelta prepared(args);
  const int n = args.key_dim;
  for (int head = 0; head < args.n_key_heads; ++head) {
    const float* query = args.queries.at(sequence, token, head);
    const float* key = args.keys.at(sequence, token, head);
    float* row = prepared.row(sequence, head, token);
    float query_factor = 1;
    float key_factor = 1;
    if (args.normalizes) {
      query_factor = 1.0F / std::sqrt(product_of<S>(query, query, n) + args.eps);
      key_factor = 1.0F / std::sqrt(product_of<S>(key, key, n) + args.eps);
    }
    scale_row<S>(query, n, query_factor * args.scale, row);
    scale_row<S>(key, n, key_factor, row + n);
    row[2 * n] = product_of<S>(row, row + n, n);
  }
  prepare_gates<S>(args, prepared, sequence, token);
}

// S k and S q of one token, over the state before it.
template <typename S, int kVectors>
struct DeltaSums {
  typename S::F memory[kVectors];
  typename S::F out[kVectors];
};

// One pass over the block: takes a token in (kUpdates: S = g S + delta k^T), then reads it for the next (kReads).
template <typename S, int kVectors, bool kUpdates, bool kReads>
[[gnu::always_inline]] inline void delta_pass(float* block, int n, const float* key, typename S::F decay,
                                              const typename S::F (&delta)[kVectors], const float* next,
                                              DeltaSums<S, kVectors>& sums) {
  using F = typename S::F;
  F memory[2][kVectors], out[2][kVectors];
  for (int v = 0; v < kVectors; ++v) memory[0][v] = memory[1][v] = out[0][v] = out[1][v] = S::zero();
  const auto element = [&](int k, auto part) __attribute__((always_inline)) {
    float* line = block + static_cast<std::ptrdiff_t>(k) * 16 * kVectors;
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      F s = S::load(line + 16 * v);
      if constexpr (kUpdates) {
        s = S::fma(S::set(key[k]), delta[v], S::mul(decay, s));
        S::store(line + 16 * v, s);
      }
      if constexpr (kReads) {
        out[part][v] = S::fma(s, S::set(next[k]), out[part][v]);
        memory[part][v] = S::fma(s, S::set(next[n + k]), memory[part][v]);
      }
    });
  };
  int k = 0;
  for (; k + 2 <= n; k += 2) unrolled<2>([&](auto part) __attribute__((always_inline)) { element(k + part, part); });
  if (k < n) element(k, std::integral_constant<int, 0>{});
  if constexpr (kReads) {
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      sums.memory[v] = S::add(memory[0][v], memory[1][v]);
      sums.out[v] = S::add(out[0][v], out[1][v]);
    });
  }
}

template <typename S, int kVectors>
void delta_tokens(const GatedDeltaArgs& args, const StateBlock& at, int begin, int end, float* block) {
  using F = typename S::F;
  const PreparedDelta prepared(args);
  const int n = args.key_dim;
  const int key_head =
      args.has_tiled_values ? at.head % args.n_key_heads : at.head / (args.n_value_heads / args.n_key_heads);
  const std::ptrdiff_t y_stride = static_cast<std::ptrdiff_t>(args.n_value_heads) * args.value_dim;
  float* y = args.y + static_cast<std::ptrdiff_t>(at.sequence) * args.n_tokens * y_stride +
             static_cast<std::ptrdiff_t>(at.head) * args.value_dim + at.row_begin;
  DeltaSums<S, kVectors> sums;
  F delta[kVectors] = {};
  delta_pass<S, kVectors, false, true>(block, n, nullptr, S::zero(), delta, prepared.row(at.sequence, key_head, begin),
                                       sums);
  for (int token = begin; token < end; ++token) {
    const float* row = prepared.row(at.sequence, key_head, token);
    const float* gate = prepared.gate(at.sequence, at.head, token);
    const float* value = args.values.at(at.sequence, token, at.head) + at.row_begin;
    const F decay = S::set(gate[0]);
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      const F memory = S::mul(decay, sums.memory[v]);
      delta[v] = S::mul(S::set(gate[1]), S::sub(load_some<S>(value + 16 * v, at.n_rows - 16 * v), memory));
      const F out = S::fma(S::set(row[2 * n]), delta[v], S::mul(decay, sums.out[v]));
      store_some<S>(y + token * y_stride + 16 * v, at.n_rows - 16 * v, out);
    });
    if (token + 1 < end) {
      delta_pass<S, kVectors, true, true>(block, n, row + n, decay, delta, row + prepared.row_floats(), sums);
    } else {
      delta_pass<S, kVectors, true, false>(block, n, row + n, decay, delta, nullptr, sums);
    }
  }
}

template <typename S, int kVectors>
void delta_block_of(const GatedDeltaArgs& args, const StateBlock& block, float* scratch) {
  const std::ptrdiff_t row =
      (static_cast<std::ptrdiff_t>(block.sequence) * args.n_value_heads + block.head) * args.value_dim +
      block.row_begin;
  run_block<S, kVectors>(args.states, block, args.n_tokens, args.key_dim, row * args.key_dim, scratch,
                         [&](int begin, int end) { delta_tokens<S, kVectors>(args, block, begin, end, scratch); });
  if (!args.states.spans) return;
  const std::ptrdiff_t y_stride = static_cast<std::ptrdiff_t>(args.n_value_heads) * args.value_dim;
  clear_padding(args.states.spans[block.sequence], args.n_tokens, block.n_rows, y_stride,
                args.y + static_cast<std::ptrdiff_t>(block.sequence) * args.n_tokens * y_stride +
                    static_cast<std::ptrdiff_t>(block.head) * args.value_dim + block.row_begin);
}

template <typename S>
void delta_block(const GatedDeltaArgs& args, const StateBlock& block, float* scratch) {
  if constexpr (block_vectors<S>() == 2) {
    if (block.n_rows > 16) return delta_block_of<S, 2>(args, block, scratch);
  }
  delta_block_of<S, 1>(args, block, scratch);
}

}  // namespace
}  // namespace memoir::kernels::cpu
