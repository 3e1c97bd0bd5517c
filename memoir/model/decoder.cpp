#include "memoir/model/decoder.h"

#include <mlx/ops.h>

#include <utility>

#include "memoir/kernels/device.h"
#include "memoir/kernels/linear.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

// x: [B, T, hidden]; rows: ascending.
mx::array chosen_rows(const mx::array& x, const std::vector<int>& rows) {
  const auto n_rows = static_cast<int>(rows.size());
  if (n_rows == x.shape(1)) return x;
  if (n_rows == 0 || rows.back() - rows.front() + 1 == n_rows) {
    const int begin = rows.empty() ? 0 : rows.front();
    return mx::slice(x, {0, begin, 0}, {x.shape(0), begin + n_rows, x.shape(2)});
  }
  return mx::take(x, mx::array(rows.data(), {n_rows}, mx::int32), 1);
}

mx::array scaled(const mx::array& x, float factor) {
  return factor == 1 ? x : mx::multiply(x, mx::astype(mx::array(factor), x.dtype()));
}

}  // namespace

cache::CacheOptions with_row_type(cache::CacheOptions options, const kernels::Weight& weight) {
  const bool is_quantized = weight.packed && weight.packed->is_quantized();
  const bool begins_dense = !options.quantization || options.quantize_from > 0;
  if (is_quantized && begins_dense && !options.dtype) options.dtype = mx::float16;
  return options;
}

std::string layer_module(int index) {
  return "model.layers." + std::to_string(index);
}

DecoderEnds read_ends(Weights& weights, const ModelConfig& config, kernels::Norm norm) {
  DecoderEnds ends{weights.matrix("model.embed_tokens", config.vocab_size, config.hidden_size), 1, std::move(norm),
                   std::nullopt};
  if (!config.tie_embeddings) {
    ends.head = kernels::Linear{weights.matrix("lm_head", config.vocab_size, config.hidden_size)};
  }
  return ends;
}

Decoder::Decoder(const ModelConfig& config, DecoderEnds ends, std::vector<kernels::Rope> ropes,
                 std::vector<std::unique_ptr<DecoderLayer>> layers)
    : Model(config), ends_(std::move(ends)), ropes_(std::move(ropes)), layers_(std::move(layers)) {}

cache::ModelCache Decoder::make_cache(const cache::CacheOptions& options) const {
  const cache::CacheOptions chosen = with_row_type(options, ends_.embedding);
  std::vector<std::unique_ptr<cache::LayerCache>> caches;
  for (const auto& layer : layers_) caches.push_back(layer->make_cache(chosen));
  return cache::ModelCache(std::move(caches));
}

std::size_t Decoder::size_bytes() const {
  std::size_t n_bytes = ends_.embedding.size_bytes() + ends_.norm.weight.nbytes();
  if (ends_.head) n_bytes += ends_.head->size_bytes();
  for (const auto& layer : layers_) n_bytes += layer->size_bytes();
  return n_bytes;
}

cache::KeyTurn Decoder::key_turn() const {
  for (const auto& layer : layers_) {
    if (!layer->key_positions()) return {};
  }
  return [this](std::size_t index, const mx::array& keys, int shift) {
    const KeyPositions positions = *layers_.at(index)->key_positions();
    if (!positions.rope) return keys;
    const kernels::Rope& rope = ropes_.at(*positions.rope);
    if (positions.n_plain == 0) return kernels::turned_on(keys, rope, shift);
    const std::vector<mx::array> parts = mx::split(keys, mx::Shape{positions.n_plain}, -1);
    return mx::concatenate({parts[0], kernels::turned_on(parts[1], rope, shift)}, -1);
  };
}

void Decoder::begin(const mx::array&, Step&) const {}

mx::array Decoder::embed(const mx::array& ids) const {
  return scaled(kernels::embed(ids, ends_.embedding, kernels::activation_dtype(ends_.embedding.dtype())),
                ends_.embedding_scale);
}

mx::array Decoder::states(Step& step, const std::vector<int>& rows) const {
  mx::array x = embed(step.ids);
  for (const kernels::Rope& rope : ropes_) step.turns.push_back(make_turns(rope, step.sequences));
  begin(x, step);
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->forward(x, step, i);
  return kernels::norm(chosen_rows(x, rows), ends_.norm);
}

mx::array Decoder::logits_of(const mx::array& states) const {
  mx::array x = kernels::linear(states, ends_.head ? *ends_.head : kernels::Linear{ends_.embedding});
  x = scaled(x, ends_.logit_scale);
  return ends_.logit_cap > 0 ? kernels::soft_cap(x, ends_.logit_cap) : x;
}

PreNormLayer::PreNormLayer(kernels::Norm attention_norm, SelfAttention attention, kernels::Norm mlp_norm,
                           kernels::GatedMlp mlp)
    : attention_norm_(std::move(attention_norm)),
      attention_(std::move(attention)),
      mlp_norm_(std::move(mlp_norm)),
      mlp_(std::move(mlp)) {}

PreNormLayer::PreNormLayer(kernels::Norm attention_norm, SelfAttention attention, kernels::Norm mlp_norm,
                           Mixture mixture)
    : attention_norm_(std::move(attention_norm)),
      attention_(std::move(attention)),
      mlp_norm_(std::move(mlp_norm)),
      mixture_(std::move(mixture)) {}

mx::array PreNormLayer::forward(const mx::array& x, Step& step, std::size_t index) const {
  if (mlp_) return attend_and_feed(x, attention_norm_, attention_, step, index, x, {mlp_norm_, *mlp_});
  const mx::array y = attend(x, attention_norm_, attention_, step, index, x);
  return mix(kernels::norm(y, mlp_norm_), *mixture_, y);
}

std::size_t PreNormLayer::size_bytes() const {
  return attention_norm_.weight.nbytes() + attention_.size_bytes() + mlp_norm_.weight.nbytes() +
         (mlp_ ? mlp_->size_bytes() : mixture_->size_bytes());
}

}  // namespace memoir::model
