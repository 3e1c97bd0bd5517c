// The rows of a block of positions, found and made ready for attention. Included as matmul_impl.h is.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/kv_row_impl.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

constexpr int kNoRow = -1;

// The rows of a block's 64 positions: one run in the buffer, as nearly always, or several.
struct BlockRows {
  std::uint64_t stored = 0;   // bit c: position c of the block has a row
  bool is_run = false;        // of all that are stored
  int begin_row = 0;          // is_run: row of position c is begin_row + c,
  int begin_ordinal = 0;      // and begin_ordinal + c among all rows, for masks
  int rows[kBlockPositions];  // not is_run: in the buffer, or kNoRow
  int ordinals[kBlockPositions];

  int row(int c) const { return is_run ? (stored >> c & 1 ? begin_row + c : kNoRow) : rows[c]; }
  int ordinal(int c) const { return is_run ? begin_ordinal + c : ordinals[c]; }
  int begin() const { return std::countr_zero(stored); }
  int end() const { return kBlockPositions - std::countl_zero(stored); }
};

// In 64 bits, since windows and chunks may be as large as an int.
std::uint64_t bits_from_to(std::int64_t begin, std::int64_t end) {
  const auto low = static_cast<int>(std::clamp<std::int64_t>(begin, 0, kBlockPositions));
  const auto high = static_cast<int>(std::clamp<std::int64_t>(end, 0, kBlockPositions));
  if (high <= low) return 0;
  const std::uint64_t below_high = high == kBlockPositions ? ~std::uint64_t{0} : (std::uint64_t{1} << high) - 1;
  const std::uint64_t below_low = (std::uint64_t{1} << low) - 1;
  return below_high & ~below_low;
}

// Puts one range's part of a block that has rows of others too.
void add_rows(BlockRows& block, const KvRange& range, int n_before, int first, int begin, int end) {
  for (int position = begin; position < end; ++position) {
    block.rows[position - first] = range.begin_row + position - range.first_position;
    block.ordinals[position - first] = n_before + position - range.first_position;
  }
}

void find_rows_of_block(const AttentionArgs& args, int first, BlockRows& block) {
  block.stored = 0;
  int n_before = 0;
  int n_ranges_in = 0;
  for (const KvRange& range : args.ranges) {
    const int begin = std::max(range.first_position, first);
    const int end = std::min(range.first_position + range.n_rows, first + kBlockPositions);
    if (begin < end) {
      block.stored |= bits_from_to(begin - first, end - first);
      block.begin_row = range.begin_row + first - range.first_position;
      block.begin_ordinal = n_before + first - range.first_position;
      ++n_ranges_in;
    }
    n_before += range.n_rows;
  }
  block.is_run = n_ranges_in == 1;
  if (n_ranges_in <= 1) return;
  std::fill(std::begin(block.rows), std::end(block.rows), kNoRow);
  n_before = 0;
  for (const KvRange& range : args.ranges) {
    add_rows(block, range, n_before, first, std::max(range.first_position, first),
             std::min(range.first_position + range.n_rows, first + kBlockPositions));
    n_before += range.n_rows;
  }
}

// Bit c: the query at this position sees position `first` + c, masks aside.
std::uint64_t visible_positions(const AttentionArgs& args, int position, int first) {
  std::uint64_t visible = args.is_causal ? bits_from_to(0, position + 1 - first) : ~std::uint64_t{0};
  if (args.window > 0) {
    const std::uint64_t kept = bits_from_to(0, args.keep - std::int64_t{first});
    visible &= kept | bits_from_to(std::int64_t{position} + 1 - args.window - first, kBlockPositions);
  }
  if (args.chunk > 0) {
    const std::int64_t begin = std::int64_t{position / args.chunk} * args.chunk - first;
    visible &= bits_from_to(begin, begin + args.chunk);
  }
  return visible;
}

// Asks for the rows of a block ahead of their use, a few lines of the cache at a time between other work: a processor
// that is asked for many at once stands still. They are asked into the second cache, where more can be under way than
// into the first. Rows that don't lie side by side are left out.
class Ahead {
 public:
  Ahead(const AttentionArgs& args, const BlockRows& block, int head) {
    if (!block.is_run) return;
    const int row = block.begin_row + block.begin();
    const int n_rows = block.end() - block.begin();
    now_ = lines_of(args.keys, head, row, n_rows);
    then_ = lines_of(args.values, head, row, n_rows);
    per_step_ = (((now_.end - now_.at) + (then_.end - then_.at)) / (kLine * kSteps) + 1) * kLine;
  }

