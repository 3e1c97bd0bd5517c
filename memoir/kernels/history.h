#pragma once

// What attention reads: buffers of keys and values, and where in them the rows of which positions lie.
//
// Ownership: arrays are shared handles; copying a History copies no data.

#include <mlx/array.h>

#include <optional>
#include <vector>

#include "memoir/kernels/cpu/attention.h"
#include "memoir/kernels/weight.h"

namespace memoir::kernels {

using cpu::KvRange;

/// The keys, or the values, of a layer: C rows of D elements for each head of each sequence. Dense, or codes in the
/// form of mx::quantize.
struct KvBuffer {
  mlx::core::array data;  // dense: [B, Hkv, C, D] f32, f16 or bf16; quantized: [B, Hkv, C, D * bits / 32] uint32
  std::optional<Quantization> quantization = std::nullopt;  // its scales and biases: [B, Hkv, C, D / group_size]

  /// D.
  int dim() const;

  /// The type of the elements: that of the dense data, or of the scales.
  mlx::core::Dtype dtype() const;

  /// Data, scales and biases.
  std::vector<mlx::core::array> arrays() const;
  std::size_t size_bytes() const;

  /// The rows of the ranges one after the other, dequantized: [B, Hkv, S, D]. Lazy; dense rows that lie in one range
  /// are a view.
  mlx::core::array rows(const std::vector<KvRange>& ranges) const;
};

/// What arrays() of a buffer stand for: what an operation remembers of it.
struct KvForm {
  int dim;
  int bits = 0;  // 0: dense
  int group_size = 0;

  explicit KvForm(const KvBuffer& buffer);
  std::size_t n_arrays() const { return bits == 0 ? 1 : 3; }
};

/// The arrays of keys, then those of values.
std::vector<mlx::core::array> arrays_of(const KvBuffer& keys, const KvBuffer& values);

struct History {
  KvBuffer keys;
  KvBuffer values;
  std::vector<KvRange> ranges;  // by position, not overlapping, inside C

  // A cache that drops rows says which ones no query may count on: one sees itself and the window - 1 positions before
  // it, and those below keep. Attention hides the others, whether they are still stored or not.
  std::optional<int> window = std::nullopt;
  int keep = 0;

  /// S, the number of rows.
  int n_rows() const;

  /// The rows alone, by position and dequantized: [B, Hkv, S, Dk] and [B, Hkv, S, Dv].
  mlx::core::array key_rows() const { return keys.rows(ranges); }
  mlx::core::array value_rows() const { return values.rows(ranges); }
};

/// Throws std::invalid_argument naming `function` if the arrays don't fit each other or a range lies outside them.
void check_history(const char* function, const History& history);

}  // namespace memoir::kernels
