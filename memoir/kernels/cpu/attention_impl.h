// Attention in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/attention_result_impl.h"
#include "memoir/kernels/cpu/kv_block_impl.h"
#include "memoir/kernels/cpu/math_impl.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

QueryRow query_row(const AttentionArgs& args, const AttentionPart& part, int index) {
  const int group = args.n_heads / args.n_kv_heads;
  return {part.kv_head * group + index % group, part.query_begin + index / group};
}

// scores[r][c] of kRows query rows with the block's 64 keys, scaled.
template <typename S, int kRows>
void score_rows(const AttentionArgs& args, const float* const (&queries)[kRows], const float* keys_t, Ahead& next,
                float (*scores)[kBlockPositions]) {
  constexpr int kVectors = kBlockPositions / kLanes;
  typename S::F sum[kRows][kVectors];
  unrolled<kRows * kVectors>([&](auto i)
                                 __attribute__((always_inline)) { sum[i / kVectors][i % kVectors] = S::zero(); });
  for (int d = 0; d < args.keys.dim; ++d, keys_t += kBlockPositions) {
    next.ask(kLinesPerStep);
    typename S::F key[kVectors];
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) { key[v] = S::load(keys_t + v * kLanes); });
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      const typename S::F q = S::set(queries[r][d]);
      unrolled<kVectors>([&](auto v) __attribute__((always_inline)) { sum[r][v] = S::fma(q, key[v], sum[r][v]); });
    });
  }
  const typename S::F scale = S::set(args.scale);
  unrolled<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    S::store(scores[i / kVectors] + i % kVectors * kLanes, S::mul(sum[i / kVectors][i % kVectors], scale));
  });
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
        scores[c] += static_cast<const float*>(args.mask)[at + rows.ordinal[c]];
        if (scores[c] == kMinusInfinity) visible &= ~(std::uint64_t{1} << c);
      } else if (!static_cast<const bool*>(args.mask)[at + rows.ordinal[c]]) {
        visible &= ~(std::uint64_t{1} << c);
      }
    }
  }
  for (std::uint64_t left = ~visible; left != 0; left &= left - 1) scores[std::countr_zero(left)] = kMinusInfinity;
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

// o of kRows query rows, kVectors * 16 values from `at` on: the values of positions [begin, end) by weight, merged.
template <typename S, int kRows, int kVectors>
void weigh_values(const float (*weights)[kBlockPositions], const ValueRows& values, int at, int begin, int end,
                  Ahead& next, const MergeFactors (&factors)[kRows], float* const (&o)[kRows]) {
  typename S::F sum[kRows][kVectors];
  unrolled<kRows * kVectors>([&](auto i)
                                 __attribute__((always_inline)) { sum[i / kVectors][i % kVectors] = S::zero(); });
  const float* row = values.data + begin * values.stride + at;
  for (int c = begin; c < end; ++c, row += values.stride) {
    next.ask(kLinesPerStep);
    typename S::F value[kVectors];
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) { value[v] = S::load(row + v * kLanes); });
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      const typename S::F weight = S::set(weights[r][c]);
      unrolled<kVectors>([&](auto v)
                             __attribute__((always_inline)) { sum[r][v] = S::fma(weight, value[v], sum[r][v]); });
    });
  }
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    if (o[r]) merge_values<S, kVectors>(sum[r], factors[r].old_factor, factors[r].new_factor, o[r] + at);
  });
}

// A block as float32, ready for any number of query rows.
struct Block {
  int first;  // position
  BlockRows rows;
  const float* keys_t;
  ValueRows values;
};

// Takes the block into the results of kRows query rows from `index` on.
template <typename S, int kRows>
void attend_rows(const AttentionArgs& args, const AttentionPart& part, const Block& block, int index, Ahead& next,
                 float* results, std::ptrdiff_t result_stride) {
  const int padded = padded_to_lanes(args.values.dim);
  const float* queries[kRows];
  for (int r = 0; r < kRows; ++r) {
    const QueryRow row = query_row(args, part, index + r);
    queries[r] = args.queries + row.head * args.query_head_stride + row.query * args.query_row_stride;
  }
  float scores[kRows][kBlockPositions];
  score_rows<S, kRows>(args, queries, block.keys_t, next, scores);
  MergeFactors factors[kRows];
  float* o[kRows];
  std::uint64_t seen = 0;
  for (int r = 0; r < kRows; ++r) {
    const std::uint64_t visible =
        mask_scores<S>(args, block.rows, query_row(args, part, index + r), block.first, scores[r]);
    seen |= visible;
    o[r] = nullptr;
    if (visible == 0) {
      std::fill_n(scores[r], kBlockPositions, 0.0F);
      continue;
    }
    BlockResult result(results + (index + r) * result_stride, padded);
    float maximum = 0;
    const float sum = weigh_scores<S>(scores[r], maximum);
    factors[r] = merge_sums<S>(result, maximum, sum);
    o[r] = result.o;
  }
  if (seen == 0) return;
  const int begin = std::countr_zero(seen);
  const int end = kBlockPositions - std::countl_zero(seen);
  int at = 0;
  for (; at + 4 * kLanes <= padded; at += 4 * kLanes) {
    weigh_values<S, kRows, 4>(scores, block.values, at, begin, end, next, factors, o);
  }
  for (; at < padded; at += kLanes) weigh_values<S, kRows, 1>(scores, block.values, at, begin, end, next, factors, o);
}

