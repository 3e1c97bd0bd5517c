// Scores of queries with a block's keys, and what becomes of them. Included as matmul_impl.h is.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/attention_result_impl.h"
#include "memoir/kernels/cpu/kv_block_impl.h"
#include "memoir/kernels/cpu/math_impl.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

// sum[r][v] += the products of the elements d = lane, lane + kStep, lane + 2 kStep, ... of kRows queries and kVectors *
// 16 keys, summed as the lanes of a vector are (sum_of_lanes): in 16 lanes, which are added in halves.
template <typename S, int kRows, int kVectors, int kStep>
[[gnu::always_inline]] inline void sum_products(int dim, const float* const (&queries)[kRows], const float* keys_t,
                                                int lane, Ahead& next, typename S::F (&sum)[kRows][kVectors]) {
  if constexpr (kStep == kLanes) {
    unrolled<kRows * kVectors>([&](auto i)
                                   __attribute__((always_inline)) { sum[i / kVectors][i % kVectors] = S::zero(); });
    next.ask();
    for (int d = lane; d < dim; d += kStep) {
      typename S::F key[kVectors];
      const float* keys = keys_t + static_cast<std::ptrdiff_t>(d) * kBlockPositions;
      unrolled<kVectors>([&](auto v) __attribute__((always_inline)) { key[v] = S::load(keys + v * kLanes); });
      unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
        const typename S::F q = S::set(queries[r][d]);
        unrolled<kVectors>([&](auto v) __attribute__((always_inline)) { sum[r][v] = S::fma(q, key[v], sum[r][v]); });
      });
    }
  } else {
    typename S::F upper[kRows][kVectors];
    sum_products<S, kRows, kVectors, 2 * kStep>(dim, queries, keys_t, lane, next, sum);
    sum_products<S, kRows, kVectors, 2 * kStep>(dim, queries, keys_t, lane + kStep, next, upper);
    unrolled<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      auto& at = sum[i / kVectors][i % kVectors];
      at = S::add(at, upper[i / kVectors][i % kVectors]);
    });
  }
}

// scores[r][c] of kRows query rows with the block's 64 keys, scaled.
template <typename S, int kRows>
void score_many(const AttentionArgs& args, const float* const (&queries)[kRows], const float* keys_t, Ahead& next,
                float (*scores)[kBlockPositions]) {
  constexpr int kVectors = 2;
  const typename S::F scale = S::set(args.scale);
  for (int c = 0; c < kBlockPositions; c += kVectors * kLanes) {
    typename S::F sum[kRows][kVectors];
    sum_products<S, kRows, kVectors, 1>(args.keys.dim, queries, keys_t + c, 0, next, sum);
    unrolled<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      S::store(scores[i / kVectors] + c + i % kVectors * kLanes, S::mul(sum[i / kVectors][i % kVectors], scale));
    });
  }
}

// The same from keys as they lie.
template <typename S, int kRows, Element kElement>
void score_few(const AttentionArgs& args, const float* const (&queries)[kRows], const BlockOperand& keys, Ahead& next,
               float (*scores)[kBlockPositions]) {
  constexpr int kKeys = 4;
  constexpr auto kSize = static_cast<std::ptrdiff_t>(element_bytes(kElement));
  const typename S::F scale = S::set(args.scale);
  const int dim = padded_to_lanes(args.keys.dim);
  for (int c = 0; c < kBlockPositions; c += kLanes) {
    if (c >= keys.end || c + kLanes <= keys.begin) {
      for (int r = 0; r < kRows; ++r) S::store(scores[r] + c, S::set(kMinusInfinity));
      continue;
    }
    typename S::F quarters[kRows][kKeys];
    for (int j = 0; j < kKeys; ++j) {
      const std::byte* row[kKeys];
      unrolled<kKeys>([&](auto k) __attribute__((always_inline)) { row[k] = keys.row_within(c + j + kKeys * k); });
      typename S::F sum[kRows][kKeys];
      unrolled<kRows * kKeys>([&](auto i) __attribute__((always_inline)) { sum[i / kKeys][i % kKeys] = S::zero(); });
      next.ask();
      for (int d = 0; d < dim; d += kLanes) {
        typename S::F query[kRows];
        unrolled<kRows>([&](auto r) __attribute__((always_inline)) { query[r] = S::load(queries[r] + d); });
        unrolled<kKeys>([&](auto k) __attribute__((always_inline)) {
          const typename S::F key = load_elements<S>(kElement, row[k] + d * kSize);
          unrolled<kRows>([&](auto r) __attribute__((always_inline)) { sum[r][k] = S::fma(query[r], key, sum[r][k]); });
        });
      }
      unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
        quarters[r][j] = S::quarter_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
      });
    }
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      const auto sums = S::sums_of_quarters(quarters[r][0], quarters[r][1], quarters[r][2], quarters[r][3]);
      S::store(scores[r] + c, S::mul(sums, scale));
    });
  }
}

// Caps and masks a row of scores. Returns which positions are seen.
template <typename S>
std::uint64_t mask_scores(const AttentionArgs& args, const BlockRows& rows, QueryRow row, int first, float* scores) {
  if (args.soft_cap > 0) {
    const typename S::F cap = S::set(args.soft_cap);
    for (int c = 0; c < kBlockPositions; c += kLanes) {
      S::store(scores + c, S::mul(cap, tanh_of<S>(S::div(S::load(scores + c), cap))));
    }
  }
  std::uint64_t visible = rows.stored & visible_positions(args, args.first_position + row.query, first);
  if (args.mask_element != MaskElement::kNone) {
    const std::ptrdiff_t at = row.head * args.mask_head_stride + row.query * args.mask_query_stride;
    for (std::uint64_t left = visible; left != 0; left &= left - 1) {
      const int c = std::countr_zero(left);
      if (args.mask_element == MaskElement::kF32) {
        scores[c] += static_cast<const float*>(args.mask)[at + rows.ordinal(c)];
        if (scores[c] == kMinusInfinity) visible &= ~(std::uint64_t{1} << c);
      } else if (!static_cast<const bool*>(args.mask)[at + rows.ordinal(c)]) {
        visible &= ~(std::uint64_t{1} << c);
      }
    }
  }
  for (int c = 0; c < kBlockPositions; c += kLanes) {
    const auto seen = static_cast<std::uint32_t>(visible >> c & 0xffff);
    if (seen == 0) S::store(scores + c, S::set(kMinusInfinity));
    if (seen == 0 || seen == 0xffff) continue;
    for (std::uint32_t left = ~seen & 0xffff; left != 0; left &= left - 1) {
      scores[c + std::countr_zero(left)] = kMinusInfinity;
    }
  }
  return visible;
}

// Turns a row of scores into weights e^(score - m). Returns their sum l.
template <typename S>
float weigh_scores(float* scores, float& maximum) {
  constexpr int kVectors = kBlockPositions / kLanes;
  typename S::F score[kVectors];
  for (int v = 0; v < kVectors; ++v) score[v] = S::load(scores + v * kLanes);
  maximum = max_of_lanes<S>(S::max(S::max(score[0], score[1]), S::max(score[2], score[3])));
  const typename S::F m = S::set(maximum);
  for (int v = 0; v < kVectors; ++v) {
    score[v] = exp_of<S>(S::sub(score[v], m));
    S::store(scores + v * kLanes, score[v]);
  }
  return sum_of_lanes<S>(S::add(S::add(score[0], score[1]), S::add(score[2], score[3])));
}

}  // namespace
}  // namespace memoir::kernels::cpu
