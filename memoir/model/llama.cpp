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
#include "memoir/model/families.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

struct Attention {
  Linear q;  // [n_heads * head_dim, hidden]
  Linear k;  // [n_kv_heads * head_dim, hidden]
  Linear v;  // [n_kv_heads * head_dim, hidden]
  Linear o;  // [hidden, n_heads * head_dim]
};

struct Block {
  RmsNorm attention_norm;
  Attention attention;
  RmsNorm mlp_norm;
  GatedMlp mlp;

  std::size_t size_bytes() const {
    return attention.q.size_bytes() + attention.k.size_bytes() + attention.v.size_bytes() + attention.o.size_bytes() +
           mlp.size_bytes() + attention_norm.weight.nbytes() + mlp_norm.weight.nbytes();
  }
};

Attention read_attention(Weights& weights, const std::string& module, const ModelConfig& config) {
  const int q_size = config.n_heads * config.head_dim;
  const int kv_size = config.n_kv_heads * config.head_dim;
  const int hidden = config.hidden_size;
  const bool bias = config.attention_bias;
  return {Linear::read(weights, module + ".q_proj", q_size, hidden, bias),
          Linear::read(weights, module + ".k_proj", kv_size, hidden, bias),
          Linear::read(weights, module + ".v_proj", kv_size, hidden, bias),
          Linear::read(weights, module + ".o_proj", hidden, q_size, bias)};
}

Block read_block(Weights& weights, const std::string& module, const ModelConfig& config) {
  return {RmsNorm::read(weights, module + ".input_layernorm", config.hidden_size, config.rms_norm_eps),
          read_attention(weights, module + ".self_attn", config),
          RmsNorm::read(weights, module + ".post_attention_layernorm", config.hidden_size, config.rms_norm_eps),
          GatedMlp::read(weights, module + ".mlp", config)};
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
        norm_(RmsNorm::read(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
        rope_(read_rope(weights, config)) {
    for (int i = 0; i < config.n_layers; ++i) {
      blocks_.push_back(read_block(weights, "model.layers." + std::to_string(i), config));
    }
    if (!config.tie_embeddings) {
      head_ = weights.matrix("lm_head", config.vocab_size, config.hidden_size);
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
    mx::array x = kernels::embed(ids, embedding_, kernels::activation_dtype(embedding_.dtype()));  // [1, T, hidden]
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      x = mx::add(x, attend(block.attention, block.attention_norm(x), cache.attention(i)));
      x = mx::add(x, block.mlp(block.mlp_norm(x)));
    }
    if (rows == LogitRows::kLast) {
      x = mx::slice(x, {0, x.shape(1) - 1, 0}, {1, x.shape(1), x.shape(2)});
    }
    return kernels::linear(norm_(x), head_ ? *head_ : embedding_);
  }

 private:
  mx::array attend(const Attention& attention, const mx::array& x, cache::AttentionCache& cache) const {
    const ModelConfig& c = config();
    const int offset = cache.offset();
    const mx::array q = kernels::rope(split_heads(attention.q(x), c.n_heads, c.head_dim), rope_, offset);
    const mx::array k = kernels::rope(split_heads(attention.k(x), c.n_kv_heads, c.head_dim), rope_, offset);
    const mx::array v = split_heads(attention.v(x), c.n_kv_heads, c.head_dim);
    const cache::History history = cache.update(k, v);
    const kernels::AttentionOptions options{1 / std::sqrt(static_cast<float>(c.head_dim)), c.sliding_window};
    return attention.o(join_heads(kernels::attention(q, history.keys, history.values, options)));
  }

  kernels::Weight embedding_;  // [vocab, hidden]
  std::vector<Block> blocks_;
  RmsNorm norm_;
  kernels::Rope rope_;
  std::optional<kernels::Weight> head_;  // [vocab, hidden], nullopt where it is the embedding
};

}  // namespace

std::unique_ptr<Model> make_llama(const ModelConfig& config, Weights& weights) {
  if (config.hidden_act != "silu") {
    throw UnsupportedError(config.path, "hidden_act", "'" + config.hidden_act + "' is not supported, expected silu");
  }
  return std::make_unique<Llama>(config, weights);
}

}  // namespace memoir::model
