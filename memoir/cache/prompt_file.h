#pragma once

// Caches in files, so that a prompt outlives the process: written and read in both of mlx-lm's formats
// (prompt_index.h, docs/prompt-cache-files.md).
//
// A file is taken whole or not at all, and every number in it is checked before it is used. What memoir wrote has a
// checksum, so that any damage to it is found; of another program's file what contradicts itself is. A file is written
// aside and renamed.
// Threads: the thread that owns MLX's work.

#include <filesystem>

#include "memoir/base/safetensors.h"
#include "memoir/cache/cache.h"
#include "memoir/cache/prompt_index.h"

namespace memoir::cache {

struct PromptFile {
  ModelCache cache;
  PromptMetadata metadata;
  PromptFormat format;
};

/// Evaluated, in buffers of its own. A RecurrentCache that had no state yet comes back as an ArraysCache, its shape
/// being in no file: fitted() makes one of it. A ChunkedKVCache of mlx-lm's without a chunk size becomes a KVCache.
/// Throws FileError, FormatError or UnsupportedError as read_prompt_index does; FormatError also where the checksum
/// or a cache does not take what is there.
PromptFile load_prompt_file(const std::filesystem::path& path);
PromptFile load_prompt_file(const SafetensorsFile& file);

/// Writes the cache, in rows without padding. mlx-lm reads it, apart from layers of kinds that it does not have, and of
/// v1 apart from what docs/prompt-cache-files.md says.
/// Throws FileError; UnsupportedError for what v1 can't hold (a layer without arrays, padding, an empty slot);
/// std::invalid_argument if layers are at different offsets, metadata.tokens are not as many, a text is not UTF-8, or
/// metadata.user has one of memoir's own keys. The old file is as it was then.
void save_prompt_file(const std::filesystem::path& path, const ModelCache& cache, const PromptMetadata& metadata,
                      PromptFormat format = PromptFormat::kV2);

/// Which rows fit where a cache's options ask for a type or for codes.
enum class RowForms {
  kAsked,
  kAskedOrDense,  // dense rows also in place of codes, since the caller is still to quantize them
  kAny,           // nobody asked: the options are a model's own choice
};

/// The layers of `loaded` as a model uses them whose empty cache is `made`: slots become the RecurrentCaches that are
/// in their place, and rows stay in the type that they have. Throws std::invalid_argument saying which layer does not
/// fit: where it is of another kind, keeps other positions, or holds rows of another form than made's options ask for.
ModelCache fitted(ModelCache loaded, const ModelCache& made, RowForms forms = RowForms::kAsked);

}  // namespace memoir::cache
