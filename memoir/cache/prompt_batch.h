#pragma once

// Left-padded batches of keys and values in prompt-cache files: mlx-lm's BatchKVCache and BatchRotatingKVCache in both
// formats, and memoir's own kinds in v2. No MLX; prompt_index.h has the rest.

#include <string>
#include <string_view>

#include "memoir/cache/prompt_index.h"
#include "memoir/cache/prompt_leaves.h"

namespace memoir::cache {

/// A layer as its format has it.
struct RawBatch {
  std::string key;
  std::string kind;
  const PromptNode* state;    // null: nothing was written
  const PromptNode* numbers;  // v1
  bool is_unfilled;           // memoir: a ring's first row stands for nothing
};

/// True for what BatchKVCache::kind() returns.
bool is_batch_kind(std::string_view kind);

/// The layer: its tensors are the rows in BatchKVCache::state()'s order, its offset the most tokens of any sequence.
/// Throws FormatError where something is missing or does not fit, UnsupportedError for memoir's kinds in v1.
PromptLayer read_batch(const PromptLeaves& leaves, const RawBatch& raw);

}  // namespace memoir::cache
