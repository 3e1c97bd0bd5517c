// The rows of a block of positions, found and made ready for attention. Included as matmul_impl.h is.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

constexpr int kNoRow = -1;

// The rows of a block's 64 positions.
struct BlockRows {
  int row[kBlockPositions];      // in the buffer, or kNoRow
  int ordinal[kBlockPositions];  // among all rows, for masks
  std::uint64_t stored = 0;      // bit c: position c of the block has a row
  int begin_row = kNoRow;        // row of position c is begin_row + c for all that are stored; kNoRow if not so simple
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

BlockRows rows_of_block(const AttentionArgs& args, int first) {
  BlockRows rows;
  std::fill(std::begin(rows.row), std::end(rows.row), kNoRow);
  int n_before = 0;
  int n_ranges_in = 0;
  for (const KvRange& range : args.ranges) {
    const int begin = std::max(range.first_position, first);
    const int end = std::min(range.first_position + range.n_rows, first + kBlockPositions);
    for (int position = begin; position < end; ++position) {
      rows.row[position - first] = range.begin_row + position - range.first_position;
      rows.ordinal[position - first] = n_before + position - range.first_position;
    }
    if (begin < end) {
      rows.stored |= bits_from_to(begin - first, end - first);
      rows.begin_row = range.begin_row + first - range.first_position;
      ++n_ranges_in;
    }
    n_before += range.n_rows;
  }
  if (n_ranges_in != 1) rows.begin_row = kNoRow;
  return rows;
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

// How 16 consecutive codes of kBits bits, low bits first as in MLX's form, come out of the 2 * kBits bytes they fill:
// lane i takes the two bytes that hold its code, shifted down.
template <int kBits>
struct CodePattern {
  std::uint8_t bytes[4 * kLanes];
  std::int32_t shifts[kLanes];

  constexpr CodePattern() : bytes(), shifts() {
    constexpr std::uint8_t kNone = 128;
    for (int i = 0; i < kLanes; ++i) {
      const int first = i * kBits / 8;
      bytes[4 * i] = static_cast<std::uint8_t>(first);
      bytes[4 * i + 1] = first + 1 < 2 * kBits ? static_cast<std::uint8_t>(first + 1) : kNone;
      bytes[4 * i + 2] = bytes[4 * i + 3] = kNone;
      shifts[i] = i * kBits % 8;
    }
  }
};

template <typename S, int kBits>
[[gnu::always_inline]] inline typename S::F codes_at(const std::byte* bytes) {
  static constexpr CodePattern<kBits> kPattern;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::memcpy(&low, bytes, std::min(2 * kBits, 8));
  if constexpr (2 * kBits > 8) std::memcpy(&high, bytes + 8, 2 * kBits - 8);
  const typename S::I lanes = S::bytes_to_lanes(low, high, kPattern.bytes);
  const typename S::I shifted = S::shift_right_lanes(lanes, S::int_load(kPattern.shifts));
  return S::to_float(S::int_and(shifted, S::int_set((1 << kBits) - 1)));
}

template <typename S, int kBits>
void unpack_codes(const KvRows& rows, const std::byte* codes, std::ptrdiff_t scale_at, float* out) {
  const std::ptrdiff_t at = scale_at * static_cast<std::ptrdiff_t>(element_bytes(rows.element));
  const auto* scales = static_cast<const std::byte*>(rows.scales) + at;
  const auto* biases = static_cast<const std::byte*>(rows.biases) + at;
  for (std::size_t g = 0; g < static_cast<std::size_t>(rows.dim / rows.group_size); ++g) {
    const typename S::F scale = S::set(element_at(rows.element, scales, g));
    const typename S::F bias = S::set(element_at(rows.element, biases, g));
    for (int i = 0; i < rows.group_size; i += kLanes, codes += 2 * kBits, out += kLanes) {
      S::store(out, S::fma(codes_at<S, kBits>(codes), scale, bias));
    }
  }
}

template <typename S>
void unpack_row(const KvRows& rows, const std::byte* codes, std::ptrdiff_t scale_at, float* out) {
  switch (rows.bits) {
    case 2:
      return unpack_codes<S, 2>(rows, codes, scale_at, out);
    case 3:
      return unpack_codes<S, 3>(rows, codes, scale_at, out);
    case 4:
      return unpack_codes<S, 4>(rows, codes, scale_at, out);
    case 5:
      return unpack_codes<S, 5>(rows, codes, scale_at, out);
    case 6:
      return unpack_codes<S, 6>(rows, codes, scale_at, out);
    default:
      return unpack_codes<S, 8>(rows, codes, scale_at, out);
  }
}

// Row `row` of a head as float32: where it lies, or in `buffer` (dim floats, rounded up to lanes and filled with
// zeros).
template <typename S>
const float* float_row(const KvRows& rows, int head, int row, float* buffer) {
  const std::ptrdiff_t at = head * rows.head_stride + row * rows.row_stride;
  if (rows.bits > 0) {
    const std::ptrdiff_t scale_at = head * rows.scale_head_stride + row * rows.scale_row_stride;
    const auto* words = static_cast<const std::uint32_t*>(rows.data) + at;
    unpack_row<S>(rows, reinterpret_cast<const std::byte*>(words), scale_at, buffer);
    return buffer;
  }
  if (rows.element == Element::kF32) return static_cast<const float*>(rows.data) + at;
  const auto* halves = static_cast<const std::uint16_t*>(rows.data) + at;
  const auto load = [&](const std::uint16_t* p) __attribute__((always_inline)) {
    return rows.element == Element::kF16 ? S::load_f16(p) : S::load_bf16(p);
  };
  int i = 0;
  for (; i + kLanes <= rows.dim; i += kLanes) S::store(buffer + i, load(halves + i));
  if (i == rows.dim) return buffer;
  std::uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, halves + i, static_cast<std::size_t>(rows.dim - i) * sizeof(std::uint16_t));
  S::store(buffer + i, load(lanes));
  return buffer;
}

// Asks for the rows of a block ahead of their use, a few lines of the cache at a time between other work: a processor
// that is asked for many at once stands still. Rows that don't lie side by side are left out.
class Ahead {
 public:
  Ahead(const AttentionArgs& args, const BlockRows& block, int head) {
    if (block.stored == 0 || block.begin_row == kNoRow) return;
    const int row = block.begin_row + std::countr_zero(block.stored);
    const int n_rows = std::popcount(block.stored);
    now_ = lines_of(args.keys, head, row, n_rows);
    then_ = lines_of(args.values, head, row, n_rows);
  }

