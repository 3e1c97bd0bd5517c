#include "memoir/kernels/cpu/packed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "memoir/base/half.h"
#include "memoir/kernels/cpu/pool.h"

namespace memoir::kernels::cpu {
namespace {

struct Plane {
  int bits;   // 1, 2, 4 or 8; 0: none
  int shift;  // of its value in the code
};

std::array<Plane, 2> planes_of(int bits) {
  switch (bits) {
    case 3:
      return {{{2, 0}, {1, 2}}};
    case 5:
      return {{{4, 0}, {1, 4}}};
    case 6:
      return {{{4, 0}, {2, 4}}};
    default:
      return {{{bits, 0}, {0, 0}}};
  }
}

// Where the code of a column lies in a plane of its block.
struct Place {
  int word;
  int shift;
};

Place place_of(int column, int plane_bits) {
  const int quad = column / 4;
  return {quad % plane_bits, column % 4 * 8 + quad / plane_bits * plane_bits};
}

using Codes = std::array<std::uint32_t, kBlock>;

// The codes of a block in MLX's form: `bits` words, code i from bit i * bits on.
Codes block_codes(const std::uint32_t* words, int bits) {
  Codes codes;
  const std::uint64_t mask = (1U << bits) - 1U;
  std::uint64_t buffer = 0;
  int n_buffered = 0;
  for (std::uint32_t& code : codes) {
    if (n_buffered < bits) {
      buffer |= std::uint64_t{*words++} << n_buffered;
      n_buffered += 32;
    }
    code = static_cast<std::uint32_t>(buffer & mask);
    buffer >>= bits;
    n_buffered -= bits;
  }
  return codes;
}

// The four lowest nibbles of a word, each in a byte of its own.
std::uint32_t spread_nibbles(std::uint32_t word) {
  const std::uint32_t halves = (word | word << 8) & 0x00FF00FFU;
  return (halves | halves << 4) & 0x0F0F0F0FU;
}

// Four bits: quads j and j + 4 are 16 bits each of MLX's form.
void pack_nibbles(const std::uint32_t* words, int lane, std::uint32_t* block) {
  const auto half = [words](int quad) { return (words[quad / 2] >> (quad % 2 * 16)) & 0xFFFFU; };
  for (int j = 0; j < 4; ++j) {
    block[j * kLanes + lane] = spread_nibbles(half(j)) | spread_nibbles(half(j + 4)) << 4;
  }
}

void pack_codes(int bits, const Codes& codes, int lane, std::uint32_t* block) {
  for (const Plane& plane : planes_of(bits)) {
    if (plane.bits == 0) continue;
    const std::uint32_t mask = (1U << plane.bits) - 1U;
    for (int word = 0; word < plane.bits; ++word) block[word * kLanes + lane] = 0;
    for (int column = 0; column < kBlock; ++column) {
      const Place place = place_of(column, plane.bits);
      block[place.word * kLanes + lane] |= ((codes[static_cast<std::size_t>(column)] >> plane.shift) & mask)
                                           << place.shift;
    }
    block += plane.bits * kLanes;
  }
}

void pack_block(int bits, const std::uint32_t* words, int lane, std::uint32_t* block) {
  if (bits == 4) return pack_nibbles(words, lane, block);
  if (bits == 8) {
    for (int quad = 0; quad < 8; ++quad) block[quad * kLanes + lane] = words[quad];  // as they are
    return;
  }
  pack_codes(bits, block_codes(words, bits), lane, block);
}

// Calls pack_row for the rows of each tile, tiles in parallel, the last one zeroed first for the rows it lacks.
template <typename PackRow>
void for_each_tile(const PackedFormat& format, std::byte* out, const PackRow& pack_row) {
  run_parts(format.n_tiles(), [&](int tile) {
    const int begin = tile * kLanes;
    const int end = std::min(begin + kLanes, format.n_rows);
    if (end < begin + kLanes) {
      std::memset(out + static_cast<std::size_t>(tile) * format.tile_bytes(), 0, format.tile_bytes());
    }
    for (int row = begin; row < end; ++row) pack_row(row);
  });
}

}  // namespace

float element_at(Element element, const std::byte* values, std::size_t i) {
  if (element == Element::kF32) {
    float value = 0;
    std::memcpy(&value, values + i * 4, 4);
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, values + i * 2, 2);
  return element == Element::kF16 ? float16_to_float(half) : bfloat16_to_float(half);
}

bool has_implied_biases(Element element, int bits, std::size_t n, const std::byte* scales, const std::byte* biases) {
  for (std::size_t i = 0; i < n; ++i) {
    if (element_at(element, biases, i) != implied_bias(bits, element_at(element, scales, i))) return false;
  }
  return true;
}

namespace {

// Column by column, so that a tile is written in its order.
template <typename T>
void pack_dense_tile(const PackedFormat& format, const T* values, int tile, T* out) {
  const auto n_columns = static_cast<std::size_t>(format.n_columns);
  const std::size_t first = static_cast<std::size_t>(tile) * kLanes;
  const std::size_t n_here = std::min<std::size_t>(kLanes, static_cast<std::size_t>(format.n_rows) - first);
  const T* rows = values + first * n_columns;
  for (std::size_t k = 0; k < n_columns; ++k, out += kLanes) {
    for (std::size_t lane = 0; lane < n_here; ++lane) out[lane] = rows[lane * n_columns + k];
    std::fill(out + n_here, out + kLanes, T{0});
  }
}

template <typename T>
void pack_dense_as(const PackedFormat& format, const std::byte* values, std::byte* out) {
  run_parts(format.n_tiles(), [&](int tile) {
    pack_dense_tile(format, reinterpret_cast<const T*>(values), tile,
                    reinterpret_cast<T*>(out + static_cast<std::size_t>(tile) * format.tile_bytes()));
  });
}

}  // namespace

void pack_dense(const PackedFormat& format, const std::byte* values, std::byte* out) {
  if (element_bytes(format.element) == 2) return pack_dense_as<std::uint16_t>(format, values, out);
  pack_dense_as<std::uint32_t>(format, values, out);
}

void pack_quantized(const PackedFormat& format, const std::uint32_t* words, const std::byte* scales,
                    const std::byte* biases, std::byte* out) {
  const std::size_t size = element_bytes(format.element);
  const auto n_groups = static_cast<std::size_t>(format.n_groups());
  const std::size_t row_words = static_cast<std::size_t>(format.n_columns) * static_cast<std::size_t>(format.bits) / 32;
  for_each_tile(format, out, [&](int row) {
    const auto r = static_cast<std::size_t>(row);
    const auto lane = static_cast<std::size_t>(row % kLanes);
    std::byte* group = out + static_cast<std::size_t>(row / kLanes) * format.tile_bytes();
    for (std::size_t g = 0; g < n_groups; ++g, group += format.group_bytes()) {
      std::memcpy(group + lane * size, scales + (r * n_groups + g) * size, size);
      if (format.has_biases) std::memcpy(group + (kLanes + lane) * size, biases + (r * n_groups + g) * size, size);
      std::byte* block = group + (format.has_biases ? 2 : 1) * kLanes * size;
      for (int k = 0; k < format.group_size; k += kBlock, block += format.block_bytes()) {
        const std::size_t column = g * static_cast<std::size_t>(format.group_size) + static_cast<std::size_t>(k);
        const std::uint32_t* codes = words + r * row_words + column * static_cast<std::size_t>(format.bits) / 32;
        pack_block(format.bits, codes, static_cast<int>(lane), reinterpret_cast<std::uint32_t*>(block));
      }
    }
  });
}

namespace {

std::uint32_t packed_code(int bits, const std::uint32_t* block, int column, int lane) {
  std::uint32_t code = 0;
  for (const Plane& plane : planes_of(bits)) {
    if (plane.bits == 0) continue;
    const Place place = place_of(column, plane.bits);
    code |= ((block[place.word * kLanes + lane] >> place.shift) & ((1U << plane.bits) - 1U)) << plane.shift;
    block += plane.bits * kLanes;
  }
  return code;
}

void unpack_quantized_row(const PackedFormat& format, const std::byte* tile, int lane, float* out) {
  const std::size_t size = element_bytes(format.element);
  for (int g = 0; g < format.n_groups(); ++g, tile += format.group_bytes()) {
    const float scale = element_at(format.element, tile, static_cast<std::size_t>(lane));
    const float bias = format.has_biases ? element_at(format.element, tile, static_cast<std::size_t>(kLanes + lane))
                                         : implied_bias(format.bits, scale);
    const std::byte* block = tile + (format.has_biases ? 2 : 1) * kLanes * size;
    for (int k = 0; k < format.group_size; ++k) {
      const auto* words =
          reinterpret_cast<const std::uint32_t*>(block + static_cast<std::size_t>(k / kBlock) * format.block_bytes());
      *out++ = std::fma(static_cast<float>(packed_code(format.bits, words, k % kBlock, lane)), scale, bias);
    }
  }
}

}  // namespace

void unpack_row(const PackedFormat& format, const std::byte* packed, int row, float* out) {
  const std::byte* tile = packed + static_cast<std::size_t>(row / kLanes) * format.tile_bytes();
  const int lane = row % kLanes;
  if (format.is_quantized()) return unpack_quantized_row(format, tile, lane, out);
  for (int k = 0; k < format.n_columns; ++k) {
    out[k] = element_at(format.element, tile, static_cast<std::size_t>(k) * kLanes + static_cast<std::size_t>(lane));
  }
}

}  // namespace memoir::kernels::cpu
