// Granite 4 hybrids (granitemoehybrid; IBM, 2025): Mamba 2 mixers in most layers, attention in the others, a
// feed-forward for all tokens and, but in dense models, experts beside it; what is added to the residual is multiplied
// first.

#include <mlx/ops.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"
#include "memoir/model/mamba_mixer.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

// As published files name layers; transformers 5 writes linear_attention and full_attention.
constexpr std::string_view kMamba = "mamba";
constexpr std::string_view kAttention = "attention";

// layer_types or its older name; without both every layer has a mixer.
std::vector<std::string> read_pattern(const ModelConfig& config) {
  constexpr const char* kOlder = "layers_block_type";
  const ConfigFields fields = family_fields(config);
  const auto older = fields.strings(kOlder);
  if (older && older->size() != static_cast<std::size_t>(config.n_layers)) {
    fields.fail(kOlder,
                "has " + std::to_string(older->size()) + " names for " + std::to_string(config.n_layers) + " layers");
  }
  return layer_pattern(config, {kMamba, kAttention, kLinearAttention, kFullAttention}, [&](int i) {
    return older ? std::string_view((*older)[static_cast<std::size_t>(i)]) : kLinearAttention;
  });
}

MambaTraits read_traits(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  MambaTraits traits;
  traits.has_in_bias = traits.has_out_bias = fields.required_boolean("mamba_proj_bias");
  traits.has_convolution_bias = fields.required_boolean("mamba_conv_bias");
  return traits;
}

SelfAttention read_attention(Weights& weights, const std::string& module, const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  SelfAttention attention = read_self_attention(weights, module, config.hidden_size, attention_layout(config));
  attention.options.scale = static_cast<float>(fields.required_number("attention_multiplier"));
  if (fields.string("position_embedding_type") == "rope") attention.rope = 0;
  return attention;
}

// Gates and ups in one matrix as published, or apart: in dense models under another name.
kernels::GatedMlp read_shared_mlp(Weights& weights, const std::string& layer, const ModelConfig& config) {
  const int width = family_fields(config).size("shared_intermediate_size", kMaxIntermediateSize);
  for (const char* name : {".mlp", ".shared_mlp"}) {
    if (!weights.has(layer + name + ".gate_proj.weight")) continue;
    return {read_linear(weights, layer + name + ".gate_proj", width, config.hidden_size, false),
            read_linear(weights, layer + name + ".up_proj", width, config.hidden_size, false),
            read_linear(weights, layer + name + ".down_proj", config.hidden_size, width, false), read_gate(config)};
  }
  const std::string module = layer + ".shared_mlp";
  const kernels::Weight both = weights.stored_matrix(module + ".input_linear", {2 * width, config.hidden_size});
  return {{kernels::prepared(kernels::some_rows(both, 0, width))},
          {kernels::prepared(kernels::some_rows(both, width, 2 * width))},
          read_linear(weights, module + ".output_linear", config.hidden_size, width, false),
          read_gate(config)};
}

kernels::Experts read_moe_experts(Weights& weights, const std::string& module, const ModelConfig& config, int n) {
  const ExpertsShape shape{n, config.hidden_size, config.intermediate_size};
  const kernels::Gate gate = read_gate(config);
  if (!weights.has(module + ".input_linear.weight")) {
    return read_experts(weights, module, module + ".switch_mlp", shape, gate);
  }
  return fused_experts(weights.tensor(module + ".input_linear.weight", {n, 2 * shape.intermediate, shape.hidden}),
                       weights.tensor(module + ".output_linear.weight", {n, shape.hidden, shape.intermediate}), gate);
}

Mixture read_mixture(Weights& weights, const std::string& layer, const ModelConfig& config) {
  const ExpertCounts counts = read_expert_counts(config);
  const std::string module = layer + ".block_sparse_moe";
  kernels::Routing routing;
  routing.n_chosen = counts.n_chosen;
  routing.is_normalized = true;  // the softmax is over the chosen
  return {read_linear(weights, module + ".router.layer", counts.n, config.hidden_size, false), routing,
          read_moe_experts(weights, module, config, counts.n), read_shared_mlp(weights, layer, config)};
}

class GraniteLayer : public DecoderLayer {
 public:
  GraniteLayer(Weights& weights, const ModelConfig& config, const std::string& module, bool has_mixer, bool has_experts)
      : residual_multiplier_(static_cast<float>(family_fields(config).required_number("residual_multiplier"))),
        mixer_norm_(read_norm(weights, config, module + ".input_layernorm")),
        mlp_norm_(read_norm(weights, config, module + ".post_attention_layernorm")) {
    if (has_mixer) {
      mixer_.emplace(weights, module + ".mamba", config, read_mamba_sizes(config, kMambaKeys), read_traits(config));
    } else {
      attention_ = read_attention(weights, module + ".self_attn", config);
    }
    if (has_experts) {
      mixture_ = read_mixture(weights, module, config);
    } else {
      mlp_ = read_shared_mlp(weights, module, config);
    }
  }

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    return mixer_ ? mixer_->make_cache() : attention_->make_cache(options);
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array mixed = mixer_ ? (*mixer_)(x, mixer_norm_, step, index, std::nullopt)
                                   : attend(x, mixer_norm_, *attention_, step, index, std::nullopt);
    const mx::array y = added(x, mixed);
    return added(
        y, mlp_ ? kernels::gated_mlp(y, mlp_norm_, *mlp_) : mix(kernels::norm(y, mlp_norm_), *mixture_, std::nullopt));
  }

  std::size_t size_bytes() const override {
    return mixer_norm_.weight.nbytes() + mlp_norm_.weight.nbytes() +
           (mixer_ ? mixer_->size_bytes() : attention_->size_bytes()) +
           (mlp_ ? mlp_->size_bytes() : mixture_->size_bytes());
  }

 private:
  static kernels::Norm read_norm(Weights& weights, const ModelConfig& config, const std::string& module) {
    return read_rms_norm(weights, module, config.hidden_size, config.rms_norm_eps);
  }

  mx::array added(const mx::array& residual, const mx::array& y) const {
    return mx::add(residual, mx::multiply(y, mx::astype(mx::array(residual_multiplier_), y.dtype())));
  }

  float residual_multiplier_;
  kernels::Norm mixer_norm_;
  std::optional<MambaMixer> mixer_;
  std::optional<SelfAttention> attention_;  // instead of it
  kernels::Norm mlp_norm_;
  std::optional<kernels::GatedMlp> mlp_;
  std::optional<Mixture> mixture_;  // instead of it
};

}  // namespace

std::unique_ptr<Model> make_granite_hybrid(const ModelConfig& config, Weights& weights) {
  const ConfigFields fields = family_fields(config);
  const std::vector<std::string> pattern = read_pattern(config);
  const bool has_experts = fields.integer("num_local_experts", 0, kMaxExperts).value_or(0) > 0;
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const std::string& type = pattern[static_cast<std::size_t>(i)];
    const bool has_mixer = type == kMamba || type == kLinearAttention;
    layers.push_back(std::make_unique<GraniteLayer>(weights, config, layer_module(i), has_mixer, has_experts));
  }
  DecoderEnds ends =
      read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps));
  ends.embedding_scale = static_cast<float>(fields.required_number("embedding_multiplier"));
  const auto scaling = fields.positive("logits_scaling");
  if (!scaling) fields.fail("logits_scaling", "is missing");
  ends.logit_scale = static_cast<float>(1 / *scaling);
  return std::make_unique<Decoder>(config, std::move(ends), std::vector{read_rope(weights, config)}, std::move(layers));
}

}  // namespace memoir::model
