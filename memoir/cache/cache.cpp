#include "memoir/cache/cache.h"
#include "memoir/cache/composite.h"
#include "memoir/cache/layout.h"
#include "memoir/cache/recurrent.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace mx = mlx::core;

namespace memoir::cache {

bool LayerCache::is_trimmable() const {
  for (int target = std::max(0, offset() - Layout::kSlack); target < offset(); ++target) {
    if (!can_rewind(target)) return false;
  }
  return true;
}

void LayerCache::begin(int n_max, InsideStates inside) {
  check_no_transaction("begin");
  if (n_max < 1) {
    throw std::invalid_argument("[cache.begin] n_max is " + std::to_string(n_max) + ", expected at least 1");
  }
  const std::string_view unfit = unfit_for_transaction(n_max);
  if (!unfit.empty()) {
    throw std::invalid_argument("[cache.begin] a " + std::string(unfit) + " can't take back any of " +
                                std::to_string(n_max) + " positions");
  }
  const OpenTransaction transaction{offset(), n_max, inside};
  begun(transaction);
  transaction_ = transaction;
}

LayerCache::Held LayerCache::commit(int n) {
  if (!transaction_) throw std::invalid_argument("[cache.commit] no transaction is open");
  if (n < 0 || n > n_written()) {
    throw std::invalid_argument("[cache.commit] n is " + std::to_string(n) + ", expected 0 to " +
                                std::to_string(n_written()) + ", the positions written");
  }
  Held held = keep_first(n);
  transaction_.reset();
  return held;
}

void LayerCache::roll_back() noexcept {
  if (!transaction_) return;
  keep_first(0);
  transaction_.reset();
}

void LayerCache::check_room(const char* function, int n_tokens) const {
  if (!transaction_ || n_tokens <= transaction_->n_max - n_written()) return;
  throw std::invalid_argument(std::string("[cache.") + function + "] " + std::to_string(n_tokens) + " more than the " +
                              std::to_string(n_written()) + " positions of the open transaction, which has at most " +
                              std::to_string(transaction_->n_max));
}

void LayerCache::check_no_transaction(const char* function) const {
  if (!transaction_) return;
  throw std::invalid_argument(std::string("[cache.") + function + "] a transaction is open");
}

ModelCache::ModelCache(std::vector<std::unique_ptr<LayerCache>> layers) : layers_(std::move(layers)) {
  if (std::none_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer != nullptr; })) {
    throw std::invalid_argument("[cache.ModelCache] no layer has a cache, expected at least one");
  }
}

LayerCache* ModelCache::find(std::size_t index) const {
  if (index >= layers_.size()) {
    throw std::invalid_argument("[cache.find] layer " + std::to_string(index) + " of " +
                                std::to_string(layers_.size()));
  }
  return layers_[index].get();
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
  for (const auto& layer : layers_) {
    if (layer && layer->is_in_transaction()) {
      throw std::invalid_argument("[cache.to_quantized] a transaction is open");
    }
  }
  if (offset() < min_offset) return 0;
  std::vector<std::unique_ptr<LayerCache>> replacements(layers_.size());
  int n_replaced = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (const auto* attention = dynamic_cast<const AttentionCache*>(layers_[i].get())) {
      replacements[i] = attention->to_quantized(quantization);
    } else if (const auto* list = dynamic_cast<const CacheList*>(layers_[i].get())) {
      replacements[i] = list->to_quantized(quantization);
    }
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

void ModelCache::reserve(int n_tokens) {
  for (const auto& layer : layers_) {
    if (layer) layer->reserve(n_tokens);
  }
}

void ModelCache::free() {
  for (const auto& layer : layers_) {
    if (layer) layer->free();
  }
}

ModelCache ModelCache::copy() const {
  std::vector<std::unique_ptr<LayerCache>> layers;
  for (const auto& layer : layers_) layers.push_back(layer ? layer->copy() : nullptr);
  return ModelCache(std::move(layers));
}

void ModelCache::replace(ModelCache other) {
  if (other.n_layers() != n_layers()) {
    throw std::invalid_argument("[cache.replace] " + std::to_string(other.n_layers()) + " layers, expected " +
                                std::to_string(n_layers()));
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i] && other.layers_[i]) other.layers_[i]->on_snapshot_copied(layers_[i]->snapshot_copied_hook());
  }
  layers_.swap(other.layers_);
}

std::optional<kernels::SequenceRows> AttentionCache::plan_update(int, const RowShape&) {
  return std::nullopt;
}

void AttentionCache::take_update(const kernels::SequenceRows&, const kernels::KvBuffers&) {
  throw std::invalid_argument("[cache.take_update] a " + std::string(kind()) + " plans no updates");
}

}  // namespace memoir::cache
