#pragma once

// A weight matrix: as a model file stores it, dense or affine-quantized in MLX's form, or packed from that for the CPU
// kernels (cpu/packed.h).
//
// Quantized rows hold codes of `bits` bits, packed into uint32 words low bits first, and per group of `group_size`
// columns one scale and one bias: value = scale * code + bias.
// Ownership: arrays are shared handles; copying a Weight copies no data.
// Threads: the thread that owns MLX's work.

#include <mlx/array.h>

#include <optional>
#include <vector>

#include "memoir/kernels/cpu/packed.h"

namespace memoir::kernels {

struct Quantization {
  mlx::core::array scales;  // [rows, columns / group_size], f16, bf16 or f32
  mlx::core::array biases;  // the same
  int group_size;           // 32, 64 or 128
  int bits;                 // 2, 3, 4, 5, 6 or 8
};

/// Whether every bias is what cpu::implied_bias() makes of its scale, as in GGUF's Q4_0 and Q8_0. Evaluates both.
bool has_implied_biases(const Quantization& quantization);

struct Weight {
  mlx::core::array data;  // dense: [rows, columns] f32, f16 or bf16; quantized: [rows, columns * bits / 32] uint32;
                          // packed: bytes, to be read from packed_bytes() on
  std::optional<Quantization> quantization = std::nullopt;  // as stored only: packed, the scales are among the bytes
  std::optional<cpu::PackedFormat> packed = std::nullopt;

  int rows() const { return packed ? packed->n_rows : data.shape(0); }
  int columns() const;

  /// The floating type behind the weight: that of the dense data, or of the scales.
  mlx::core::Dtype dtype() const;

  /// Bytes held: data, scales and biases.
  std::size_t size_bytes() const;
};

/// The weight in the form that linear() and embed() are fastest with on this device: packed on the CPU, as it is on a
/// GPU. The data are evaluated. Takes the weight by value, so that its arrays can go as soon as they are packed.
/// Throws std::invalid_argument naming shape and type where data, scales or biases are not as described above, or bits
/// or group_size none of those.
Weight prepared(Weight weight);

/// The packed form that the CPU kernels read this weight in, and its making: `out` takes format.size_bytes(), at a
/// multiple of 64 for speed. The weight's data are evaluated. For weights that aren't packed; packed_format() throws as
/// prepared() does.
cpu::PackedFormat packed_format(const Weight& weight);
void pack(const Weight& weight, const cpu::PackedFormat& format, std::byte* out);

/// The rows begin, begin + step, ... below end of a weight that isn't packed. Lazy.
Weight some_rows(const Weight& weight, int begin, int end, int step = 1);

/// These rows of it, in this order. Lazy.
Weight chosen_rows(const Weight& weight, const std::vector<int>& rows);

/// True for float32, float16 and bfloat16, the types that weights, rows of a cache and activations may have.
bool is_float(mlx::core::Dtype dtype);

/// How the CPU kernels name a floating type: float32 but for the two halves.
cpu::Element element_of(mlx::core::Dtype dtype);

/// The bytes of an evaluated array, packed or not.
const std::byte* packed_bytes(const mlx::core::array& data);

}  // namespace memoir::kernels
