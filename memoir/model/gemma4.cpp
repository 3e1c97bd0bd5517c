// Gemma 4, its text part: its layers (gemma4_layers.h), and an input of each token's for each layer alone.

#include <mlx/ops.h>

#include <cmath>
#include <utility>
#include <vector>

#include "memoir/kernels/linear.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/gemma.h"
#include "memoir/model/gemma4_layers.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

// Each token's inputs for the layers: embeddings of their own, and a projection of the model's.
class LayerInputs {
 public:
  LayerInputs(Weights& weights, const ModelConfig& config, int size)
      : n_layers_(config.n_layers),
        table_(read_table(weights, config, size)),
        table_scale_(gemma_embedding_scale(table_, size)),
        projection_(read_linear(weights, "model.per_layer_model_projection", config.n_layers * size, config.hidden_size,
                                false)),
        projection_scale_(1 / std::sqrt(static_cast<float>(config.hidden_size))),
        norm_(read_rms_norm(weights, "model.per_layer_projection_norm", size, config.rms_norm_eps)) {}

  // x: the embeddings [B, T, hidden]. Returns [B, T, L, size].
  mx::array operator()(const mx::array& x, const mx::array& ids) const {
    const auto scalar = [&](float value) { return mx::astype(mx::array(value), x.dtype()); };
    const mx::Shape shape{ids.shape(0), ids.shape(1), n_layers_, norm_.weight.shape(0)};
    const mx::array own =
        mx::multiply(mx::reshape(kernels::embed(ids, table_, x.dtype()), shape), scalar(table_scale_));
    const mx::array projected = mx::multiply(kernels::linear(x, projection_), scalar(projection_scale_));
    const mx::array both = mx::add(kernels::norm(mx::reshape(projected, shape), norm_), own);
    return mx::multiply(both, scalar(1 / std::sqrt(2.0F)));
  }

  std::size_t size_bytes() const { return table_.size_bytes() + projection_.size_bytes() + norm_.weight.nbytes(); }

 private:
  static kernels::Weight read_table(Weights& weights, const ModelConfig& config, int size) {
    const ConfigFields fields = family_fields(config);
    const int n_rows = fields.size("vocab_size_per_layer_input", kMaxVocab);
    if (n_rows < config.vocab_size) {
      fields.refuse("vocab_size_per_layer_input",
                    "is " + std::to_string(n_rows) + ", less than vocab_size " + std::to_string(config.vocab_size));
    }
    if (std::int64_t{config.n_layers} * size > kMaxIntermediateSize) {
      fields.fail("hidden_size_per_layer_input", "is too large for " + std::to_string(config.n_layers) + " layers");
    }
    return weights.matrix("model.embed_tokens_per_layer", n_rows, config.n_layers * size);
  }

  int n_layers_;
  kernels::Weight table_;
  float table_scale_;
  kernels::Linear projection_;
  float projection_scale_;
  kernels::Norm norm_;
};

class Gemma4 : public Decoder {
 public:
  Gemma4(const ModelConfig& config, DecoderEnds ends, std::vector<kernels::Rope> ropes,
         std::vector<std::unique_ptr<DecoderLayer>> layers, std::optional<LayerInputs> inputs)
      : Decoder(config, std::move(ends), std::move(ropes), std::move(layers)), inputs_(std::move(inputs)) {}

  std::size_t size_bytes() const override { return Decoder::size_bytes() + (inputs_ ? inputs_->size_bytes() : 0); }

 protected:
  void begin(const mx::array& x, Step& step) const override {
    if (inputs_) step.layer_inputs = (*inputs_)(x, step.ids);
  }

 private:
  std::optional<LayerInputs> inputs_;
};

}  // namespace

std::unique_ptr<Model> make_gemma4(const ModelConfig& config, Weights& weights) {
  const ConfigFields fields = family_fields(config);
  if (fields.string("use_bidirectional_attention").value_or("vision") != "vision") {
    fields.refuse("use_bidirectional_attention", "is not for images alone: the model is none that writes text");
  }
  Gemma4Keys keys = read_gemma4_keys(config);
  read_gemma4_sharing(config, keys);
  std::vector<kernels::Rope> ropes = make_gemma4_ropes(config, keys.layers);
  weights.pass_over("rope_freqs.weight");  // of GGUF files: in `config`
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    layers.push_back(make_gemma4_layer(weights, config, keys, i));
  }
  DecoderEnds ends =
      read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps));
  ends.embedding_scale = gemma_embedding_scale(ends.embedding, config.hidden_size);
  ends.logit_cap = static_cast<float>(fields.positive("final_logit_softcapping").value_or(0));
  std::optional<LayerInputs> inputs;
  if (keys.input_size > 0) inputs.emplace(weights, config, keys.input_size);
  return std::make_unique<Gemma4>(config, std::move(ends), std::move(ropes), std::move(layers), std::move(inputs));
}

}  // namespace memoir::model
