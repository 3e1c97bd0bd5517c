#pragma once

// New rows into a cache's buffers: the one operation of a cache in a forward pass.

#include <mlx/array.h>

#include <vector>

#include "memoir/kernels/cpu/kv_write.h"
#include "memoir/kernels/history.h"

namespace memoir::kernels {

using cpu::RowRun;

/// The buffers of a layer.
struct KvBuffers {
  KvBuffer keys;
  KvBuffer values;
};

/// Rows in the type that keeps them: mx::astype, but finite values beyond float16's largest, 65504, become that. An
/// infinity would spread to queries that don't see its row (0 * infinity is NaN). rows: any shape, floating. Lazy.
mlx::core::array rows_as(const mlx::core::array& rows, mlx::core::Dtype dtype);

/// The buffers with T new rows, cast or quantized to their form (as rows_as and mx::quantize of the cast rows do, to
/// the bit). Lazy. Written in place where these are the last handles on evaluated buffers, so pass them by move; else
/// the buffers are copied.
/// keys: [B, Hkv, T, Dk], values: [B, Hkv, T, Dv], floating; token 0 goes to the first row of the first run and so on.
/// Throws std::invalid_argument if shapes or types don't fit, or the runs are not T rows inside the buffers.
KvBuffers write_rows(KvBuffers buffers, const mlx::core::array& keys, const mlx::core::array& values,
                     const std::vector<RowRun>& runs);

}  // namespace memoir::kernels
