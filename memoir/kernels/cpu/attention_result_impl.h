// What attention knows of a query after some blocks, and how a further block is merged into it. Included as
// matmul_impl.h is.

#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/math_impl.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One query head at one position.
struct QueryRow {
  int head;
  int query;
};

// Nothing seen yet.
template <typename S>
void clear_result(float* at, int padded) {
  for (int d = 0; d < padded; d += kLanes) S::store(at + d, S::zero());
  at[padded] = kMinusInfinity;
  at[padded + 1] = 0;
}

// (m, l, o) of a query row so far: o at [0, dim rounded up), m and l behind it.
struct BlockResult {
  float* o;
  float& m;
  float& l;

  BlockResult(float* at, int padded) : o(at), m(at[padded]), l(at[padded + 1]) {}
};

// Merges a further block of kVectors * 16 values from o[from] on into `sum`.
template <typename S, int kVectors>
[[gnu::always_inline]] inline void merge_values(const typename S::F (&block)[kVectors], float old_factor,
                                                float new_factor, float* o) {
  unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
    const typename S::F old = S::mul(S::load(o + v * kLanes), S::set(old_factor));
    S::store(o + v * kLanes, S::fma(block[v], S::set(new_factor), old));
  });
}

struct MergeFactors {
  float old_factor;
  float new_factor;
};

// Takes a block's m and l into a result's; nothing seen before counts as m = -infinity. Returns what its o and the
// block's have to be multiplied by.
template <typename S>
MergeFactors merge_sums(BlockResult& result, float block_m, float block_l) {
  if (result.m == kMinusInfinity) {
    result.m = block_m;
    result.l = block_l;
    return {0, 1};
  }
  const float m = result.m > block_m ? result.m : block_m;
  const MergeFactors factors{S::first(exp_of<S>(S::set(result.m - m))), S::first(exp_of<S>(S::set(block_m - m)))};
  result.l = result.l * factors.old_factor + block_l * factors.new_factor;
  result.m = m;
  return factors;
}

// out = o / l, the sink's weight in l.
template <typename S>
void finish_row(const AttentionArgs& args, QueryRow row, float* at, int padded) {
  BlockResult result(at, padded);
  float* out = args.out + row.head * args.out_head_stride + row.query * args.out_row_stride;
  float factor = 0;
  if (args.sinks && result.m != kMinusInfinity) {
    const MergeFactors factors = merge_sums<S>(result, args.sinks[row.head], 1);
    factor = factors.old_factor / result.l;
  } else if (result.m != kMinusInfinity) {
    factor = 1 / result.l;
  }
  for (int d = 0; d < args.values.dim; ++d) out[d] = result.o[d] * factor;
}

// blocks[kv_head][block][query][head of the group]: where the partial results of a block are kept.
float* kept_rows(const AttentionArgs& args, int kv_head, int block) {
  const auto n_rows = static_cast<std::size_t>(args.n_heads / args.n_kv_heads * args.n_queries);
  const auto index = static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(args.n_blocks);
  return args.blocks + (index + static_cast<std::size_t>(block)) * n_rows * block_floats(args.values.dim);
}

}  // namespace
}  // namespace memoir::kernels::cpu
