#pragma once

// What a prompt-cache file says it holds: the kinds of its layers, where their arrays lie and how many rows of them
// count. No MLX; prompt_file.h makes caches of it. docs/prompt-cache-files.md has both formats key by key.
//
// Two formats, both of mlx-lm, told apart by the metadata key "2.0": v2 (0.32 and later) has "" there, v1 (0.31.3 and
// earlier) the class of the first layer. What memoir adds lies in two keys of the user's part, "memoir" (JSON) and
// "memoir_checksum", both there or neither.
//
// Invariants after read_prompt_index: every tensor of the file belongs to one layer; ranks, numbers of arrays and rows,
// offsets and ring positions fit each other; all layers are at one offset. What only the caches know (types, widths) is
// left to them. Values, any thread.

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/checksum.h"
#include "memoir/base/safetensors.h"
#include "memoir/base/types.h"

namespace memoir::cache {

enum class PromptFormat { kV1, kV2 };

/// "v1", "v2".
std::string_view format_name(PromptFormat format);

/// What a file says beside its layers.
struct PromptMetadata {
  std::string model;                                          // fingerprint of the model; empty: not known
  std::string model_name;                                     // what people call it
  std::optional<std::vector<TokenId>> tokens = std::nullopt;  // that the cache holds; nullopt: not known
  std::map<std::string, std::string> user = {};               // everything else
};

struct PromptLayer {
  std::string key;   // the beginning of its tensors' names: "3", in a CacheList "3.0" (v1) or "3.0.0" (v2)
  std::string kind;  // LayerCache::kind() of the cache that it becomes; "None" for a layer without one

  /// Indices into SafetensorsFile::tensors(), in the order of LayerCache::state(); nullopt: none there. Empty for a
  /// cache without arrays.
  std::vector<std::optional<std::size_t>> tensors = {};
  std::vector<std::string> numbers = {};  // as LayerCache::meta_state()

  int n_rows = 0;                                  // of keys and values, those that count: the first ones,
  std::optional<int> unfilled_row = std::nullopt;  // without this one
  bool has_tail = false;                           // of a RecurrentCache
  std::optional<int> offset = std::nullopt;        // nullopt: "None"

  // Of a batch of keys and values, whose tensors are the rows alone. Of slots, offsets alone.
  std::vector<int> offsets = {};  // of each sequence, as BatchKVCache::offsets(); of slots: empty, or each at its own
  int n_columns = 0;
  int first_row = 0;                                              // of n_rows: where they begin, going round
  int window = 0, keep = 0, chunk = 0, group_size = 0, bits = 0;  // 0: none

  std::vector<PromptLayer> children = {};  // of a CacheList
};

struct PromptIndex {
  PromptFormat format = PromptFormat::kV2;
  std::vector<PromptLayer> layers;
  PromptMetadata metadata;
  int offset = 0;
  std::string checksum;  // as memoir wrote it; empty: another program's file
};

/// Reads header and scalars.
/// Throws FormatError (path, key) where something is missing, double or does not fit; UnsupportedError for a class that
/// memoir does not have, and where nothing tells how many tokens the states of a file have taken in; FileError.
PromptIndex read_prompt_index(const SafetensorsFile& file);

/// Adds to `checksum` what a file's checksum says of its header: tensors in order, and metadata but the checksum. The
/// tensors' bytes, in order, are to follow.
void add_header(Checksum& checksum, const std::vector<SafetensorsEntry>& entries,
                const std::map<std::string, std::string>& metadata);

// Names that reader and writer share.
inline constexpr std::string_view kNoteKey = "memoir";
inline constexpr std::string_view kChecksumKey = "memoir_checksum";
inline constexpr const char* kNoCache = "None";

}  // namespace memoir::cache
