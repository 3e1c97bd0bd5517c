#pragma once

// What the operations that attend to a cache remember. Internal to kernels/.

#include <vector>

#include "memoir/kernels/attention.h"
#include "memoir/kernels/kv_write.h"

namespace memoir::kernels {

/// What n_queries queries at the last positions of the ranges see. Heads, rows, sinks and masks are left to the
/// operation, and ranges too, which it has to keep.
cpu::AttentionArgs seen_args(const AttentionOptions& options, const std::vector<KvRange>& ranges, int n_queries);

/// Throws std::invalid_argument, naming the function, if window, chunk or keep is out of range, or there isn't a sink
/// for each of n_heads.
void check_rules(const char* function, const AttentionOptions& options, int n_heads);

/// How rows are written into a buffer, whose arrays these are, evaluated and row-major: all of KvWriteArgs but the rows
/// that are written, how many, and the runs they go to.
cpu::KvWriteArgs write_args(const KvForm& form, mlx::core::array* arrays);

/// Throws std::invalid_argument, naming the function, if the runs are not n_tokens rows inside the buffers.
void check_runs(const char* function, const KvBuffers& buffers, int n_tokens, const std::vector<RowRun>& runs);

/// The form of `like`, with arrays as its arrays() are.
KvBuffer with_arrays(const KvBuffer& like, const mlx::core::array* arrays);

}  // namespace memoir::kernels
