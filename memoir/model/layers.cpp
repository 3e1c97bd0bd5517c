#include "memoir/model/layers.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/cache/kv.h"
#include "memoir/kernels/attention_block.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/linear.h"

namespace mx = mlx::core;

namespace memoir::model {

kernels::Linear read_linear(Weights& weights, const std::string& module, int rows, int columns, bool has_bias) {
  kernels::Linear linear{weights.matrix(module, rows, columns)};
  if (has_bias) linear.bias = typed_vector(weights.vector(module + ".bias", rows));
  return linear;
}

mx::array typed_vector(const mx::array& values) {
  // Converted once, here, and not at each use.
  mx::array typed = mx::contiguous(mx::astype(values, kernels::activation_dtype(values.dtype())));
  mx::eval(typed);
  return typed;
}

kernels::Norm read_rms_norm(Weights& weights, const std::string& module, int size, double eps) {
  return {typed_vector(weights.vector(module + ".weight", size)), static_cast<float>(eps)};
}

kernels::Norm read_centered_norm(Weights& weights, const std::string& module, int size, double eps) {
  return {typed_vector(weights.centered_norm(module + ".weight", size)), static_cast<float>(eps)};
}

kernels::Norm plain_norm(int size, double eps) {
  return {typed_vector(mx::ones({size})), static_cast<float>(eps)};
}

AttentionLayout attention_layout(const ModelConfig& config) {
  return {config.n_heads, config.n_kv_heads, config.head_dim, config.attention_bias, config.attention_bias};
}

SelfAttention read_self_attention(Weights& weights, const std::string& module, int hidden_size,
                                  const AttentionLayout& layout) {
  const int q_size = layout.n_heads * layout.head_dim;
  const int kv_size = layout.n_kv_heads * layout.head_dim;
  return {{read_linear(weights, module + ".q_proj", q_size, hidden_size, layout.has_qkv_bias),
           read_linear(weights, module + ".k_proj", kv_size, hidden_size, layout.has_qkv_bias),
           read_linear(weights, module + ".v_proj", kv_size, hidden_size, layout.has_qkv_bias), layout.n_heads,
           layout.n_kv_heads, layout.head_dim},
          read_linear(weights, module + ".o_proj", hidden_size, q_size, layout.has_output_bias),
          {1 / std::sqrt(static_cast<float>(layout.head_dim))}};
}

namespace {

std::optional<kernels::Turns> turns_of(const SelfAttention& layer, const Step& step) {
  return layer.rope ? std::optional(step.turns.at(*layer.rope)) : std::nullopt;
}

// The layer as one operation, where it can be: caches first say where rows would go, and change when it is there.
std::optional<mx::array> attend_at_once(const mx::array& x, const kernels::AttentionBlock& block, const Step& step,
                                        const CachePlace& place, const std::optional<mx::array>& residual) {
  if (step.cells || !kernels::is_block(block, x)) return std::nullopt;
  const kernels::HeadProjection& heads = block.projection;
  const cache::RowShape shape{x.shape(0), heads.n_kv_heads, heads.head_dim, heads.head_dim, x.dtype()};
  std::vector<kernels::SequenceRows> plans;
  for (const StepSequence& sequence : step.sequences) {
    auto plan = attention_cache(*sequence.cache, place).plan_update(sequence.n_tokens, shape);
    if (!plan) return std::nullopt;
    plans.push_back(std::move(*plan));
  }
  const kernels::BlockOutput output = kernels::attention_block(x, block, plans, residual);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    attention_cache(*step.sequences[i].cache, place).take_update(plans[i], output.buffers[i]);
  }
  return output.y;
}

}  // namespace

mx::array attend(const mx::array& x, const std::optional<kernels::Norm>& norm, const SelfAttention& layer,
                 const Step& step, const CachePlace& place, const std::optional<mx::array>& residual) {
  const std::optional<kernels::Turns> turns = turns_of(layer, step);
  if (!layer.gates) {
    const kernels::AttentionBlock block{norm, layer.projection, turns, layer.options, layer.output};
    if (std::optional<mx::array> y = attend_at_once(x, block, step, place, residual)) return *y;
  }
  const kernels::Heads heads = kernels::project_heads(x, norm, layer.projection, turns);
  const Histories histories = update(step, place, heads.keys, heads.values);
  mx::array gathered = kernels::attention(heads.queries, histories, layer.options);
  if (layer.gates) {
    const mx::array gates = kernels::linear(norm ? kernels::norm(x, *norm) : x, *layer.gates);
    gathered = kernels::gate_product(gates, gathered, kernels::Gate::kSigmoid);
  }
  return kernels::linear(gathered, layer.output, residual);
}

mx::array attend_and_feed(const mx::array& x, const std::optional<kernels::Norm>& norm, const SelfAttention& layer,
                          const Step& step, const CachePlace& place, const std::optional<mx::array>& residual,
                          const NormedMlp& behind) {
  if (!layer.gates) {
    const std::optional<kernels::Turns> turns = turns_of(layer, step);
    const kernels::AttentionBlock block{norm,         layer.projection, turns,      layer.options,
                                        layer.output, &behind.norm,     &behind.mlp};
    if (std::optional<mx::array> y = attend_at_once(x, block, step, place, residual)) return *y;
  }
  const mx::array y = attend(x, norm, layer, step, place, residual);
  return kernels::gated_mlp(y, behind.norm, behind.mlp, y);
}

mx::array cut_heads(const mx::array& x, int n_heads) {
  return mx::transpose(mx::reshape(x, {x.shape(0), x.shape(1), n_heads, x.shape(2) / n_heads}), {0, 2, 1, 3});
}

mx::array join_heads(const mx::array& heads) {
  return mx::reshape(mx::transpose(heads, {0, 2, 1, 3}),
                     {heads.shape(0), heads.shape(2), heads.shape(1) * heads.shape(3)});
}

}  // namespace memoir::model
