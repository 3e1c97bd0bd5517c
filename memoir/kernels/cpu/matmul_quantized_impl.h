// Products with quantized weights in terms of a vector type. Included as matmul_impl.h is.

#pragma once

#include "memoir/kernels/cpu/fixed_rows.h"
#include "memoir/kernels/cpu/matmul.h"
#include "memoir/kernels/cpu/matmul_result_impl.h"
#include "memoir/kernels/cpu/vector_impl.h"

namespace memoir::kernels::cpu {
namespace {

constexpr int kQuads = kBlock / 4;  // a lane's 32 bits hold one row's codes of four columns, as bytes

// Bytes whose low kBits bits are ones.
template <int kBits>
constexpr std::int32_t byte_mask() {
  return ((1 << kBits) - 1) * 0x01010101;
}

// Quad q of a block's plane of kBits bits, the codes in bytes.
template <typename S, int kBits, int q>
[[gnu::always_inline]] inline typename S::I plane_quad(const std::byte* plane) {
  const typename S::I vector = S::int_load(plane + static_cast<std::size_t>(q % kBits) * kLanes * 4);
  if constexpr (kBits == 8) {
    return vector;
  } else {
    return S::int_and(S::template shift_right<q / kBits * kBits>(vector), S::int_set(byte_mask<kBits>()));
  }
}

template <typename S, int kLow, int kHigh, int q>
[[gnu::always_inline]] inline typename S::I quad_codes(const std::byte* block) {
  const typename S::I low = plane_quad<S, kLow, q>(block);
  if constexpr (kHigh == 0) {
    return low;
  } else {
    const std::byte* plane = block + static_cast<std::size_t>(kLow) * kLanes * 4;
    return S::int_or(low, S::template shift_left<kLow>(plane_quad<S, kHigh, q>(plane)));
  }
}

// The sums of a block's codes times each of the digits, as the sum of codes times q, which fits an integer:
// 32 * 255 * 32639 < 2^31.
template <typename S, int kBits>
[[gnu::always_inline]] inline typename S::F joined(const typename S::Dot (&dots)[kDigits]) {
  const typename S::I high = S::template shift_left<8>(S::template dot_sum<kBits>(dots[0]));
  return S::to_float(S::int_add(high, S::template dot_sum<kBits>(dots[1])));
}

// Asks for a line of weights ahead: the same place of the tiles that come next, since the processor's own prefetcher
// stops at each page of 4 KiB. One or two rows read it once, and need not drive the keys and values of a cache out.
template <int kRows>
[[gnu::always_inline]] inline void ask_for(const std::byte* line) {
  __builtin_prefetch(line, 0, kRows <= 2 ? 0 : 3);
}

// kRows rows of x against kTiles tiles. The codes are taken apart anew for each call: that hides behind the products.
template <typename S, int kLow, int kHigh, int kRows, int kTiles>
void quantized_rows(const MatmulArgs& args, int tile, int row) {
  constexpr int kBits = kLow + kHigh;
  const PackedFormat& format = args.format;
  const std::size_t n_blocks = static_cast<std::size_t>(format.n_columns) / kBlock;
  const std::size_t tile_bytes = format.tile_bytes();
  const std::size_t scale_bytes = kLanes * element_bytes(format.element);
  constexpr std::size_t kBlockBytes = static_cast<std::size_t>(kBits) * kLanes * 4;
  const FixedBlock* x = args.fixed + static_cast<std::size_t>(row) * n_blocks;
  const std::byte* at = args.weights + static_cast<std::size_t>(tile) * tile_bytes;
  typename S::F y[kRows][kTiles];
  unrolled<kRows * kTiles>([&](auto i) __attribute__((always_inline)) { y[i / kTiles][i % kTiles] = S::zero(); });
  for (int g = 0; g < format.n_groups(); ++g) {
    const std::byte* scales = at;
    unrolled<kTiles>([&](auto t)
                         __attribute__((always_inline)) { ask_for<kRows>(scales + (kTiles + t) * tile_bytes); });
    at += (format.has_biases ? 2 : 1) * scale_bytes;
    for (int k = 0; k < format.group_size; k += kBlock, at += kBlockBytes, ++x) {
      typename S::Dot dots[kRows][kTiles][kDigits];
      unrolled<kRows * kTiles * kDigits>([&](auto i) __attribute__((always_inline)) {
        dots[i / kDigits / kTiles][i / kDigits % kTiles][i % kDigits] = S::dot_zero();
      });
      unrolled<kTiles * kBits>([&](auto i) __attribute__((always_inline)) {
        ask_for<kRows>(at + (kTiles + static_cast<std::size_t>(i / kBits)) * tile_bytes +
                       static_cast<std::size_t>(i % kBits) * kLanes * 4);
      });
      unrolled<kQuads>([&](auto q) __attribute__((always_inline)) {
        typename S::I w[kTiles];
        unrolled<kTiles>([&](auto t) __attribute__((always_inline)) {
          w[t] = quad_codes<S, kLow, kHigh, q>(at + static_cast<std::size_t>(t) * tile_bytes);
        });
        unrolled<kRows * kDigits>([&](auto i) __attribute__((always_inline)) {
          const FixedBlock& block = x[static_cast<std::size_t>(i / kDigits) * n_blocks];
          const typename S::I values = four_bytes<S>(block.digits[i % kDigits] + 4 * q);
          unrolled<kTiles>([&](auto t) __attribute__((always_inline)) {
            S::template dot<kBits>(dots[i / kDigits][t][i % kDigits], w[t], values);
          });
        });
      });
      unrolled<kTiles>([&](auto t) __attribute__((always_inline)) {
        const std::byte* of_tile = scales + static_cast<std::size_t>(t) * tile_bytes;
        const typename S::F scale = load_elements<S>(format.element, of_tile);
        const typename S::F bias = format.has_biases ? load_elements<S>(format.element, of_tile + scale_bytes)
                                                     : S::mul(scale, S::set(implied_bias(kBits, 1)));
        unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
          const FixedBlock& block = x[static_cast<std::size_t>(r) * n_blocks];
          const typename S::F sum = S::mul(joined<S, kBits>(dots[r][t]), scale);
          y[r][t] = S::fma(bias, S::set(block.sum), S::fma(sum, S::set(block.scale), y[r][t]));
        });
      });
    }
  }
  unrolled<kRows * kTiles>([&](auto i) __attribute__((always_inline)) {
    store_tile<S>(args, row + i / kTiles, tile + i % kTiles, y[i / kTiles][i % kTiles]);
  });
}

template <typename S, int kLow, int kHigh, int kTiles>
void quantized_run(const MatmulArgs& args, int tile, const MatmulPart& part) {
  constexpr int kRows = S::kFixedRows;
  int row = part.row_begin;
  for (; row + kRows <= part.row_end; row += kRows) {
    quantized_rows<S, kLow, kHigh, kRows, kTiles>(args, tile, row);
  }
  if constexpr (kRows > 2) {
    for (; row + 2 <= part.row_end; row += 2) quantized_rows<S, kLow, kHigh, 2, kTiles>(args, tile, row);
  }
  for (; row < part.row_end; ++row) quantized_rows<S, kLow, kHigh, 1, kTiles>(args, tile, row);
}

}  // namespace
}  // namespace memoir::kernels::cpu
