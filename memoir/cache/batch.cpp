#include "memoir/cache/batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "memoir/cache/arrays.h"
#include "memoir/cache/batch_kv.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/recurrent.h"

namespace memoir::cache {
namespace {

using Layers = std::vector<std::unique_ptr<LayerCache>>;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cache.") + function + "] " + what);
}

// Calls `act` with the batch as the class that it is, for each child of a list.
template <class Layer, class Act>
void visit(const char* function, Layer& batch, const Act& act) {
  const auto as = [&batch]<class Cache>(std::type_identity<Cache>) {
    return dynamic_cast<std::conditional_t<std::is_const_v<Layer>, const Cache*, Cache*>>(&batch);
  };
  if (auto* rows = as(std::type_identity<BatchKVCache>())) return act(*rows);
  if (auto* states = as(std::type_identity<RecurrentCache>())) return act(*states);
  if (auto* slots = as(std::type_identity<ArraysCache>())) return act(*slots);
  if (auto* list = as(std::type_identity<CacheList>())) {
    for (std::size_t i = 0; i < list->n_children(); ++i) {
      if (list->find(i)) visit(function, static_cast<Layer&>(list->child(i)), act);
    }
    return;
  }
  refuse(function, "a " + std::string(batch.kind()) + " is no batch");
}

template <class Act>
void visit_layers(const char* function, const ModelCache& batch, const Act& act) {
  for (std::size_t i = 0; i < batch.n_layers(); ++i) {
    if (batch.find(i)) visit(function, *batch.find(i), act);
  }
}

// First on a copy, which costs nothing (all is lazy), so that what throws changes nothing.
template <class Act>
void change(const char* function, LayerCache& batch, const Act& act) {
  visit(function, *batch.copy(), act);
  visit(function, batch, act);
}

template <class Act>
void change(const char* function, ModelCache& batch, const Act& act) {
  visit_layers(function, batch.copy(), act);
  visit_layers(function, batch, act);
}

template <class Cache>
std::vector<const Cache*> all_as(const std::vector<const LayerCache*>& caches) {
  std::vector<const Cache*> result;
  for (const LayerCache* cache : caches) {
    const auto* one = dynamic_cast<const Cache*>(cache);
    if (!one || cache->kind() != caches.front()->kind()) {
      refuse("merged", "a " + std::string(cache ? cache->kind() : "layer without a cache") + " beside a " +
                           std::string(caches.front()->kind()));
    }
    result.push_back(one);
  }
  return result;
}

template <class Cache>
std::unique_ptr<LayerCache> one_batch(const std::vector<const Cache*>& caches) {
  std::unique_ptr<LayerCache> batch = caches.front()->copy();
  auto& states = dynamic_cast<Cache&>(*batch);
  for (std::size_t i = 1; i < caches.size(); ++i) states.extend(*caches[i]);
  return batch;
}

// The layers at one place of lists or models.
template <class Parent>
std::vector<const LayerCache*> across(const std::vector<const Parent*>& parents, std::size_t index) {
  std::vector<const LayerCache*> result;
  for (const Parent* parent : parents) result.push_back(parent->find(index));
  return result;
}

template <class Parent>
Layers merged_layers(const std::vector<const Parent*>& parents, std::size_t n_layers) {
  Layers layers;
  for (std::size_t i = 0; i < n_layers; ++i) layers.push_back(merged(across(parents, i)));
  return layers;
}

void extend_checked(LayerCache& batch, const LayerCache& other);

template <class Cache>
bool extend_as(LayerCache& batch, const LayerCache& other) {
  auto* own = dynamic_cast<Cache*>(&batch);
  if (!own) return false;
  const auto* more = dynamic_cast<const Cache*>(&other);
  if (!more || other.kind() != batch.kind()) {
    refuse("extend", "the other is a " + std::string(other.kind()) + ", expected a " + std::string(batch.kind()));
  }
  if constexpr (std::is_same_v<Cache, CacheList>) {
    if (more->n_children() != own->n_children()) refuse("extend", "the lists are of different lengths");
    for (std::size_t i = 0; i < own->n_children(); ++i) {
      if ((own->find(i) == nullptr) != (more->find(i) == nullptr)) refuse("extend", "a layer is null in one alone");
      if (own->find(i)) extend_checked(own->child(i), more->child(i));
    }
  } else {
    own->extend(*more);
  }
  return true;
}

void extend_checked(LayerCache& batch, const LayerCache& other) {
  const bool is_batch = extend_as<BatchKVCache>(batch, other) || extend_as<RecurrentCache>(batch, other) ||
                        extend_as<ArraysCache>(batch, other) || extend_as<CacheList>(batch, other);
  if (!is_batch) refuse("extend", "a " + std::string(batch.kind()) + " is no batch");
}

