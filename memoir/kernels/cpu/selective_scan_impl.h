// Selective scans in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include "memoir/kernels/cpu/selective_scan.h"
#include "memoir/kernels/cpu/state_block_impl.h"

namespace memoir::kernels::cpu {
namespace {

template <typename S>
[[gnu::always_inline]] inline typename S::F step_of(const SelectiveScanArgs& args, typename S::F dt) {
  if (args.has_softplus) dt = softplus_of<S>(dt);
  if (!args.is_clamped) return dt;
  const auto low = S::set(args.dt_min);
  const auto high = S::set(args.dt_max);
  dt = S::less(dt, low, low, dt);
  return S::less(high, dt, high, dt);
}

// dt of n <= 16 heads or channels, from their projection.
template <typename S>
[[gnu::always_inline]] inline typename S::F step_at(const SelectiveScanArgs& args, const float* dt, int first, int n) {
  auto step = load_some<S>(dt + first, n);
  if (args.dt_bias) step = S::add(step, load_some<S>(args.dt_bias + first, n));
  return step_of<S>(args, step);
}

// Where prepare_scan leaves dt and exp(dt A) of one token of a head.
inline float* prepared_steps(const SelectiveScanArgs& args, int sequence, int head, int token) {
  return args.prepared + ((static_cast<std::ptrdiff_t>(sequence) * args.n_heads + head) * args.n_tokens + token) * 2;
}

template <typename S>
void prepare_scan(const SelectiveScanArgs& args, int sequence, int token) {
  const float* dt = args.dt.at(sequence, token);
  for (int head = 0; head < args.n_heads; head += 16) {
    const int n = args.n_heads - head;
    const auto step = step_at<S>(args, dt, head, n);
    float lanes[2][16];
    S::store(lanes[0], step);
    S::store(lanes[1], exp_of<S>(S::mul(step, load_some<S>(args.a + head, n))));
    for (int i = 0; i < std::min(16, n); ++i) {
      float* to = prepared_steps(args, sequence, head + i, token);
      to[0] = lanes[0][i];
      to[1] = lanes[1][i];
    }
  }
}

// Takes one token in and returns S C. decay(n, v): exp(dt A) of element n of the rows of vector v.
template <typename S, int kVectors, typename Decay>
[[gnu::always_inline]] inline void scan_token(float* block, int n, const float* b, const float* c,
                                              const typename S::F (&input)[kVectors], const Decay& decay,
                                              typename S::F (&out)[kVectors]) {
  using F = typename S::F;
  F sums[4][kVectors];
  for (auto& sum : sums) {
    for (F& vector : sum) vector = S::zero();
  }
  const auto element = [&](int k, auto part) __attribute__((always_inline)) {
    float* line = block + static_cast<std::ptrdiff_t>(k) * 16 * kVectors;
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      const F s = S::fma(input[v], S::set(b[k]), S::mul(decay(k, v), S::load(line + 16 * v)));
      S::store(line + 16 * v, s);
      sums[part][v] = S::fma(s, S::set(c[k]), sums[part][v]);
    });
  };
  int k = 0;
  for (; k + 4 <= n; k += 4) unrolled<4>([&](auto part) __attribute__((always_inline)) { element(k + part, part); });
  unrolled<3>([&](auto part) __attribute__((always_inline)) {
    if (k + part < n) element(k + part, part);
  });
  unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
    out[v] = S::add(S::add(sums[0][v], sums[1][v]), S::add(sums[2][v], sums[3][v]));
  });
}

