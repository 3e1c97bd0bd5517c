#pragma once

// A model that is embeddings, a row of layers and logits: what most families are.
//
// A family reads its layers, each with the cache that it needs, and what stands before and behind them.
// Threads and ownership: as Model; a Decoder owns its layers.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/model/layers.h"
#include "memoir/model/model.h"

namespace memoir::model {

/// How the keys in a layer's cache depend on their positions.
struct KeyPositions {
  std::optional<std::size_t> rope;  // they turn as this rope of the model; none: they don't
  int n_plain = 0;                  // dimensions before the first that turns
};

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;

  /// An empty cache, null if the layer keeps nothing.
  virtual std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const = 0;

  /// x: [B, T, hidden]. `index` is the layer's own, and its caches'. Returns [B, T, hidden]. Lazy.
  virtual mlx::core::array forward(const mlx::core::array& x, Step& step, std::size_t index) const = 0;

  virtual std::size_t size_bytes() const = 0;

  /// For a layer of attention, or one that keeps nothing; nullopt: its state can't be brought to other positions.
  virtual std::optional<KeyPositions> key_positions() const { return std::nullopt; }
};

/// What stands before the layers and behind them.
struct DecoderEnds {
  kernels::Weight embedding;            // [vocab, hidden]
  float embedding_scale = 1;            // rows are multiplied by it
  kernels::Norm norm;                   // before the logits
  std::optional<kernels::Linear> head;  // [vocab, hidden], nullopt where it is the embedding
  float logit_scale = 1;                // logits are multiplied by it
  float logit_cap = 0;                  // 0: none; else cap * tanh(logits / cap)
};

/// With float16 rows where no type is chosen and a weight like the model's is quantized for the CPU. Products with it
/// round what they multiply to 16 bits (kernels/cpu/fixed_rows.h); rows of 32 would take twice the memory, and a long
/// context nearly twice the time, for little.
cache::CacheOptions with_row_type(cache::CacheOptions options, const kernels::Weight& weight);

/// "model.layers.3".
std::string layer_module(int index);

/// Reads model.embed_tokens, and lm_head where the embeddings aren't tied.
DecoderEnds read_ends(Weights& weights, const ModelConfig& config, kernels::Norm norm);

class Decoder : public Model {
 public:
  /// ropes: how heads turn, of every sort of layer; a Step has the turns of each.
  Decoder(const ModelConfig& config, DecoderEnds ends, std::vector<kernels::Rope> ropes,
          std::vector<std::unique_ptr<DecoderLayer>> layers);

  cache::ModelCache make_cache(const cache::CacheOptions& options = {}) const override;
  std::size_t size_bytes() const override;
  mlx::core::array embed(const mlx::core::array& ids) const override;
  mlx::core::array logits_of(const mlx::core::array& states) const override;

  /// Empty where a layer has no key_positions().
  cache::KeyTurn key_turn() const override;

 protected:
  mlx::core::array states(Step& step, const std::vector<int>& rows) const override;

  /// Adds to the step what a family's layers need besides. x: the embeddings [B, T, hidden], scaled.
  virtual void begin(const mlx::core::array& x, Step& step) const;

 private:
  DecoderEnds ends_;
  std::vector<kernels::Rope> ropes_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
};

/// A layer of norm, attention, norm and feed-forward, each pair beside a residual: Llama's.
class PreNormLayer : public DecoderLayer {
 public:
  PreNormLayer(kernels::Norm attention_norm, SelfAttention attention, kernels::Norm mlp_norm, kernels::GatedMlp mlp);
  PreNormLayer(kernels::Norm attention_norm, SelfAttention attention, kernels::Norm mlp_norm, Mixture mixture);

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return attention_.make_cache(options);
  }
  mlx::core::array forward(const mlx::core::array& x, Step& step, std::size_t index) const override;
  std::size_t size_bytes() const override;
  std::optional<KeyPositions> key_positions() const override { return KeyPositions{attention_.rope}; }

 private:
  kernels::Norm attention_norm_;
  SelfAttention attention_;
  kernels::Norm mlp_norm_;
  std::optional<kernels::GatedMlp> mlp_;
  std::optional<Mixture> mixture_;  // instead of mlp_
};

}  // namespace memoir::model
