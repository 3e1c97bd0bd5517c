// The matrix product in terms of a vector type, included once by the file of each instruction set. Everything in
// such a header is in an unnamed namespace, so that no function compiled for one set can be taken for another's.

#pragma once

#include <algorithm>

#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

// Column i of a block in one plane, one code for each row of the tile.
template <typename S, int kBits, int i>
[[gnu::always_inline]] inline typename S::I plane_bits(const std::byte* words) {  // and others above them
  constexpr int kPair = i % 16;
  constexpr int kPerWord = 16 / kBits;
  constexpr int kShift = kPair % kPerWord * kBits + i / 16 * 16;
  const typename S::I word = S::int_load(words + static_cast<std::size_t>(kPair / kPerWord) * kLanes * 4);
  return S::template shift_right<kShift>(word);
}

template <typename S, int kBits, int i>
[[gnu::always_inline]] inline typename S::I plane_codes(const std::byte* words) {
  return S::int_and(plane_bits<S, kBits, i>(words), S::int_set((1 << kBits) - 1));
}

template <typename S, int kLow, int kHigh, int i>
[[gnu::always_inline]] inline typename S::F block_codes(const std::byte* block) {
  if constexpr (kHigh == 0) {
    return S::template low_code<kLow>(plane_bits<S, kLow, i>(block));
  } else {
    const typename S::I low = plane_codes<S, kLow, i>(block);
    const typename S::I high = plane_codes<S, kHigh, i>(block + static_cast<std::size_t>(kLow) * kLanes * 4);
    return S::to_float(S::int_or(low, S::template shift_left<kLow>(high)));
  }
}

// Not inlined: it is called rarely, from many places.
template <typename S>
[[gnu::noinline]] void store_tile(const MatmulArgs& args, int row, int tile, typename S::F y) {
  const int first = tile * kLanes;
  const int n_here = std::min(kLanes, args.format.n_rows - first);
  const std::size_t at =
      static_cast<std::size_t>(row) * static_cast<std::size_t>(args.row_stride()) + static_cast<std::size_t>(first);
  if (args.bias) y = S::add(y, load_some<S>(args.bias + first, n_here));
  if (args.residual) {
    const std::size_t from =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(args.format.n_rows) + static_cast<std::size_t>(first);
    y = S::add(y, load_some<S>(args.residual + from, n_here));
  }
  store_some<S>(args.y + at, n_here, y);
}

// The sums of kRows rows against kTiles tiles while the columns pass by, in registers.
template <typename S, int kRows, int kTiles>
struct Sums {
  typename S::F y[kRows][kTiles];

  [[gnu::always_inline]] Sums() {
    unrolled<kRows * kTiles>([&](auto i) __attribute__((always_inline)) { y[i / kTiles][i % kTiles] = S::zero(); });
  }

  // One column: w of each tile times x of each row, the rows n_columns apart.
  [[gnu::always_inline]] void add(const typename S::F (&w)[kTiles], const float* x, std::size_t n_columns) {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      const typename S::F value = S::set(x[static_cast<std::size_t>(r) * n_columns]);
      unrolled<kTiles>([&](auto t) __attribute__((always_inline)) { y[r][t] = S::fma(w[t], value, y[r][t]); });
    });
  }

  // Unrolled like the rest: an index that isn't a constant would keep the sums in memory.
  [[gnu::always_inline]] void store(const MatmulArgs& args, int row, int tile) const {
    unrolled<kRows * kTiles>([&](auto i) __attribute__((always_inline)) {
      store_tile<S>(args, row + i / kTiles, tile + i % kTiles, y[i / kTiles][i % kTiles]);
    });
  }
};

// How far ahead of its use a weight is asked for. The processor's own prefetcher stops at each page of 4 KiB, and a
// tile is hardly longer. Past the end of a tile it is the tile's counterpart in the next run that comes next.
constexpr std::size_t kPrefetchBytes = 2048;