template <typename S, int kVectors, bool kIsDiagonal>
void scan_tokens(const SelectiveScanArgs& args, const StateBlock& at, int begin, int end, float* block,
                 const float* rates) {
  using F = typename S::F;
  const int group = at.head / (args.n_heads / args.n_groups);
  const std::ptrdiff_t y_stride = static_cast<std::ptrdiff_t>(args.n_heads) * args.head_dim;
  float* y = args.y + static_cast<std::ptrdiff_t>(at.sequence) * args.n_tokens * y_stride +
             static_cast<std::ptrdiff_t>(at.head) * args.head_dim + at.row_begin;
  for (int token = begin; token < end; ++token) {
    const float* x_row = args.x.at(at.sequence, token, at.head) + at.row_begin;
    const float* b = args.b.at(at.sequence, token, group);
    const float* c = args.c.at(at.sequence, token, group);
    F x[kVectors], step[kVectors], input[kVectors], out[kVectors];
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      x[v] = load_some<S>(x_row + 16 * v, at.n_rows - 16 * v);
      if constexpr (kIsDiagonal) {
        step[v] = step_at<S>(args, args.dt.at(at.sequence, token), at.row_begin + 16 * v, at.n_rows - 16 * v);
      } else {
        step[v] = S::set(prepared_steps(args, at.sequence, at.head, token)[0]);
      }
      input[v] = S::mul(step[v], x[v]);
    });
    if constexpr (kIsDiagonal) {
      scan_token<S, kVectors>(
          block, args.state_dim, b, c, input,
          [&](int k, auto v) __attribute__((always_inline)) {
            const float* rate = rates + static_cast<std::ptrdiff_t>(k) * 16 * kVectors;
            return exp_of<S>(S::mul(step[v], S::load(rate + 16 * v)));
          },
          out);
    } else {
      const F decay = S::set(prepared_steps(args, at.sequence, at.head, token)[1]);
      scan_token<S, kVectors>(
          block, args.state_dim, b, c, input, [&](int, auto) { return decay; }, out);
    }
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      const int n = at.n_rows - 16 * v;
      if (args.d) {
        const F d = kIsDiagonal ? load_some<S>(args.d + at.row_begin + 16 * v, n) : S::set(args.d[at.head]);
        out[v] = S::fma(d, x[v], out[v]);
      }
      store_some<S>(y + token * y_stride + 16 * v, n, out[v]);
    });
  }
}

template <typename S, int kVectors>
void scan_block_of(const SelectiveScanArgs& args, const StateBlock& block, float* scratch) {
  const std::ptrdiff_t row =
      (static_cast<std::ptrdiff_t>(block.sequence) * args.n_heads + block.head) * args.head_dim + block.row_begin;
  float* rates = scratch + static_cast<std::ptrdiff_t>(16 * kVectors) * args.state_dim;
  if (args.is_diagonal) {
    const float* a = args.a + static_cast<std::ptrdiff_t>(block.row_begin) * args.state_dim;
    load_block<S, kVectors>(a, block.n_rows, args.state_dim, rates);
  }
  run_block<S, kVectors>(args.states, block, args.n_tokens, args.state_dim, row * args.state_dim, scratch,
                         [&](int begin, int end) {
                           if (args.is_diagonal) {
                             scan_tokens<S, kVectors, true>(args, block, begin, end, scratch, rates);
                           } else {
                             scan_tokens<S, kVectors, false>(args, block, begin, end, scratch, rates);
                           }
                         });
  if (!args.states.spans) return;
  const std::ptrdiff_t y_stride = static_cast<std::ptrdiff_t>(args.n_heads) * args.head_dim;
  clear_padding(args.states.spans[block.sequence], args.n_tokens, block.n_rows, y_stride,
                args.y + static_cast<std::ptrdiff_t>(block.sequence) * args.n_tokens * y_stride +
                    static_cast<std::ptrdiff_t>(block.head) * args.head_dim + block.row_begin);
}

template <typename S>
void scan_block(const SelectiveScanArgs& args, const StateBlock& block, float* scratch) {
  if constexpr (block_vectors<S>() == 2) {
    if (block.n_rows > 16) return scan_block_of<S, 2>(args, block, scratch);
  }
  scan_block_of<S, 1>(args, block, scratch);
}

}  // namespace
}  // namespace memoir::kernels::cpu
