#pragma once

// A model that knows one token of each token what follows. It has one layer of keys and values, whose rows are the
// tokens, and records its forward passes.

#include <mlx/mlx.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "memoir/model/step.h"

namespace memoir::test {

struct Forward {
  int offset;
  std::vector<TokenId> tokens;
  bool operator==(const Forward&) const = default;
};

/// Token i is followed by next[i], whose logit is 30, those of the others 0.
class Chain final : public model::Model {
 public:
  explicit Chain(const std::vector<TokenId>& next, int context = 64)
      : Model(config_of(static_cast<int>(next.size()), context)), logits_(table(next)) {}

  cache::ModelCache make_cache(const cache::CacheOptions&) const override {
    std::vector<std::unique_ptr<cache::LayerCache>> layers;
    layers.push_back(cache::make_kv_cache({}));
    return cache::ModelCache(std::move(layers));
  }
  mlx::core::array embed(const mlx::core::array& ids) const override { return mlx::core::take(logits_, ids, 0); }
  mlx::core::array logits_of(const mlx::core::array& states) const override { return states; }
  std::size_t size_bytes() const override { return logits_.nbytes(); }

  /// Since the last call.
  std::vector<Forward> take_forwards() const { return std::exchange(forwards_, {}); }

 protected:
  mlx::core::array states(model::Step& step, const std::vector<int>& rows) const override {
    mlx::core::eval(step.ids);
    const auto* ids = step.ids.data<std::int32_t>();
    for (const model::StepSequence& sequence : step.sequences) {
      forwards_.push_back({sequence.offset, {ids + sequence.begin, ids + sequence.begin + sequence.n_tokens}});
    }
    const mlx::core::array keys = mlx::core::reshape(mlx::core::astype(step.ids, mlx::core::float32), {1, 1, -1, 1});
    model::update(step, 0, keys, keys);
    const mlx::core::array chosen(rows.data(), {static_cast<int>(rows.size())}, mlx::core::int32);
    return mlx::core::take(embed(step.ids), chosen, 1);
  }

 private:
  static model::ModelConfig config_of(int n_vocab, int context) {
    model::ModelConfig config;
    config.model_type = "chain";
    config.n_layers = 1;
    config.hidden_size = config.vocab_size = n_vocab;
    config.max_position = context;
    return config;
  }

  static mlx::core::array table(const std::vector<TokenId>& next) {
    const std::size_t n = next.size();
    std::vector<float> values(n * n);
    for (std::size_t i = 0; i < n; ++i) values[i * n + static_cast<std::size_t>(next[i])] = 30;
    return mlx::core::array(values.data(), {static_cast<int>(n), static_cast<int>(n)});
  }

  mlx::core::array logits_;
  mutable std::vector<Forward> forwards_;
};

}  // namespace memoir::test
