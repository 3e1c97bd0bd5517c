// Norms, rope and gates in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include <cmath>

#include "memoir/kernels/cpu/math_impl.h"
#include "memoir/kernels/cpu/rows.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

template <typename S>
void norm_row(const NormArgs& norm, const float* x, float* out) {
  using F = typename S::F;
  const int n = norm.n;
  float mean = 0;
  if (norm.subtracts_mean) {
    F sum = S::zero();
    for (int i = 0; i < n; i += 16) sum = S::add(sum, load_some<S>(x + i, n - i));
    mean = sum_of_lanes<S>(sum) / static_cast<float>(n);
  }
  F squares = S::zero();
  for (int i = 0; i < n; i += 16) {
    F value = load_some<S>(x + i, n - i);
    if (norm.subtracts_mean) {
      float lanes[16] = {};
      store_some<S>(lanes, n - i, S::sub(value, S::set(mean)));  // lanes past the end stay zero
      value = S::load(lanes);
    }
    squares = S::fma(value, value, squares);
  }
  const float variance = sum_of_lanes<S>(squares) / static_cast<float>(n);
  const F factor = S::set(1.0F / std::sqrt(variance + norm.eps));
  for (int i = 0; i < n; i += 16) {
    F value = load_some<S>(x + i, n - i);
    if (norm.subtracts_mean) value = S::sub(value, S::set(mean));
    value = S::mul(value, factor);
    if (norm.weight) value = S::mul(value, load_some<S>(norm.weight + i, n - i));
    if (norm.bias) value = S::add(value, load_some<S>(norm.bias + i, n - i));
    store_some<S>(out + i, n - i, value);
  }
}

// Plain loops: the compiler makes vectors of them, and every product and sum is rounded as written.
template <typename S>
void rotate_row(const RopeArgs& rope, const float* turns, const float* x, float* out) {
  const int n_pairs = rope.n_dims / 2;
  const int step = rope.traditional ? 2 : 1;
  const int apart = rope.traditional ? 1 : n_pairs;
  for (int i = 0; i < n_pairs; ++i) {
    const float a = x[i * step];
    const float b = x[i * step + apart];
    out[i * step] = a * turns[2 * i] - b * turns[2 * i + 1];
    out[i * step + apart] = a * turns[2 * i + 1] + b * turns[2 * i];
  }
  if (out == x) return;
  for (int i = rope.n_dims; i < rope.head_dim; ++i) out[i] = x[i];
}

template <typename S>
[[gnu::always_inline]] inline typename S::F gated(Gate gate, typename S::F z) {
  using F = typename S::F;
  if (gate != Gate::kGeluTanh) {
    const F numerator = gate == Gate::kSilu ? z : S::set(1);
    return S::div(numerator, S::add(S::set(1), exp_of<S>(S::sub(S::zero(), z))));
  }
  const F cube = S::mul(S::mul(z, z), z);
  const F inner = S::mul(S::set(0.7978845608F), S::fma(S::set(0.044715F), cube, z));
  return S::mul(S::mul(S::set(0.5F), z), S::add(S::set(1), tanh_of<S>(inner)));
}

template <typename S>
void gate_row(Gate gate, int n, const float* gates, const float* ups, float* out) {
  for (int i = 0; i < n; i += 16) {
    const auto value = gated<S>(gate, load_some<S>(gates + i, n - i));
    store_some<S>(out + i, n - i, S::mul(value, load_some<S>(ups + i, n - i)));
  }
}

// Written so that NaN, which is neither less nor more, stays.
template <typename S>
[[gnu::always_inline]] inline typename S::F at_most(typename S::F x, typename S::F limit) {
  return S::less(limit, x, limit, x);
}

template <typename S>
void clamped_gate_row(const ClampedGate& gate, int n, const float* gates, const float* ups, float* out) {
  using F = typename S::F;
  const F limit = S::set(gate.limit);
  const F lowest = S::set(-gate.limit);
  for (int i = 0; i < n; i += 16) {
    const F g = at_most<S>(load_some<S>(gates + i, n - i), limit);
    F u = at_most<S>(load_some<S>(ups + i, n - i), limit);
    u = S::less(u, lowest, lowest, u);
    const F inner = exp_of<S>(S::mul(S::set(-gate.alpha), g));
    const F swish = S::div(g, S::add(S::set(1), inner));
    store_some<S>(out + i, n - i, S::mul(swish, S::add(u, S::set(1))));
  }
}

template <typename S>
void cap_row(float cap, int n, const float* x, float* out) {
  for (int i = 0; i < n; i += 16) {
    const auto value = S::div(load_some<S>(x + i, n - i), S::set(cap));
    store_some<S>(out + i, n - i, S::mul(S::set(cap), tanh_of<S>(value)));
  }
}

}  // namespace
}  // namespace memoir::kernels::cpu
