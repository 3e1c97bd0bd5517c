#pragma once

// Caches of every kind without a model: what is written for a token tells all tokens up to it, so that state of another
// text, or of another place in it, shows.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "memoir/cache/composite.h"
#include "memoir/cache/kv.h"
#include "memoir/cache/recurrent.h"
#include "tests/token_states.h"

namespace memoir::test {

enum class ToyLayer { kFlat, kQuantized, kHalf, kRing, kChunk, kRecurrent, kList };

inline std::unique_ptr<cache::LayerCache> make_layer(ToyLayer layer) {
  namespace mx = mlx::core;
  using cache::KVOptions;
  switch (layer) {
    case ToyLayer::kFlat:
      return cache::make_kv_cache(KVOptions{});
    case ToyLayer::kQuantized:
      return cache::make_kv_cache(KVOptions{.quantization = cache::KVQuantization{8, 32}});
    case ToyLayer::kHalf:
      return cache::make_kv_cache(KVOptions{.dtype = mx::float16});
    case ToyLayer::kRing:
      return cache::make_kv_cache(KVOptions{.window = 20, .keep = 2});
    case ToyLayer::kChunk:
      return cache::make_kv_cache(KVOptions{.chunk = 12});
    case ToyLayer::kRecurrent:
      return std::make_unique<cache::RecurrentCache>(kShape);
    case ToyLayer::kList:
      break;
  }
  std::vector<std::unique_ptr<cache::LayerCache>> children;
  children.push_back(make_layer(ToyLayer::kFlat));
  children.push_back(nullptr);
  children.push_back(make_layer(ToyLayer::kRecurrent));
  children.push_back(make_layer(ToyLayer::kRing));
  return std::make_unique<cache::CacheList>(std::move(children));
}

using Layers = std::vector<ToyLayer>;

inline const std::map<std::string, Layers> kToyModels = {
    {"Flat", {ToyLayer::kFlat, ToyLayer::kFlat}},
    {"Quantized", {ToyLayer::kQuantized, ToyLayer::kHalf}},
    {"Ring", {ToyLayer::kRing}},
    {"FlatAndRing", {ToyLayer::kRing, ToyLayer::kFlat}},
    {"FlatAndChunk", {ToyLayer::kChunk, ToyLayer::kFlat}},
    {"Recurrent", {ToyLayer::kRecurrent}},
    {"Hybrid", {ToyLayer::kRecurrent, ToyLayer::kFlat, ToyLayer::kRecurrent}},
    {"Lists", {ToyLayer::kList, ToyLayer::kList}},
};

/// A null layer comes first.
inline cache::ModelCache make_toy(const std::vector<ToyLayer>& layers) {
  std::vector<std::unique_ptr<cache::LayerCache>> caches(1);
  for (const ToyLayer layer : layers) caches.push_back(make_layer(layer));
  return cache::ModelCache(std::move(caches));
}

/// Takes in the tokens behind the layer's offset, up to tokens.size().
inline void feed_layer(cache::LayerCache& layer, const Tokens& tokens) {
  namespace mx = mlx::core;
  const int begin = layer.offset();
  const int n = static_cast<int>(tokens.size()) - begin;
  if (auto* const list = dynamic_cast<cache::CacheList*>(&layer)) {
    for (std::size_t i = 0; i < list->n_children(); ++i) {
      if (list->find(i) != nullptr) feed_layer(list->child(i), tokens);
    }
  } else if (auto* const recurrent = dynamic_cast<cache::RecurrentCache*>(&layer)) {
    feed(*recurrent, tokens, n);
  } else {
    std::vector<float> values;
    for (int i = begin; i < begin + n; ++i) values.push_back(digest(prefix(tokens, i + 1)));
    const mx::array column(values.data(), {1, 1, n, 1});
    const mx::array keys = mx::multiply(mx::broadcast_to(column, {1, 2, n, 32}), mx::arange(1, 33, mx::float32));
    dynamic_cast<cache::AttentionCache&>(layer).update(keys, mx::negative(keys));
  }
}

inline void feed_toy(cache::ModelCache& toy, const Tokens& tokens) {
  for (std::size_t i = 0; i < toy.n_layers(); ++i) {
    if (toy.find(i) != nullptr) feed_layer(toy.layer(i), tokens);
  }
  toy.materialize();
}

/// The cache is what taking in the tokens at once makes of an empty one, as far as the next token can tell.
inline void expect_toy_holds(const cache::ModelCache& toy, const std::vector<ToyLayer>& layers, const Tokens& tokens) {
  ASSERT_EQ(toy.offset(), static_cast<int>(tokens.size()));
  cache::ModelCache next = toy.copy();
  cache::ModelCache fresh = make_toy(layers);
  if (!tokens.empty()) feed_toy(fresh, tokens);
  Tokens more = tokens;
  more.push_back(99);
  feed_toy(next, more);
  feed_toy(fresh, more);
  const auto state = next.state();
  const auto expected = fresh.state();
  ASSERT_EQ(state.size(), expected.size());
  for (std::size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(is_equal(state[i], expected[i])) << "array " << i;
}

}  // namespace memoir::test
