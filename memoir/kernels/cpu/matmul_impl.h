// The matrix product in terms of a vector type, included once by the file of each instruction set. Everything in
// such a header is in an unnamed namespace, so that no function compiled for one set can be taken for another's.

#pragma once

#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/matmul_quantized_impl.h"
#include "memoir/kernels/cpu/matmul_result_impl.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

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

template <typename S, int kTiles>
void dense_tiles(const MatmulArgs& args, int tile, const MatmulPart& part) {
  const PackedFormat& format = args.format;
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

template <typename S, int kTiles>
void quantized_tiles(const MatmulArgs& args, int tile, const MatmulPart& part) {
  switch (args.format.bits) {
    case 2:
      return quantized_run<S, 2, 0, kTiles>(args, tile, part);
    case 3:
      return quantized_run<S, 2, 1, kTiles>(args, tile, part);
    case 4:
      return quantized_run<S, 4, 0, kTiles>(args, tile, part);
    case 5:
      return quantized_run<S, 4, 1, kTiles>(args, tile, part);
    case 6:
      return quantized_run<S, 4, 2, kTiles>(args, tile, part);
    default:
      return quantized_run<S, 8, 0, kTiles>(args, tile, part);
  }
}

template <typename S>
void quantized_part(const MatmulArgs& args, const MatmulPart& part) {
  int tile = part.tile_begin;
  // One or two rows wait for memory: a single stream of it is the fastest.
  if (part.row_end - part.row_begin > 2) {
    for (; tile + S::kFixedTiles <= part.tile_end; tile += S::kFixedTiles) {
      quantized_tiles<S, S::kFixedTiles>(args, tile, part);
    }
  }
  for (; tile < part.tile_end; ++tile) quantized_tiles<S, 1>(args, tile, part);
}

template <typename S>
void matmul_part(const MatmulArgs& args, const MatmulPart& part) {
  if (args.format.is_quantized()) return quantized_part<S>(args, part);
  int tile = part.tile_begin;
  for (; tile + S::kTiles <= part.tile_end; tile += S::kTiles) dense_tiles<S, S::kTiles>(args, tile, part);
  for (; tile < part.tile_end; ++tile) dense_tiles<S, 1>(args, tile, part);
}

}  // namespace
}  // namespace memoir::kernels::cpu
