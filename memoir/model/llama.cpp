// The Llama family: pre-norm blocks of rotary grouped-query attention and a gated feed-forward.
// Llama 2 (arXiv:2307.09288), Llama 3 (arXiv:2407.21783), SmolLM2, Mistral (arXiv:2310.06825: every layer slides).

#include <utility>
#include <vector>

#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layers.h"

namespace memoir::model {
namespace {

std::unique_ptr<DecoderLayer> read_layer(Weights& weights, const ModelConfig& config, int index) {
  const std::string module = layer_module(index);
  const int hidden = config.hidden_size;
  kernels::Norm attention_norm = read_rms_norm(weights, module + ".input_layernorm", hidden, config.rms_norm_eps);
  SelfAttention attention = read_self_attention(weights, module + ".self_attn", hidden, attention_layout(config));
  attention.options.window = config.sliding_window;
  attention.rope = 0;
  kernels::Norm mlp_norm = read_rms_norm(weights, module + ".post_attention_layernorm", hidden, config.rms_norm_eps);
  return std::make_unique<PreNormLayer>(std::move(attention_norm), std::move(attention), std::move(mlp_norm),
                                        read_gated_mlp(weights, module + ".mlp", config, config.intermediate_size));
}

}  // namespace

std::unique_ptr<Model> make_llama(const ModelConfig& config, Weights& weights) {
  read_gate(config);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) layers.push_back(read_layer(weights, config, i));
  return std::make_unique<Decoder>(
      config, read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
      std::vector{read_rope(weights, config)}, std::move(layers));
}

}  // namespace memoir::model