// kRows rows of x against kTiles tiles, the codes turned to weights on the way: for few rows.
template <typename S, int kLow, int kHigh, int kRows, int kTiles>
void quantized_rows(const MatmulArgs& args, int tile, int row) {
  const PackedFormat& format = args.format;
  const auto n_columns = static_cast<std::size_t>(format.n_columns);
  const std::size_t tile_bytes = format.tile_bytes();
  const std::size_t scale_bytes = kLanes * element_bytes(format.element);
  const std::size_t block_bytes = static_cast<std::size_t>(kLow + kHigh) * kLanes * 4;
  const float* x = args.x + static_cast<std::size_t>(row) * n_columns;
  const std::byte* at = args.weights + static_cast<std::size_t>(tile) * tile_bytes;
  const std::byte* const prefetch_end = at + tile_bytes - std::min(kPrefetchBytes, tile_bytes);
  Sums<S, kRows, kTiles> sums;
  for (int g = 0; g < format.n_groups(); ++g) {
    typename S::F scale[kTiles];
    typename S::F bias[kTiles];
    unrolled<kTiles>([&](auto t) __attribute__((always_inline)) {
      scale[t] = load_elements<S>(format.element, at + static_cast<std::size_t>(t) * tile_bytes);
      bias[t] = load_elements<S>(format.element, at + static_cast<std::size_t>(t) * tile_bytes + scale_bytes);
    });
    at += 2 * scale_bytes;
    for (int k = 0; k < format.group_size; k += kBlock, at += block_bytes, x += kBlock) {
      const std::byte* ahead = at + kPrefetchBytes + (at < prefetch_end ? 0 : (kTiles - 1) * tile_bytes);
      unrolled<kTiles*(kLow + kHigh)>([&](auto i) __attribute__((always_inline)) {
        __builtin_prefetch(ahead + static_cast<std::size_t>(i / (kLow + kHigh)) * tile_bytes +
                               static_cast<std::size_t>(i % (kLow + kHigh)) * kLanes * 4,
                           0, 3);
      });
      unrolled<kBlock>([&](auto i) __attribute__((always_inline)) {
        typename S::F w[kTiles];
        unrolled<kTiles>([&](auto t) __attribute__((always_inline)) {
          const auto codes = block_codes<S, kLow, kHigh, i>(at + static_cast<std::size_t>(t) * tile_bytes);
          w[t] = S::fma(codes, scale[t], bias[t]);
        });
        sums.add(w, x + i, n_columns);
      });
    }
  }
  sums.store(args, row, tile);
}

// A tile's weights as float32, [K, kLanes].
template <typename S, int kLow, int kHigh>
void unpack_tile(const PackedFormat& format, const std::byte* at, float* panel) {
  const std::size_t scale_bytes = kLanes * element_bytes(format.element);
  const std::size_t block_bytes = static_cast<std::size_t>(kLow + kHigh) * kLanes * 4;
  for (int g = 0; g < format.n_groups(); ++g) {
    const typename S::F scale = load_elements<S>(format.element, at);
    const typename S::F bias = load_elements<S>(format.element, at + scale_bytes);
    at += 2 * scale_bytes;
    for (int k = 0; k < format.group_size; k += kBlock, at += block_bytes, panel += kBlock * kLanes) {
      unrolled<kBlock>([&](auto i) __attribute__((always_inline)) {
        const auto codes = block_codes<S, kLow, kHigh, i>(at);
        S::store(panel + static_cast<std::size_t>(i) * kLanes, S::fma(codes, scale, bias));
      });
    }
  }
}

// kRows rows of x against kTiles tiles of plain elements, tile_bytes apart.
template <typename S, Element kElement, int kRows, int kTiles>
void dense_rows(const MatmulArgs& args, const std::byte* at, std::size_t tile_bytes, int tile, int row) {
  const auto n_columns = static_cast<std::size_t>(args.format.n_columns);
  const float* x = args.x + static_cast<std::size_t>(row) * n_columns;
  Sums<S, kRows, kTiles> sums;
  for (std::size_t k = 0; k < n_columns; ++k, at += kLanes * element_bytes(kElement)) {
    typename S::F w[kTiles];
    unrolled<kTiles>([&](auto t) __attribute__((always_inline)) {
      w[t] = load_elements<S>(kElement, at + static_cast<std::size_t>(t) * tile_bytes);
    });
    sums.add(w, x + k, n_columns);
  }
  sums.store(args, row, tile);
}