void extend_layers(const ModelCache& batch, const ModelCache& other) {
  for (std::size_t i = 0; i < batch.n_layers(); ++i) {
    if ((batch.find(i) == nullptr) != (other.find(i) == nullptr)) refuse("extend", "a layer is null in one alone");
    if (batch.find(i)) extend_checked(*batch.find(i), *other.find(i));
  }
}

}  // namespace

std::unique_ptr<LayerCache> merged(const std::vector<const LayerCache*>& caches) {
  if (caches.empty()) refuse("merged", "there are no caches, expected at least one");
  const LayerCache* first = caches.front();
  if (!first) {
    if (std::any_of(caches.begin(), caches.end(), [](const LayerCache* cache) { return cache != nullptr; })) {
      refuse("merged", "a layer is null in some alone");
    }
    return nullptr;
  }
  if (dynamic_cast<const KVCache*>(first)) return BatchKVCache::merged(all_as<KVCache>(caches));
  if (dynamic_cast<const RecurrentCache*>(first)) return one_batch(all_as<RecurrentCache>(caches));
  if (dynamic_cast<const ArraysCache*>(first)) return one_batch(all_as<ArraysCache>(caches));
  if (dynamic_cast<const CacheList*>(first)) {
    const std::vector<const CacheList*> lists = all_as<CacheList>(caches);
    for (const CacheList* list : lists) {
      if (list->n_children() != lists.front()->n_children()) refuse("merged", "the lists are of different lengths");
    }
    return std::make_unique<CacheList>(merged_layers(lists, lists.front()->n_children()));
  }
  refuse("merged", "a " + std::string(first->kind()) + " can't be one of a batch");
}

ModelCache merged(const std::vector<const ModelCache*>& caches) {
  if (caches.empty()) refuse("merged", "there are no caches, expected at least one");
  for (const ModelCache* cache : caches) {
    if (!cache) refuse("merged", "a cache is null");
    if (cache->n_layers() != caches.front()->n_layers())
      refuse("merged", "the models have different numbers of layers");
  }
  return ModelCache(merged_layers(caches, caches.front()->n_layers()));
}

int batch_size(const LayerCache& batch) {
  if (dynamic_cast<const KVCache*>(&batch)) return 1;
  int n = 0;
  visit("batch_size", batch, [&n](const auto& cache) { n = std::max(n, cache.batch_size()); });
  return n;
}

void pad_left(LayerCache& batch, const std::vector<int>& left_padding) {
  change("pad_left", batch, [&](auto& cache) { cache.pad_left(left_padding); });
}

void pad_left(ModelCache& batch, const std::vector<int>& left_padding) {
  change("pad_left", batch, [&](auto& cache) { cache.pad_left(left_padding); });
}

void prepare(LayerCache& batch, const std::vector<int>& lengths) {
  change("prepare", batch, [&](auto& cache) { cache.prepare(lengths); });
}

void prepare(ModelCache& batch, const std::vector<int>& lengths) {
  change("prepare", batch, [&](auto& cache) { cache.prepare(lengths); });
}

void finalize(LayerCache& batch) {
  visit("finalize", batch, [](auto& cache) { cache.finalize(); });
}

void finalize(ModelCache& batch) {
  visit_layers("finalize", batch, [](auto& cache) { cache.finalize(); });
}

void filter(LayerCache& batch, const std::vector<int>& sequences) {
  change("filter", batch, [&](auto& cache) { cache.filter(sequences); });
}

void filter(ModelCache& batch, const std::vector<int>& sequences) {
  change("filter", batch, [&](auto& cache) { cache.filter(sequences); });
}

void extend(LayerCache& batch, const LayerCache& other) {
  extend_checked(*batch.copy(), other);
  extend_checked(batch, other);
}

void extend(ModelCache& batch, const ModelCache& other) {
  if (batch.n_layers() != other.n_layers()) refuse("extend", "the models have different numbers of layers");
  extend_layers(batch.copy(), other);
  extend_layers(batch, other);
}

std::unique_ptr<LayerCache> extract(const LayerCache& batch, int sequence) {
  if (const auto* list = dynamic_cast<const CacheList*>(&batch)) {
    Layers children;
    for (std::size_t i = 0; i < list->n_children(); ++i) {
      children.push_back(list->find(i) ? extract(*list->find(i), sequence) : nullptr);
    }
    return std::make_unique<CacheList>(std::move(children));
  }
  std::unique_ptr<LayerCache> one;
  visit("extract", batch, [&](const auto& cache) { one = cache.extract(sequence); });
  return one;
}

ModelCache extract(const ModelCache& batch, int sequence) {
  Layers layers;
  for (std::size_t i = 0; i < batch.n_layers(); ++i) {
    layers.push_back(batch.find(i) ? extract(*batch.find(i), sequence) : nullptr);
  }
  return ModelCache(std::move(layers));
}

}  // namespace memoir::cache
