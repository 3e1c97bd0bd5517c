// Attention in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/attention_result_impl.h"
#include "memoir/kernels/cpu/attention_scores_impl.h"
#include "memoir/kernels/cpu/kv_block_impl.h"
#include "memoir/kernels/cpu/math_impl.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

// With so few query rows, keys are read as they lie; with more it pays to turn a block's keys round first.
constexpr int kFewRowsOfPart = 12;
static_assert(kFewRowsOfPart <= kLanes + 1, "copied queries take the place of the rows that are turned round");

// Calls function with the element as a constant.
template <typename Function>
[[gnu::always_inline]] inline void with_element(Element element, const Function& function) {
  switch (element) {
    case Element::kF16:
      return function(std::integral_constant<Element, Element::kF16>{});
    case Element::kBF16:
      return function(std::integral_constant<Element, Element::kBF16>{});
    default:
      return function(std::integral_constant<Element, Element::kF32>{});
  }
}

QueryRow query_row(const AttentionArgs& args, const AttentionPart& part, int index) {
  const int group = args.n_heads / args.n_kv_heads;
  return {part.kv_head * group + index % group, part.query_begin + index / group};
}

const float* query_of(const AttentionArgs& args, QueryRow row) {
  return args.queries + row.head * args.query_head_stride + row.query * args.query_row_stride;
}

constexpr int kValuesPerAsk = 4;  // rows between two calls of Ahead::ask()

// o of kRows query rows, kVectors * 16 values from `at` on: the values of positions [begin, end) by weight, merged.
template <typename S, int kRows, int kVectors, Element kElement>
void weigh_values(const float (*weights)[kBlockPositions], const BlockOperand& values, int at, int begin, int end,
                  Ahead& next, const MergeFactors (&factors)[kRows], float* const (&o)[kRows]) {
  constexpr auto kSize = static_cast<std::ptrdiff_t>(element_bytes(kElement));
  typename S::F sum[kRows][kVectors];
  unrolled<kRows * kVectors>([&](auto i)
                                 __attribute__((always_inline)) { sum[i / kVectors][i % kVectors] = S::zero(); });
  const std::byte* row = values.row(begin) + at * kSize;
  for (int c = begin; c < end; ++c, row += values.stride) {
    if (c % kValuesPerAsk == 0) next.ask();
    typename S::F value[kVectors];
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      value[v] = load_elements<S>(kElement, row + v * kLanes * kSize);
    });
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

template <typename S, int kRows, Element kElement>
void weigh_all_values(const AttentionArgs& args, const float (*weights)[kBlockPositions], const BlockOperand& values,
                      std::uint64_t seen, Ahead& next, const MergeFactors (&factors)[kRows], float* const (&o)[kRows]) {
  const int padded = padded_to_lanes(args.values.dim);
  const int begin = std::countr_zero(seen);
  const int end = kBlockPositions - std::countl_zero(seen);
  int at = 0;
  for (; at + 4 * kLanes <= padded; at += 4 * kLanes) {
    weigh_values<S, kRows, 4, kElement>(weights, values, at, begin, end, next, factors, o);
  }
  for (; at < padded; at += kLanes) {
    weigh_values<S, kRows, 1, kElement>(weights, values, at, begin, end, next, factors, o);
  }
}

// A block, made ready for any number of query rows.
struct Block {
  int first;  // position
  const BlockRows& rows;
  const float* keys_t;  // null: as in `keys`
  BlockOperand keys;
  BlockOperand values;
};

// Takes the block into the results of kRows query rows from `index` on.
template <typename S, int kRows>
void attend_rows(const AttentionArgs& args, const AttentionPart& part, const Block& block, int index,
                 const float* few_queries, Ahead& next, float* results, std::ptrdiff_t result_stride) {
  const float* queries[kRows];
  for (int r = 0; r < kRows; ++r) {
    queries[r] = block.keys_t ? query_of(args, query_row(args, part, index + r))
                              : few_queries + static_cast<std::ptrdiff_t>(index + r) * padded_to_lanes(args.keys.dim);
  }
  alignas(64) float scores[kRows][kBlockPositions];
  if (block.keys_t) {
    score_many<S, kRows>(args, queries, block.keys_t, next, scores);
  } else {
    with_element(
        block.keys.element, [&](auto element) __attribute__((always_inline)) {
          score_few<S, kRows, element>(args, queries, block.keys, next, scores);
        });
  }
  const int padded = padded_to_lanes(args.values.dim);
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
  with_element(
      block.values.element, [&](auto element) __attribute__((always_inline)) {
        weigh_all_values<S, kRows, element>(args, scores, block.values, seen, next, factors, o);
      });
}