template <typename S, Element kElement, int kTiles>
void dense_run(const MatmulArgs& args, const std::byte* at, std::size_t tile_bytes, int tile, const MatmulPart& part) {
  int row = part.row_begin;
  for (; row + S::kRows <= part.row_end; row += S::kRows) {
    dense_rows<S, kElement, S::kRows, kTiles>(args, at, tile_bytes, tile, row);
  }
  for (; row + 2 <= part.row_end; row += 2) dense_rows<S, kElement, 2, kTiles>(args, at, tile_bytes, tile, row);
  if (row < part.row_end) dense_rows<S, kElement, 1, kTiles>(args, at, tile_bytes, tile, row);
}

// kTiles tiles from `tile` on, whatever the format.
template <typename S, int kLow, int kHigh, int kTiles>
void quantized_run(const MatmulArgs& args, int tile, const MatmulPart& part, float* panel) {
  constexpr int kMinPanelRows = 3 * S::kFewRows;  // below, it is cheaper to make the weights several times
  if (part.row_end - part.row_begin < kMinPanelRows) {
    int row = part.row_begin;
    for (; row + S::kFewRows <= part.row_end; row += S::kFewRows) {
      quantized_rows<S, kLow, kHigh, S::kFewRows, kTiles>(args, tile, row);
    }
    if constexpr (S::kFewRows > 2) {
      for (; row + 2 <= part.row_end; row += 2) quantized_rows<S, kLow, kHigh, 2, kTiles>(args, tile, row);
    }
    for (; row < part.row_end; ++row) quantized_rows<S, kLow, kHigh, 1, kTiles>(args, tile, row);
    return;
  }
  const std::size_t tile_floats = static_cast<std::size_t>(args.format.n_columns) * kLanes;
  for (int t = 0; t < kTiles; ++t) {
    unpack_tile<S, kLow, kHigh>(args.format,
                                args.weights + static_cast<std::size_t>(tile + t) * args.format.tile_bytes(),
                                panel + static_cast<std::size_t>(t) * tile_floats);
  }
  dense_run<S, Element::kF32, kTiles>(args, reinterpret_cast<const std::byte*>(panel), tile_floats * 4, tile, part);
}

template <typename S, int kTiles>
void run(const MatmulArgs& args, int tile, const MatmulPart& part, float* panel) {
  const PackedFormat& format = args.format;
  switch (format.bits) {
    case 2:
      return quantized_run<S, 2, 0, kTiles>(args, tile, part, panel);
    case 3:
      return quantized_run<S, 2, 1, kTiles>(args, tile, part, panel);
    case 4:
      return quantized_run<S, 4, 0, kTiles>(args, tile, part, panel);
    case 5:
      return quantized_run<S, 4, 1, kTiles>(args, tile, part, panel);
    case 6:
      return quantized_run<S, 4, 2, kTiles>(args, tile, part, panel);
    case 8:
      return quantized_run<S, 8, 0, kTiles>(args, tile, part, panel);
    default:
      break;
  }
  const std::size_t tile_bytes = format.tile_bytes();
  const std::byte* at = args.weights + static_cast<std::size_t>(tile) * tile_bytes;
  switch (format.element) {
    case Element::kF32:
      return dense_run<S, Element::kF32, kTiles>(args, at, tile_bytes, tile, part);
    case Element::kF16:
      return dense_run<S, Element::kF16, kTiles>(args, at, tile_bytes, tile, part);
    case Element::kBF16:
      return dense_run<S, Element::kBF16, kTiles>(args, at, tile_bytes, tile, part);
  }
}

template <typename S>
void matmul_part(const MatmulArgs& args, const MatmulPart& part, float* panel) {
  int tile = part.tile_begin;
  for (; tile + S::kTiles <= part.tile_end; tile += S::kTiles) run<S, S::kTiles>(args, tile, part, panel);
  for (; tile < part.tile_end; ++tile) run<S, 1>(args, tile, part, panel);
}

}  // namespace
}  // namespace memoir::kernels::cpu
