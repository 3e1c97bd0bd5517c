// The Llama family: pre-norm blocks of rotary grouped-query attention and a gated feed-forward.
// Llama 2 (arXiv:2307.09288), Llama 3 (arXiv:2407.21783), SmolLM2, Mistral (arXiv:2310.06825: every layer slides).

#include <mlx/ops.h>

#include <cmath>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/cache/kv.h"
#include "memoir/kernels/attention.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/mlp.h"
#include "memoir/kernels/projection.h"
#include "memoir/model/families.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

struct Block {
  kernels::Norm attention_norm;
  kernels::HeadProjection projection;
  kernels::Linear output;  // [hidden, n_heads * head_dim]
  kernels::Norm mlp_norm;
  kernels::GatedMlp mlp;

  std::size_t size_bytes() const {
    return attention_norm.weight.nbytes() + projection.size_bytes() + output.size_bytes() + mlp_norm.weight.nbytes() +
           mlp.size_bytes();
  }
};

kernels::HeadProjection read_projection(Weights& weights, const std::string& module, const ModelConfig& config) {
  const int q_size = config.n_heads * config.head_dim;
  const int kv_size = config.n_kv_heads * config.head_dim;
  const int hidden = config.hidden_size;
  const bool bias = config.attention_bias;
  return {read_linear(weights, module + ".q_proj", q_size, hidden, bias),
          read_linear(weights, module + ".k_proj", kv_size, hidden, bias),
          read_linear(weights, module + ".v_proj", kv_size, hidden, bias),
          config.n_heads,
          config.n_kv_heads,
          config.head_dim};
}

Block read_block(Weights& weights, const std::string& module, const ModelConfig& config) {
  const std::string attention = module + ".self_attn";
  return {read_rms_norm(weights, module + ".input_layernorm", config.hidden_size, config.rms_norm_eps),
          read_projection(weights, attention, config),
          read_linear(weights, attention + ".o_proj", config.hidden_size, config.n_heads * config.head_dim,
                      config.attention_bias),
          read_rms_norm(weights, module + ".post_attention_layernorm", config.hidden_size, config.rms_norm_eps),
          read_gated_mlp(weights, module + ".mlp", config)};
}

kernels::Rope read_rope(Weights& weights, const ModelConfig& config) {
  const std::string name = "rope_freqs.weight";
  if (!weights.has(name)) return make_rope(config, std::nullopt);
  return make_rope(config, weights.vector(name, rotated_dims(config.head_dim, config.rope) / 2));
}

class Llama : public Model {
 public:
  Llama(const ModelConfig& config, Weights& weights)
      : Model(config),
        embedding_(weights.matrix("model.embed_tokens", config.vocab_size, config.hidden_size)),
        norm_(read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
        rope_(read_rope(weights, config)),
        attention_{1 / std::sqrt(static_cast<float>(config.head_dim)), config.sliding_window} {
    for (int i = 0; i < config.n_layers; ++i) {
      blocks_.push_back(read_block(weights, "model.layers." + std::to_string(i), config));
    }
    if (!config.tie_embeddings) {
      head_ = kernels::Linear{weights.matrix("lm_head", config.vocab_size, config.hidden_size)};
    }
  }

  cache::ModelCache make_cache() const override {
    std::vector<std::unique_ptr<cache::LayerCache>> layers;
    for (std::size_t i = 0; i < blocks_.size(); ++i) layers.push_back(std::make_unique<cache::KVCache>());
    return cache::ModelCache(std::move(layers));
  }

  std::size_t size_bytes() const override {
    std::size_t n_bytes = embedding_.size_bytes() + norm_.weight.nbytes() + (head_ ? head_->size_bytes() : 0);
    for (const Block& block : blocks_) n_bytes += block.size_bytes();
    return n_bytes;
  }

 protected:
  mx::array logits(const mx::array& ids, cache::ModelCache& cache, LogitRows rows) const override {
    mx::array x = kernels::embed(ids, embedding_, kernels::activation_dtype(embedding_.dtype()));  // [B, T, hidden]
    const kernels::Turns turns = kernels::make_turns(rope_, cache.offset(), ids.shape(1));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      const kernels::Heads heads = kernels::project_heads(x, block.attention_norm, block.projection, turns);
      const cache::History history = cache.attention(i).update(heads.keys, heads.values);
      x = kernels::linear(kernels::attention(heads.queries, history, attention_), block.output, x);
      x = kernels::gated_mlp(x, block.mlp_norm, block.mlp, x);
    }
    if (rows == LogitRows::kLast) {
      x = mx::slice(x, {0, x.shape(1) - 1, 0}, x.shape());
    }
    return kernels::linear(kernels::norm(x, norm_), head_ ? *head_ : kernels::Linear{embedding_});
  }

 private:
  kernels::Weight embedding_;  // [vocab, hidden]
  std::vector<Block> blocks_;
  kernels::Norm norm_;
  kernels::Rope rope_;
  kernels::AttentionOptions attention_;
  std::optional<kernels::Linear> head_;  // [vocab, hidden], nullopt where it is the embedding
};

}  // namespace

std::unique_ptr<Model> make_llama(const ModelConfig& config, Weights& weights) {
  if (config.hidden_act != "silu") {
    throw UnsupportedError(config.path, "hidden_act", "'" + config.hidden_act + "' is not supported, expected silu");
  }
  return std::make_unique<Llama>(config, weights);
}

}  // namespace memoir::model