  // To be called some kSteps times in a block's loops, not in the innermost.
  void ask() {
    if (!now_.at) return;
    const std::byte* end = std::min(now_.at + per_step_, now_.end);
    for (; now_.at < end; now_.at += kLine) __builtin_prefetch(now_.at, 0, 2);
    if (now_.at < now_.end) return;
    now_ = then_;
    then_ = {};
  }
  void ask_rest() {
    while (now_.at) ask();
  }

 private:
  static constexpr std::ptrdiff_t kLine = 64;
  static constexpr int kSteps = 32;
  struct Lines {
    const std::byte* at = nullptr;
    const std::byte* end = nullptr;
  };

  static Lines lines_of(const KvRows& rows, int head, int row, int n_rows) {
    const std::ptrdiff_t n_elements = rows.bits > 0 ? std::ptrdiff_t{rows.dim} * rows.bits / 32 : rows.dim;
    if (n_elements != rows.row_stride) return {};
    const std::ptrdiff_t size = rows.bits > 0 ? 4 : static_cast<std::ptrdiff_t>(element_bytes(rows.element));
    const auto* at =
        static_cast<const std::byte*>(rows.data) + (head * rows.head_stride + row * rows.row_stride) * size;
    return {at, at + n_rows * n_elements * size};
  }

  Lines now_;
  Lines then_;
  std::ptrdiff_t per_step_ = kLine;  // bytes
};

// Keys or values of a block that vectors can be loaded from: where they lie, or copied as float32.
struct BlockOperand {
  Element element;
  const std::byte* data;  // of position 0; only rows from begin to end may be read
  std::ptrdiff_t stride;  // bytes
  int begin;
  int end;

  const std::byte* row(int c) const { return data + c * stride; }
  /// The nearest that may be read.
  const std::byte* row_within(int c) const { return row(c < begin ? begin : c < end ? c : end - 1); }
};

// copy: [64][dim rounded up to lanes]; zeros stand for rows that aren't there.
template <typename S>
BlockOperand copied_rows(const KvRows& kv, const BlockRows& rows, int head, float* copy) {
  const int padded = padded_to_lanes(kv.dim);
  for (int c = 0; c < kBlockPositions; ++c) {
    float* out = copy + static_cast<std::ptrdiff_t>(c) * padded;
    const float* row = rows.row(c) == kNoRow ? nullptr : float_row<S>(kv, head, rows.row(c), out);
    if (!row) std::fill_n(out, padded, 0.0F);
    if (!row || row == out) continue;
    std::fill(std::copy_n(row, kv.dim, out), out + padded, 0.0F);
  }
  return {Element::kF32, reinterpret_cast<const std::byte*>(copy), std::ptrdiff_t{padded} * 4, 0, kBlockPositions};
}

template <typename S>
BlockOperand rows_to_load(const KvRows& kv, const BlockRows& rows, int head, bool are_halves_read, float* copy) {
  if (kv.bits != 0 || !rows.is_run || kv.dim % kLanes != 0 || (kv.element != Element::kF32 && !are_halves_read)) {
    return copied_rows<S>(kv, rows, head, copy);
  }
  const auto size = static_cast<std::ptrdiff_t>(element_bytes(kv.element));
  const auto* data = static_cast<const std::byte*>(kv.data);
  return {kv.element, data + (head * kv.head_stride + rows.begin_row * kv.row_stride) * size, kv.row_stride * size,
          rows.begin(), rows.end()};
}

// keys_t[d][c]: element d of the key at position c of the block; zeros where there is none.
template <typename S>
void transpose_keys(const KvRows& keys, const BlockRows& rows, int head, Ahead& next, float* keys_t, float* buffer) {
  const int dim = keys.dim;
  const int padded = padded_to_lanes(dim);
  std::fill_n(buffer, padded, 0.0F);  // the row of a position that has none
  for (int c = 0; c < kBlockPositions; c += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      float* copy = buffer + static_cast<std::ptrdiff_t>(i + 1) * padded;
      row[i] = rows.row(c + i) == kNoRow ? buffer : float_row<S>(keys, head, rows.row(c + i), copy);
    }
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      next.ask();
      typename S::F tile[kLanes];
      for (int i = 0; i < kLanes; ++i) tile[i] = S::load(row[i] + d);
      S::transpose(tile);
      for (int i = 0; i < kLanes; ++i)
        S::store(keys_t + static_cast<std::ptrdiff_t>(d + i) * kBlockPositions + c, tile[i]);
    }
    for (; d < dim; ++d) {
      for (int i = 0; i < kLanes; ++i) keys_t[static_cast<std::ptrdiff_t>(d) * kBlockPositions + c + i] = row[i][d];
    }
  }
}

}  // namespace
}  // namespace memoir::kernels::cpu