  [[gnu::always_inline]] void ask(int n_lines) {
    for (; n_lines > 0; --n_lines, now_.at += kLine) {
      if (now_.at >= now_.end) {
        now_ = then_;
        then_ = {};
        if (!now_.at) return;
      }
      __builtin_prefetch(now_.at, 0, 2);
    }
  }
  void ask_rest() {
    while (now_.at) ask(1);
  }

 private:
  static constexpr std::ptrdiff_t kLine = 64;
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
};

// Lines that are asked for in each step of a block's inner loops: what a block of float32 rows needs, about.
constexpr int kLinesPerStep = 2;

// keys_t[d][c]: element d of the key at position c of the block; zeros where there is none.
template <typename S>
void transpose_keys(const AttentionArgs& args, const BlockRows& rows, int kv_head, Ahead& next, float* keys_t,
                    float* buffer) {
  const int dim = args.keys.dim;
  const int padded = padded_to_lanes(dim);
  std::fill_n(buffer, padded, 0.0F);  // the row of a position that has none
  for (int c = 0; c < kBlockPositions; c += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      row[i] = rows.row[c + i] == kNoRow ? buffer
                                         : float_row<S>(args.keys, kv_head, rows.row[c + i],
                                                        buffer + static_cast<std::ptrdiff_t>(i + 1) * padded);
    }
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      next.ask(4 * kLinesPerStep);
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

// The values of a block as float32 rows.
struct ValueRows {
  const float*
      data;  // of position 0 of the block; only rows that are stored may be read, where it is the buffer itself
  std::ptrdiff_t stride;
};

template <typename S>
ValueRows value_rows(const AttentionArgs& args, const BlockRows& rows, int kv_head, float* copy) {
  const KvRows& values = args.values;
  if (values.bits == 0 && values.element == Element::kF32 && values.dim % kLanes == 0 && rows.begin_row != kNoRow) {
    const auto* data = static_cast<const float*>(values.data) + kv_head * values.head_stride;
    return {data + rows.begin_row * values.row_stride, values.row_stride};
  }
  const int padded = padded_to_lanes(values.dim);
  for (int c = 0; c < kBlockPositions; ++c) {
    float* out = copy + static_cast<std::ptrdiff_t>(c) * padded;
    const float* row = rows.row[c] == kNoRow ? nullptr : float_row<S>(values, kv_head, rows.row[c], out);
    if (!row) std::fill_n(out, padded, 0.0F);
    if (!row || row == out) continue;
    std::fill(std::copy_n(row, values.dim, out), out + padded, 0.0F);
  }
  return {copy, padded};
}

}  // namespace
}  // namespace memoir::kernels::cpu