template <typename S>
void attend_block(const AttentionArgs& args, const AttentionPart& part, const Block& block, Ahead& next, float* results,
                  std::ptrdiff_t result_stride) {
  const int n_rows = (part.query_end - part.query_begin) * (args.n_heads / args.n_kv_heads);
  int index = 0;
  for (; index + S::kRows <= n_rows; index += S::kRows) {
    attend_rows<S, S::kRows>(args, part, block, index, next, results, result_stride);
  }
  for (; index + 3 <= n_rows; index += 3) attend_rows<S, 3>(args, part, block, index, next, results, result_stride);
  for (; index + 2 <= n_rows; index += 2) attend_rows<S, 2>(args, part, block, index, next, results, result_stride);
  if (index < n_rows) attend_rows<S, 1>(args, part, block, index, next, results, result_stride);
}

template <typename S>
void attention_part(const AttentionArgs& args, const AttentionPart& part, float* scratch) {
  const int key_padded = padded_to_lanes(args.keys.dim);
  const int padded = padded_to_lanes(args.values.dim);
  float* keys_t = scratch;
  float* values = keys_t + static_cast<std::ptrdiff_t>(args.keys.dim) * kBlockPositions;
  float* buffer = values + static_cast<std::ptrdiff_t>(padded) * kBlockPositions;
  float* results = buffer + static_cast<std::ptrdiff_t>(kLanes + 1) * key_padded;
  const auto stride = static_cast<std::ptrdiff_t>(block_floats(args.values.dim));
  const int n_rows = (part.query_end - part.query_begin) * (args.n_heads / args.n_kv_heads);
  for (int i = 0; i < n_rows; ++i) clear_result(results + i * stride, padded);
  const auto rows_of = [&](int b) { return rows_of_block(args, args.block_at(b) * kBlockPositions); };
  BlockRows next = part.block_begin < part.block_end ? rows_of(part.block_begin) : BlockRows{};
  for (int b = part.block_begin; b < part.block_end; ++b) {
    const BlockRows rows = next;
    int next_head = part.kv_head;
    if (b + 1 < part.block_end) {
      next = rows_of(b + 1);
    } else if (part.next_block >= 0) {
      next = rows_of(part.next_block);
      next_head = part.next_kv_head;
    } else {
      next = {};
    }
    Ahead ahead(args, next, next_head);
    if (rows.stored != 0) {
      transpose_keys<S>(args, rows, part.kv_head, ahead, keys_t, buffer);
      const int first = args.block_at(b) * kBlockPositions;
      attend_block<S>(args, part, {first, rows, keys_t, value_rows<S>(args, rows, part.kv_head, values)}, ahead,
                      results, stride);
    }
    ahead.ask_rest();
    if (!part.keeps_blocks) continue;
    for (int i = 0; i < n_rows; ++i) {
      const QueryRow row = query_row(args, part, i);
      std::copy_n(results + i * stride, stride, kept_block(args, row.head, row.query, b));
      clear_result(results + i * stride, padded);
    }
  }
  if (part.keeps_blocks) return;
  for (int i = 0; i < n_rows; ++i) finish_row<S>(args, query_row(args, part, i), results + i * stride, padded);
}

template <typename S>
void merge_blocks(const AttentionArgs& args, int head, int query) {
  const int padded = padded_to_lanes(args.values.dim);
  float* first = kept_block(args, head, query, 0);
  BlockResult result(first, padded);
  for (int b = 1; b < args.n_blocks; ++b) {
    BlockResult block(kept_block(args, head, query, b), padded);
    if (block.m == kMinusInfinity) continue;
    const MergeFactors factors = merge_sums<S>(result, block.m, block.l);
    for (int at = 0; at < padded; at += kLanes) {
      const typename S::F value[1] = {S::load(block.o + at)};
      merge_values<S, 1>(value, factors.old_factor, factors.new_factor, result.o + at);
    }
  }
  finish_row<S>(args, {head, query}, first, padded);
}

}  // namespace
}  // namespace memoir::kernels::cpu
