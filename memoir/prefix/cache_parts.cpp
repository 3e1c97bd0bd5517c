#include "memoir/prefix/cache_parts.h"

#include "memoir/cache/composite.h"

namespace memoir::prefix {
namespace {

// Lists of lists are as deep as a model's code makes them.
void add_parts(cache::LayerCache& cache, CacheParts& parts) {
  if (auto* const list = dynamic_cast<cache::CacheList*>(&cache)) {
    for (std::size_t i = 0; i < list->n_children(); ++i) {
      if (list->find(i) != nullptr) add_parts(list->child(i), parts);
    }
    return;
  }
  auto* const kv = dynamic_cast<cache::KVCache*>(&cache);
  if (kv != nullptr && kv->layout().rule() == cache::Layout::Rule::kFlat) {
    parts.flat.push_back(kv);
  } else {
    parts.others.push_back(&cache);
  }
}

std::size_t row_bytes(const cache::KVCache& cache) {
  return cache.capacity() > 0 ? cache.size_bytes() / static_cast<std::size_t>(cache.capacity()) : 0;
}

}  // namespace

CacheParts parts_of(const cache::ModelCache& cache) {
  CacheParts parts;
  for (std::size_t i = 0; i < cache.n_layers(); ++i) {
    if (cache::LayerCache* const layer = cache.find(i)) add_parts(*layer, parts);
  }
  return parts;
}

StateSize state_size(const cache::ModelCache& cache) {
  const CacheParts parts = parts_of(cache);
  StateSize size;
  for (const cache::KVCache* const flat : parts.flat) size.row_bytes += row_bytes(*flat);
  for (const cache::LayerCache* const other : parts.others) {
    const auto* const kv = dynamic_cast<const cache::KVCache*>(other);
    const cache::Layout* const layout = kv != nullptr ? &kv->layout() : nullptr;
    size.checkpoint_bytes += layout != nullptr
                                 ? row_bytes(*kv) * static_cast<std::size_t>(layout->window() + layout->keep() +
                                                                             layout->chunk() + cache::Layout::kSlack)
                                 : other->size_bytes();
  }
  return size;
}

}  // namespace memoir::prefix
