#pragma once

// Rows that take less in the store than in the caches: as codes of 8 bits in groups, with a scale and an offset in
// float16 for each group. About a half of 16-bit rows, a quarter of float32 ones. What is restored is near what was
// computed, and not the same: whoever chooses this gives up exactness. Checkpoints stay as they are.
//
// Each row is coded by itself, so where blocks are cut and joined changes nothing, and a row is coded once.
// Threads: the thread that owns MLX's work. All lazy.

#include <mlx/dtype.h>

#include <memory>
#include <optional>
#include <string>

#include "memoir/cache/kv_snapshot.h"
#include "memoir/cache/rows.h"
#include "memoir/prefix/cache_parts.h"

namespace memoir::prefix {

struct NarrowRows {
  /// The key of what is thrown.
  static constexpr const char* kFormatName = "prefix cache format q8";

  cache::KVQuantization codes;
  mlx::core::Dtype dtype;  // of the caches' rows, which is what they become again

  /// For the flat caches of a model, one of which has taken in a token, computed or not.
  /// Throws UnsupportedError if there are none, if they are quantized already or of several types, or a row is no
  /// multiple of 32.
  static NarrowRows of(const cache::ModelCache& cache);

  /// Of a position, all flat layers.
  std::size_t row_bytes(const CacheParts& parts) const;

  /// Dense rows as codes, and back. The snapshot has rows of its own.
  std::unique_ptr<cache::KVSnapshot> narrowed(const cache::KVSnapshot& rows) const;
  std::unique_ptr<cache::KVSnapshot> widened(const cache::KVSnapshot& rows) const;
};

}  // namespace memoir::prefix
