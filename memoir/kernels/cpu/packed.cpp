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

void put_words(const std::uint32_t* words, int n, int lane, std::uint32_t* block) {
  for (int i = 0; i < n; ++i) block[i * kLanes + lane] = words[i];
}

// The bits of even places in the lower half, in their order, the others in the upper one.
std::uint32_t unshuffled(std::uint32_t bits) {
  const auto swap = [&bits](std::uint32_t mask, int distance) {
    const std::uint32_t differing = (bits ^ bits >> distance) & mask;
    bits ^= differing ^ differing << distance;
  };
  swap(0x22222222U, 1);
  swap(0x0C0C0C0CU, 2);
  swap(0x00F000F0U, 4);
  swap(0x0000FF00U, 8);
  return bits;
}

// The highest of five bits: bit i, of column i, to where its plane has it, at i % 4 * 8 + i / 4.
std::uint32_t spread_bits(std::uint32_t bits) {
  return unshuffled(unshuffled(bits));
}

// Four bits lie as in their plane.
void pack_halves(int bits, const std::uint32_t* words, int lane, std::uint32_t* block) {
  if (bits == 5) block[4 * kLanes + lane] = spread_bits(*words++);
  put_words(words, 4, lane, block);
}

void pack_block(int bits, CodeOrder order, const std::byte* codes, int lane, std::uint32_t* block) {
  std::array<std::uint32_t, 8> words;
  std::memcpy(words.data(), codes, static_cast<std::size_t>(bits) * sizeof(std::uint32_t));
  if (order == CodeOrder::kHalves) return pack_halves(bits, words.data(), lane, block);
  if (order == CodeOrder::kSigned) {
    for (std::uint32_t& word : words) word ^= 0x80808080U;
  }
  if (bits == 8) return put_words(words.data(), 8, lane, block);
  if (bits == 4) return pack_nibbles(words.data(), lane, block);
  pack_codes(bits, block_codes(words.data(), bits), lane, block);
}

// One row into a lane of its tile.
template <int kBits>
void pack_quantized_row(const PackedFormat& format, const StoredRows& rows, int row, std::byte* tile) {
  const int bits = kBits > 0 ? kBits : format.bits;  // known to the compiler where that matters
  const std::size_t size = element_bytes(format.element);
  const auto r = static_cast<std::size_t>(row);
  const auto lane = static_cast<std::size_t>(row % kLanes);
  const std::byte* codes = rows.values + r * rows.row_bytes;
  std::size_t at = r * rows.row_group_bytes;
  for (int g = 0; g < format.n_groups(); ++g, at += rows.group_bytes, tile += format.group_bytes()) {
    std::memcpy(tile + lane * size, rows.scales + at, size);
    if (format.has_biases) std::memcpy(tile + (kLanes + lane) * size, rows.biases + at, size);
    std::byte* block = tile + (format.has_biases ? 2 : 1) * kLanes * size;
    for (int k = 0; k < format.group_size; k += kBlock, block += format.block_bytes(), codes += rows.block_bytes) {
      pack_block(bits, rows.order, codes, static_cast<int>(lane), reinterpret_cast<std::uint32_t*>(block));
    }
  }
}

void pack_quantized_tile(const PackedFormat& format, const StoredRows& rows, int begin, int end, std::byte* tile) {
  for (int row = begin; row < end; ++row) {
    if (format.bits == 4) {
      pack_quantized_row<4>(format, rows, row, tile);
    } else if (format.bits == 8) {
      pack_quantized_row<8>(format, rows, row, tile);
    } else {
      pack_quantized_row<0>(format, rows, row, tile);
    }
  }
}

// Column by column, so that a tile is written in its order.
template <typename T>
void pack_dense_tile(const PackedFormat& format, const StoredRows& rows, int begin, int end, std::byte* tile) {
  const std::byte* first = rows.values + static_cast<std::size_t>(begin) * rows.row_bytes;
  const auto n_here = static_cast<std::size_t>(end - begin);
  std::array<T, kLanes> column{};
  for (int k = 0; k < format.n_columns; ++k, first += sizeof(T), tile += sizeof column) {
    for (std::size_t lane = 0; lane < n_here; ++lane) {
      std::memcpy(&column[lane], first + lane * rows.row_bytes, sizeof(T));
    }
    std::memcpy(tile, column.data(), sizeof column);
  }
}

// Tiles in parallel, of rows that are in memory.
void pack_matrix(const PackedFormat& format, const StoredRows& rows, std::byte* out) {
  run_parts(format.n_tiles(), [&](int tile) {
    const int begin = tile * kLanes;
    StoredRows some = rows;
    some.values += static_cast<std::size_t>(begin) * rows.row_bytes;
    if (format.is_quantized()) {
      some.scales += static_cast<std::size_t>(begin) * rows.row_group_bytes;
      if (format.has_biases) some.biases += static_cast<std::size_t>(begin) * rows.row_group_bytes;
    }
    pack_rows(format, some, std::min(kLanes, format.n_rows - begin),
              out + static_cast<std::size_t>(tile) * format.tile_bytes());
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

void pack_rows(const PackedFormat& format, const StoredRows& rows, int n_rows, std::byte* out) {
  for (int begin = 0; begin < n_rows; begin += kLanes, out += format.tile_bytes()) {
    const int end = std::min(begin + kLanes, n_rows);
    if (!format.is_quantized()) {
      const auto pack =
          element_bytes(format.element) == 2 ? pack_dense_tile<std::uint16_t> : pack_dense_tile<std::uint32_t>;
      pack(format, rows, begin, end, out);
      continue;
    }
    if (end < begin + kLanes) std::memset(out, 0, format.tile_bytes());
    pack_quantized_tile(format, rows, begin, end, out);
  }
}

void pack_dense(const PackedFormat& format, const std::byte* values, std::byte* out) {
  pack_matrix(format, {values, static_cast<std::size_t>(format.n_columns) * element_bytes(format.element)}, out);
}

void pack_quantized(const PackedFormat& format, const std::uint32_t* words, const std::byte* scales,
                    const std::byte* biases, std::byte* out) {
  const std::size_t block_bytes = static_cast<std::size_t>(format.bits) * sizeof(std::uint32_t);
  const std::size_t size = element_bytes(format.element);
  pack_matrix(
      format,
      {reinterpret_cast<const std::byte*>(words), block_bytes * static_cast<std::size_t>(format.n_columns / kBlock),
       block_bytes, scales, biases, size, size * static_cast<std::size_t>(format.n_groups())},
      out);
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
