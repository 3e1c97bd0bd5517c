// What the recurrent kernels of every instruction set are written with. Included as matmul_impl.h is.

#pragma once

#include <algorithm>

#include "memoir/kernels/cpu/math_impl.h"
#include "memoir/kernels/cpu/recurrent_kernels.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

/// As many vectors of rows as leave the sums in registers.
template <typename S>
constexpr int block_vectors() {
  return S::kRows >= 4 ? 2 : 1;
}

template <typename S>
constexpr int block_rows() {
  return 16 * block_vectors<S>();
}

// rows [n_rows, n] into block [n, 16 * kVectors], where a row is a lane; lanes without a row are zero. Null: zeros.
template <typename S, int kVectors>
void load_block(const float* rows, int n_rows, int n, float* block) {
  constexpr int kWidth = 16 * kVectors;
  for (int v = 0; v < kVectors; ++v) {
    for (int k = 0; k < n; k += 16) {
      typename S::F lines[16];
      for (int i = 0; i < 16; ++i) {
        const int row = 16 * v + i;
        // The next block's: rows side by side are too short for the processor to see where they lead.
        if (rows) __builtin_prefetch(rows + static_cast<std::ptrdiff_t>(row + kWidth) * n + k);
        lines[i] =
            rows && row < n_rows ? load_some<S>(rows + static_cast<std::ptrdiff_t>(row) * n + k, n - k) : S::zero();
      }
      S::transpose(lines);
      const int n_lines = std::min(16, n - k);
      for (int j = 0; j < n_lines; ++j)
        S::store(block + static_cast<std::ptrdiff_t>(k + j) * kWidth + 16 * v, lines[j]);
    }
  }
}

// The way back.
template <typename S, int kVectors>
void store_block(const float* block, int n_rows, int n, float* rows) {
  constexpr int kWidth = 16 * kVectors;
  for (int v = 0; v < kVectors; ++v) {
    for (int k = 0; k < n; k += 16) {
      typename S::F lines[16];
      const int n_lines = std::min(16, n - k);
      for (int j = 0; j < 16; ++j) {
        lines[j] = j < n_lines ? S::load(block + static_cast<std::ptrdiff_t>(k + j) * kWidth + 16 * v) : S::zero();
      }
      S::transpose(lines);
      const int end = std::min(16, n_rows - 16 * v);
      for (int i = 0; i < end; ++i)
        store_some<S>(rows + static_cast<std::ptrdiff_t>(16 * v + i) * n + k, n - k, lines[i]);
    }
  }
}

// Runs a block through a call: `tokens(begin, end)` for the real tokens between captures, stores between them.
// offset: where the block's rows begin in a state.
template <typename S, int kVectors, typename Tokens>
void run_block(const StateArgs& states, const StateBlock& block, int n_tokens, int n, std::ptrdiff_t offset,
               float* scratch, const Tokens& tokens) {
  load_block<S, kVectors>(states.initial ? states.initial + offset : nullptr, block.n_rows, n, scratch);
  const TokenSpan span = states.span(block.sequence, n_tokens);
  int begin = span.begin;
  for (int i = 0; i <= states.n_captured; ++i) {
    const int end = i < states.n_captured ? std::min(states.steps[i], span.end) : span.end;
    if (begin < end) {
      tokens(begin, end);
      begin = end;
    }
    store_block<S, kVectors>(scratch, block.n_rows, n,
                             (i < states.n_captured ? states.captured[i] : states.final) + offset);
  }
}

// Zeros for the padding's outputs: n floats of each token, stride apart.
inline void clear_padding(const TokenSpan& span, int n_tokens, int n, std::ptrdiff_t stride, float* y) {
  for (int token = 0; token < n_tokens; ++token) {
    if (token < span.begin || token >= span.end) std::fill_n(y + token * stride, n, 0.0F);
  }
}

// log(1 + e^x) = max(x, 0) + log(1 + u) with u = e^-|x|, and log(1 + u) = 2 artanh(u / (2 + u)) by its series: the
// argument is at most 1/3, where the first term left out is 2e-9 of the sum.
template <typename S>
[[gnu::always_inline]] inline typename S::F softplus_of(typename S::F x) {
  using F = typename S::F;
  const F u = exp_of<S>(S::sub(S::zero(), S::max(x, S::sub(S::zero(), x))));
  const F s = S::div(u, S::add(u, S::set(2)));
  const F square = S::mul(s, s);
  F p = S::set(2.0F / 15);
  for (const float term : {2.0F / 13, 2.0F / 11, 2.0F / 9, 2.0F / 7, 2.0F / 5, 2.0F / 3, 2.0F}) {
    p = S::fma(p, square, S::set(term));
  }
  return S::add(S::max(x, S::zero()), S::mul(p, s));
}

template <typename S>
[[gnu::always_inline]] inline typename S::F sigmoid_of(typename S::F x) {
  return S::div(S::set(1), S::add(S::set(1), exp_of<S>(S::sub(S::zero(), x))));
}

}  // namespace
}  // namespace memoir::kernels::cpu
