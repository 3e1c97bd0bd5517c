#pragma once

// A weight matrix W [rows, columns] as the CPU kernels read it, and the functions that make and read it. No MLX.
//
// Rows are taken in tiles of kLanes = 16, the last tile filled up with zeros, so that the lanes of a vector are
// outputs: every output sums its columns in their order, alone, whether one row of activations is multiplied or many.
//
// Dense (f32, f16, bf16): tile t holds columns x 16 values; column k of row 16 t + l at [t][k][l].
//
// Quantized: for each tile, for each group of columns: 16 scales, 16 biases (f16, bf16 or f32; where all are what their
// scales imply, as in GGUF's Q4_0 and Q8_0, they are left out), then the codes in blocks of 32 columns. A code of b
// bits is split into planes of 8, 4, 2 or 1 bits: 3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2. The columns of a block are taken in
// 8 quads of four; a plane of p bits takes p words of 16 lanes, and the four bytes of a lane hold one row's part of the
// four columns of several quads: quad q in word q % p, in each byte shifted by q / p * p. So a shift and a mask give
// the codes of a quad as bytes, what a processor multiplies fastest. The bytes are as many as in MLX's form, but for
// the rows that fill the last tile.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace memoir::kernels::cpu {

inline constexpr int kLanes = 16;
inline constexpr int kBlock = 32;  // columns

enum class Element : std::uint8_t { kF32, kF16, kBF16 };

constexpr std::size_t element_bytes(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

/// n rounded up to whole vectors.
constexpr int padded_to_lanes(int n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

/// Element i of `values`.
float element_at(Element element, const std::byte* values, std::size_t i);

struct PackedFormat {
  int n_rows;
  int n_columns;
  Element element;         // of the values, or of scales and biases
  int bits = 0;            // 0: dense; else 2, 3, 4, 5, 6 or 8
  int group_size = 0;      // quantized: 32, 64 or 128, divides n_columns
  bool has_biases = true;  // quantized: false where implied_bias() gives them

  bool is_quantized() const { return bits > 0; }
  int n_tiles() const { return (n_rows + kLanes - 1) / kLanes; }
  int n_groups() const { return n_columns / group_size; }

  std::size_t block_bytes() const { return static_cast<std::size_t>(bits) * kLanes * sizeof(std::uint32_t); }
  std::size_t group_bytes() const {
    return (has_biases ? 2 : 1) * kLanes * element_bytes(element) +
           static_cast<std::size_t>(group_size / kBlock) * block_bytes();
  }
  std::size_t tile_bytes() const {
    return is_quantized() ? static_cast<std::size_t>(n_groups()) * group_bytes()
                          : static_cast<std::size_t>(n_columns) * kLanes * element_bytes(element);
  }
  std::size_t size_bytes() const { return static_cast<std::size_t>(n_tiles()) * tile_bytes(); }
};

/// The bias of codes that stand for numbers from -2^(bits - 1) on.
constexpr float implied_bias(int bits, float scale) {
  return -static_cast<float>(1 << (bits - 1)) * scale;
}

/// Whether each of n biases is what its scale implies.
bool has_implied_biases(Element element, int bits, std::size_t n, const std::byte* scales, const std::byte* biases);

/// How the codes of a block of 32 columns lie in their words.
enum class CodeOrder : std::uint8_t {
  kRow,     // MLX's: code i from bit i * bits on
  kHalves,  // 4 bits, as in GGUF: byte i has code i in its low half and code 16 + i in its high one; 5 bits: a word
            // before these has the highest ones, bit i that of code i
  kSigned,  // 8 bits, as in GGUF: byte i is code i less 128
};

/// Rows as they are stored, at any address: in arrays of their own for codes, scales and biases, or in blocks that hold
/// all three.
struct StoredRows {
  const std::byte* values;      // dense: the elements of a row one after the other; quantized: the first codes
  std::size_t row_bytes;        // from one row's values to the next one's
  std::size_t block_bytes = 0;  // quantized: from the codes of 32 columns, `bits` words, to the next ones
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;  // not read where the format has none
  std::size_t group_bytes = 0;        // from one group's scale to the next one's, and so for biases
  std::size_t row_group_bytes = 0;    // from one row's first scale to the next one's, and so for biases
  CodeOrder order = CodeOrder::kRow;
};

/// Packs n_rows rows into the tiles that begin at `out`, on this thread; the last tile is filled up with zeros.
/// format.n_rows is not looked at.
void pack_rows(const PackedFormat& format, const StoredRows& rows, int n_rows, std::byte* out);

/// Packs a dense row-major matrix. `values`: n_rows * n_columns elements of format.element. `out`: size_bytes().
void pack_dense(const PackedFormat& format, const std::byte* values, std::byte* out);

/// Packs MLX's affine form: `words` [n_rows, n_columns * bits / 32], scales and biases [n_rows, n_groups]
/// (these are not read where the format has none). Both share the work out to the pool's threads.
void pack_quantized(const PackedFormat& format, const std::uint32_t* words, const std::byte* scales,
                    const std::byte* biases, std::byte* out);

/// One row as float32, each value rounded as matmul.h has it: out has n_columns. 0 <= row < n_rows.
void unpack_row(const PackedFormat& format, const std::byte* packed, int row, float* out);

}  // namespace memoir::kernels::cpu
