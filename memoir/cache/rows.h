#pragma once

// What is done to the rows of a kernels::KvBuffer, the same for dense and quantized ones: to make, move, write and take
// them. All lazy.
//
// Ownership: a write goes into the buffer in place if nothing else holds its arrays, else MLX copies the whole of it.

#include <mlx/array.h>

#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/layout.h"
#include "memoir/kernels/history.h"

namespace memoir::cache {

/// Rows as affine codes, as mx::quantize makes them.
struct KVQuantization {
  int bits = 8;         // 2, 3, 4, 5, 6 or 8
  int group_size = 64;  // 32, 64 or 128
  bool operator==(const KVQuantization&) const = default;
};

/// How rows are kept, whatever type the model computes in.
struct RowFormat {
  std::optional<mlx::core::Dtype> dtype;  // of dense rows, or of scales and biases; none: the type of the first rows
  std::optional<KVQuantization> quantization;
};

/// Throws std::invalid_argument unless the dtype is f32, f16 or bf16, and bits and group size are among the above.
void check_format(const RowFormat& format);

/// [B, H, T, D] rows in the format, cast as kernels::rows_as does. D must be a multiple of the group size.
kernels::KvBuffer encoded(const mlx::core::array& rows, const RowFormat& format);

/// Keys and values as they come from a model.
struct RowShape {
  int n_sequences;
  int n_heads;
  int key_dim;
  int value_dim;
  mlx::core::Dtype dtype;
};

/// A buffer of `capacity` rows of zeros in the format, for keys or values of this width. dim must be a multiple of the
/// group size.
kernels::KvBuffer zero_rows(const RowShape& shape, int dim, int capacity, const RowFormat& format);

int n_rows(const kernels::KvBuffer& buffer);

/// True if rows of `a` can be written into `b`: all is equal but the number of rows.
bool fits(const kernels::KvBuffer& a, const kernels::KvBuffer& b);

/// "(1,4,*,64) float32", "(1,4,*,64) in 8 bits, groups of 64, float16".
std::string rows_text(const kernels::KvBuffer& buffer);

/// How rows lie in memory: as they come from a model, or those of an array side by side, as in buffers and snapshots.
/// The latter are copied at the memory's speed, two-byte elements three times as fast.
enum class RowsLie { kAnyhow, kSideBySide };

/// A new buffer of `capacity` rows: the runs of `rows`, and zeros.
kernels::KvBuffer spread(const kernels::KvBuffer& rows, int capacity, const std::vector<RowRun>& runs, RowsLie lie);

/// A new buffer of `capacity` rows: the first n_rows of the parts' rows, one part after the other, and zeros. The
/// parts' rows lie side by side, and they fit each other; there is at least one.
kernels::KvBuffer stacked(const std::vector<kernels::KvBuffer>& parts, int n_rows, int capacity);

/// The buffer with runs of `rows` written into it.
kernels::KvBuffer written(const kernels::KvBuffer& buffer, const kernels::KvBuffer& rows,
                          const std::vector<RowRun>& runs, RowsLie lie);

/// The runs' rows one after the other. Rows of one run are a view of the buffer.
kernels::KvBuffer taken(const kernels::KvBuffer& buffer, const std::vector<StoredRun>& runs);

/// The same as arrays of their own. (Where they are almost all of the buffer, MLX shares it and has the next writer
/// copy it, which comes to the same.)
kernels::KvBuffer taken_out(const kernels::KvBuffer& buffer, const std::vector<StoredRun>& runs);

/// The rows of `a`, then those of `b`.
kernels::KvBuffer joined(const kernels::KvBuffer& a, const kernels::KvBuffer& b);

}  // namespace memoir::cache