template <typename S>
void attend_block(const AttentionArgs& args, const AttentionPart& part, const Block& block, const float* few_queries,
                  Ahead& next, float* results, std::ptrdiff_t result_stride) {
  const int n_rows = (part.query_end - part.query_begin) * (args.n_heads / args.n_kv_heads);
  int index = 0;
  const auto attend = [&](auto n) __attribute__((always_inline)) {
    for (; index + n <= n_rows; index += n) {
      attend_rows<S, n>(args, part, block, index, few_queries, next, results, result_stride);
    }
  };
  if (block.keys_t) attend(std::integral_constant<int, S::kRows>{});
  if constexpr (S::kFewRows >= 4) attend(std::integral_constant<int, 4>{});
  if constexpr (S::kFewRows >= 3) attend(std::integral_constant<int, 3>{});
  attend(std::integral_constant<int, 2>{});
  attend(std::integral_constant<int, 1>{});
}

// The part's queries, one after the other, filled up with zeros to a number of vectors.
void copy_queries(const AttentionArgs& args, const AttentionPart& part, int n_rows, float* copy) {
  const int padded = padded_to_lanes(args.keys.dim);
  for (int i = 0; i < n_rows; ++i, copy += padded) {
    const float* query = query_of(args, query_row(args, part, i));
    std::fill(std::copy_n(query, args.keys.dim, copy), copy + padded, 0.0F);
  }
}

template <typename S>
void attention_part(const AttentionArgs& args, const AttentionPart& part, float* scratch) {
  const int key_padded = padded_to_lanes(args.keys.dim);
  const int padded = padded_to_lanes(args.values.dim);
  float* keys = scratch;
  float* values = keys + static_cast<std::ptrdiff_t>(key_padded) * kBlockPositions;
  float* buffer = values + static_cast<std::ptrdiff_t>(padded) * kBlockPositions;
  float* results = buffer + static_cast<std::ptrdiff_t>(kLanes + 1) * key_padded;
  const auto stride = static_cast<std::ptrdiff_t>(block_floats(args.values.dim));
  const int n_rows = (part.query_end - part.query_begin) * (args.n_heads / args.n_kv_heads);
  const bool is_few = n_rows <= kFewRowsOfPart;
  if (is_few) copy_queries(args, part, n_rows, buffer);
  const auto clear = [&](float* rows) {
    for (int i = 0; i < n_rows; ++i) clear_result<S>(rows + i * stride, padded);
  };
  if (!part.keeps_blocks) clear(results);
  const auto find = [&](int b, BlockRows& rows) { find_rows_of_block(args, args.block_at(b) * kBlockPositions, rows); };
  BlockRows two[2];  // of this block and the next
  if (part.block_begin < part.block_end) find(part.block_begin, two[part.block_begin % 2]);
  for (int b = part.block_begin; b < part.block_end; ++b) {
    Block block{args.block_at(b) * kBlockPositions, two[b % 2], nullptr, {}, {}};
    BlockRows& next = two[(b + 1) % 2];
    int next_head = part.kv_head;
    if (b + 1 < part.block_end) {
      find(b + 1, next);
    } else if (part.next_block >= 0) {
      find(part.next_block, next);
      next_head = part.next_kv_head;
    } else {
      next.is_run = false;  // nothing to ask for
    }
    Ahead ahead(args, next, next_head);
    if (part.keeps_blocks) clear(results = kept_rows(args, part.kv_head, b));
    if (block.rows.stored != 0) {
      if (is_few) {
        block.keys = rows_to_load<S>(args.keys, block.rows, part.kv_head, true, keys);
      } else {
        transpose_keys<S>(args.keys, block.rows, part.kv_head, ahead, keys, buffer);
        block.keys_t = keys;
      }
      block.values = rows_to_load<S>(args.values, block.rows, part.kv_head, is_few, values);
      attend_block<S>(args, part, block, buffer, ahead, results, stride);
    }
    ahead.ask_rest();
  }
  if (part.keeps_blocks) return;
  for (int i = 0; i < n_rows; ++i) finish_row<S>(args, query_row(args, part, i), results + i * stride, padded);
}

template <typename S>
void merge_blocks(const AttentionArgs& args, int head, int query) {
  const int padded = padded_to_lanes(args.values.dim);
  const int group = args.n_heads / args.n_kv_heads;
  const std::size_t row = static_cast<std::size_t>(query * group + head % group) * block_floats(args.values.dim);
  float* first = kept_rows(args, head / group, 0) + row;
  BlockResult result(first, padded);
  for (int b = 1; b < args.n_blocks; ++b) {
    BlockResult block(kept_rows(args, head / group, b) + row, padded);
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
