#pragma once

// The kinds of attention caches by the names they have in files and logs. No MLX.

#include <optional>
#include <string_view>

namespace memoir::cache {

enum class CacheKind { kKV, kRotating, kChunked, kQuantized, kQuantizedRotating, kQuantizedChunked };

/// mlx-lm's name where it has the kind ("KVCache", "RotatingKVCache", "ChunkedKVCache", "QuantizedKVCache"), else one
/// of ours after their pattern ("QuantizedRotatingKVCache", "QuantizedChunkedKVCache").
std::string_view kind_name(CacheKind kind);

/// Reads a name, or one of the aliases that other programs write: ConcatenateKVCache, KVCacheSimple and StandardKvCache
/// for a KVCache, StandardQuantizedKvCache for a QuantizedKVCache, RotatingKvCache and ChunkedKvCache.
/// Returns nullopt for any other name.
std::optional<CacheKind> parse_kind(std::string_view name);

}  // namespace memoir::cache
