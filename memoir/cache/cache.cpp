#include "memoir/cache/cache.h"
#include "memoir/cache/recurrent.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace mx = mlx::core;

namespace memoir::cache {

ModelCache::ModelCache(std::vector<std::unique_ptr<LayerCache>> layers) : layers_(std::move(layers)) {
  if (std::none_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer != nullptr; })) {
    throw std::invalid_argument("[cache.ModelCache] no layer has a cache, expected at least one");
  }
}

LayerCache& ModelCache::layer(std::size_t index) const {
  if (index >= layers_.size() || !layers_[index]) {
    throw std::invalid_argument("[cache.layer] layer " + std::to_string(index) + " has no cache");
  }
  return *layers_[index];
}

AttentionCache& ModelCache::attention(std::size_t index) const {
  LayerCache& cache = layer(index);
  auto* attention = dynamic_cast<AttentionCache*>(&cache);
  if (!attention) {
    throw std::invalid_argument("[cache.attention] layer " + std::to_string(index) + " has a " +
                                std::string(cache.kind()) + ", expected an attention cache");
  }
  return *attention;
}

RecurrentCache& ModelCache::recurrent(std::size_t index) const {
  LayerCache& cache = layer(index);
  auto* recurrent = dynamic_cast<RecurrentCache*>(&cache);
  if (!recurrent) {
    throw std::invalid_argument("[cache.recurrent] layer " + std::to_string(index) + " has a " +
                                std::string(cache.kind()) + ", expected a RecurrentCache");
  }
  return *recurrent;
}

int ModelCache::offset() const {
  int offset = std::numeric_limits<int>::max();
  for (const auto& layer : layers_) {
    if (layer) offset = std::min(offset, layer->offset());
  }
  return offset;
}

std::size_t ModelCache::size_bytes() const {
  std::size_t n_bytes = 0;
  for (const auto& layer : layers_) {
    if (layer) n_bytes += layer->size_bytes();
  }
  return n_bytes;
}

std::vector<mx::array> ModelCache::state() const {
  std::vector<mx::array> arrays;
  for (const auto& layer : layers_) {
    if (!layer) continue;
    for (mx::array& a : layer->state()) arrays.push_back(std::move(a));
  }
  return arrays;
}

void ModelCache::materialize() const {
  for (const auto& layer : layers_) {
    if (layer) layer->materialize();
  }
}

int ModelCache::to_quantized(const KVQuantization& quantization, int min_offset) {
  if (offset() < min_offset) return 0;
  std::vector<std::unique_ptr<LayerCache>> replacements(layers_.size());
  int n_replaced = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto* attention = dynamic_cast<const AttentionCache*>(layers_[i].get());
    if (attention) replacements[i] = attention->to_quantized(quantization);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!replacements[i]) continue;
    layers_[i] = std::move(replacements[i]);
    ++n_replaced;
  }
  return n_replaced;
}

bool ModelCache::rewind(int target) {
  for (const auto& layer : layers_) {
    if (layer && !layer->can_rewind(target)) return false;
  }
  for (const auto& layer : layers_) {
    if (layer) layer->restore(nullptr, target);
  }
  return true;
}

void ModelCache::free() {
  for (const auto& layer : layers_) {
    if (layer) layer->free();
  }
}

}  // namespace memoir::cache
