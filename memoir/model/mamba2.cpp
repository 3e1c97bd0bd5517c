// Mamba 2 (arXiv:2405.21060): layers of norm and mixer alone; no attention, and so no limit to the context.

#include <utility>
#include <vector>

#include "memoir/model/config_fields.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layers.h"
#include "memoir/model/mamba_mixer.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr MambaKeys kKeys = {"num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "expand"};

MambaTraits read_traits(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  MambaTraits traits;
  traits.has_in_bias = traits.has_out_bias = fields.required_boolean("use_bias");
  traits.has_convolution_bias = fields.required_boolean("use_conv_bias");
  return traits;
}

class Mamba2Layer : public DecoderLayer {
 public:
  Mamba2Layer(Weights& weights, const ModelConfig& config, const std::string& module)
      : norm_(read_rms_norm(weights, module + ".norm", config.hidden_size, config.rms_norm_eps)),
        mixer_(weights, module + ".mixer", config, read_mamba_sizes(config, kKeys), read_traits(config)) {}

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions&) const override {
    return mixer_.make_cache();
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    return mixer_(x, norm_, step, index, x);
  }

  std::size_t size_bytes() const override { return norm_.weight.nbytes() + mixer_.size_bytes(); }

 private:
  kernels::Norm norm_;
  MambaMixer mixer_;
};

}  // namespace

std::unique_ptr<Model> make_mamba2(const ModelConfig& config, Weights& weights) {
  DecoderEnds ends{weights.matrix("backbone.embeddings", config.vocab_size, config.hidden_size), 1,
                   read_rms_norm(weights, "backbone.norm_f", config.hidden_size, config.rms_norm_eps), std::nullopt};
  if (!config.tie_embeddings) {
    ends.head = kernels::Linear{weights.matrix("lm_head", config.vocab_size, config.hidden_size)};
  }
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    layers.push_back(std::make_unique<Mamba2Layer>(weights, config, "backbone.layers." + std::to_string(i)));
  }
  return std::make_unique<Decoder>(config, std::move(ends), std::vector<kernels::Rope>{}, std::move(layers));
}

}  // namespace memoir::model
