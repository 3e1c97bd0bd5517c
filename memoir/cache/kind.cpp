#include "memoir/cache/kind.h"

#include <array>
#include <utility>

namespace memoir::cache {
namespace {

// The first name of a kind is the one that is written.
constexpr std::array<std::pair<std::string_view, CacheKind>, 12> kNames = {{
    {"KVCache", CacheKind::kKV},
    {"RotatingKVCache", CacheKind::kRotating},
    {"ChunkedKVCache", CacheKind::kChunked},
    {"QuantizedKVCache", CacheKind::kQuantized},
    {"QuantizedRotatingKVCache", CacheKind::kQuantizedRotating},
    {"QuantizedChunkedKVCache", CacheKind::kQuantizedChunked},
    {"ConcatenateKVCache", CacheKind::kKV},
    {"KVCacheSimple", CacheKind::kKV},
    {"StandardKvCache", CacheKind::kKV},
    {"RotatingKvCache", CacheKind::kRotating},
    {"ChunkedKvCache", CacheKind::kChunked},
    {"StandardQuantizedKvCache", CacheKind::kQuantized},
}};

}  // namespace

std::string_view kind_name(CacheKind kind) {
  for (const auto& [name, known] : kNames) {
    if (known == kind) return name;
  }
  return {};
}

std::optional<CacheKind> parse_kind(std::string_view name) {
  for (const auto& [known, kind] : kNames) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

}  // namespace memoir::cache
