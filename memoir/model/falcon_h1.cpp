// Falcon-H1 (arXiv:2507.22448): every layer has attention and a Mamba 2 mixer side by side, whose results are added,
// and fixed multipliers on most of what passes through it.
//
// A layer's cache is a list of two: the mixer's states, and keys and values.

#include <mlx/ops.h>

#include <array>
#include <utility>
#include <vector>

#include "memoir/cache/composite.h"
#include "memoir/cache/recurrent.h"
#include "memoir/kernels/linear.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layers.h"
#include "memoir/model/mamba_mixer.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

struct Multipliers {
  float embedding = 1;
  float logits = 1;
  float attention_in = 1;
  float attention_out = 1;
  float key = 1;
  float mixer_in = 1;
  float mixer_out = 1;
  float mlp_gate = 1;
  float mlp_down = 1;
  std::vector<float> mixer = {1, 1, 1, 1, 1};  // what in_proj makes
};

// The numbers of a list under `key`, as many as `numbers` has; left as they are where there is no list.
void read_numbers(const ConfigFields& fields, const char* key, std::vector<float>& numbers) {
  const nlohmann::json* list = fields.find(key);
  if (!list) return;
  if (!list->is_array() || list->size() != numbers.size()) {
    fields.fail(key, "is not a list of " + std::to_string(numbers.size()) + " numbers");
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const nlohmann::json& number = (*list)[i];
    if (!number.is_number()) fields.fail(key, "holds a value of type " + std::string(number.type_name()));
    numbers[i] = number.get<float>();
  }
}

Multipliers read_multipliers(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  const auto number = [&](const char* key) { return static_cast<float>(fields.number(key).value_or(1)); };
  Multipliers all;
  all.embedding = number("embedding_multiplier");
  all.logits = number("lm_head_multiplier");
  all.attention_in = number("attention_in_multiplier");
  all.attention_out = number("attention_out_multiplier");
  all.key = number("key_multiplier");
  all.mixer_in = number("ssm_in_multiplier");
  all.mixer_out = number("ssm_out_multiplier");
  std::vector<float> mlp = {1, 1};
  read_numbers(fields, "mlp_multipliers", mlp);
  all.mlp_gate = mlp[0];
  all.mlp_down = mlp[1];
  read_numbers(fields, "ssm_multipliers", all.mixer);
  return all;
}

mx::array times(const mx::array& x, float factor) {
  return factor == 1 ? x : mx::multiply(x, mx::astype(mx::array(factor), x.dtype()));
}

// mlx-lm multiplies weights when it converts a model, but not their biases: nor the values' weights, which are made up
// for behind the attention, nor the keys'.
class Folded {
 public:
  Folded(const Multipliers& all, bool is_folded) : all_(all), is_folded_(is_folded) {}

  // What is left to multiply by.
  Multipliers left(bool ties_embeddings) const {
    if (!is_folded_) return all_;
    Multipliers left;
    left.attention_out = all_.attention_in;
    left.key = all_.key;
    if (ties_embeddings) left.logits = all_.logits / all_.embedding;
    return left;
  }

  // The layer as its multiplier needs it, which is part of its weight already.
  kernels::Linear with_bias(kernels::Linear layer, float multiplier) const {
    if (is_folded_ && layer.bias) layer.bias = typed_vector(times(*layer.bias, multiplier));
    return layer;
  }

  bool is_folded() const { return is_folded_; }
  const Multipliers& all() const { return all_; }

 private:
  Multipliers all_;
  bool is_folded_;
};

kernels::Norm scaled(kernels::Norm norm, float factor) {
  norm.weight = typed_vector(times(norm.weight, factor));
  return norm;
}

SelfAttention read_attention(Weights& weights, const std::string& module, const ModelConfig& config,
                             const Folded& folded, float key_multiplier) {
  SelfAttention attention = read_self_attention(weights, module, config.hidden_size, attention_layout(config));
  // In the folded form what the heads gather is multiplied by attention_in, behind these two biases.
  const Multipliers& all = folded.all();
  attention.projection.values = folded.with_bias(std::move(attention.projection.values), 1 / all.attention_in);
  attention.output = folded.with_bias(std::move(attention.output), all.attention_out / all.attention_in);
  attention.options.scale *= key_multiplier;
  attention.rope = 0;
  return attention;
}

kernels::GatedMlp read_mlp(Weights& weights, const std::string& module, const ModelConfig& config,
                           const Folded& folded) {
  kernels::GatedMlp mlp = read_gated_mlp(weights, module, config, config.intermediate_size);
  mlp.gates = folded.with_bias(std::move(mlp.gates), folded.all().mlp_gate);
  mlp.down = folded.with_bias(std::move(mlp.down), folded.all().mlp_down);
  return mlp;
}

MambaSizes read_sizes(const ModelConfig& config) {
  const auto inner = family_fields(config).integer("mamba_d_ssm", 1, kMaxHiddenSize);
  return read_mamba_sizes(config, kMambaKeys, inner ? std::optional(static_cast<int>(*inner)) : std::nullopt);
}

MambaTraits read_traits(const ModelConfig& config, const Folded& folded) {
  const ConfigFields fields = family_fields(config);
  MambaTraits traits;
  traits.has_in_bias = fields.required_boolean("mamba_proj_bias");
  traits.has_out_bias = fields.required_boolean("projectors_bias");
  traits.has_convolution_bias = fields.required_boolean("mamba_conv_bias");
  using GroupNorm = MambaTraits::GroupNorm;
  const bool is_before = fields.required_boolean("mamba_norm_before_gate");
  traits.group_norm = !fields.required_boolean("mamba_rms_norm") ? GroupNorm::kNone
                      : is_before                                ? GroupNorm::kBeforeGate
                                                                 : GroupNorm::kBehindGate;
  traits.multipliers = folded.all().mixer;
  traits.multiplies = folded.is_folded() ? MambaTraits::Multiplies::kInBias : MambaTraits::Multiplies::kOutputs;
  traits.out_bias_multiplier = folded.is_folded() ? folded.all().mixer_out : 1;
  return traits;
}

class FalconH1Layer : public DecoderLayer {
 public:
  FalconH1Layer(Weights& weights, const ModelConfig& config, const Folded& folded, const std::string& module)
      : left_(folded.left(config.tie_embeddings)),
        norm_(read_rms_norm(weights, module + ".input_layernorm", config.hidden_size, config.rms_norm_eps)),
        mixer_norm_(scaled(norm_, left_.mixer_in)),
        mixer_(weights, module + ".mamba", config, read_sizes(config), read_traits(config, folded)),
        attention_norm_(scaled(norm_, left_.attention_in)),
        attention_(read_attention(weights, module + ".self_attn", config, folded, left_.key)),
        mlp_norm_(read_rms_norm(weights, module + ".pre_ff_layernorm", config.hidden_size, config.rms_norm_eps)),
        mlp_(read_mlp(weights, module + ".feed_forward", config, folded)) {}

  std::unique_ptr<cache::LayerCache> make_cache(const cache::CacheOptions& options) const override {
    std::vector<std::unique_ptr<cache::LayerCache>> children;
    children.push_back(mixer_.make_cache());
    children.push_back(attention_.make_cache(options));
    return std::make_unique<cache::CacheList>(std::move(children));
  }

  mx::array forward(const mx::array& x, Step& step, std::size_t index) const override {
    const mx::array mixed = mixer_(x, mixer_norm_, step, {index, 0}, std::nullopt);
    const mx::array attended = attend(x, attention_norm_, attention_, step, {index, 1}, std::nullopt);
    const mx::array y = mx::add(x, mx::add(times(mixed, left_.mixer_out), times(attended, left_.attention_out)));
    return mx::add(y, times(feed_forward(kernels::norm(y, mlp_norm_)), left_.mlp_down));
  }

  std::size_t size_bytes() const override {
    return 3 * norm_.weight.nbytes() + mixer_.size_bytes() + attention_.size_bytes() + mlp_norm_.weight.nbytes() +
           mlp_.size_bytes();
  }

 private:
  mx::array feed_forward(const mx::array& x) const {
    if (left_.mlp_gate == 1) return kernels::gated_mlp(x, std::nullopt, mlp_);
    const mx::array gates = times(kernels::linear(x, mlp_.gates), left_.mlp_gate);
    return kernels::linear(kernels::gate_product(gates, kernels::linear(x, mlp_.ups), mlp_.gate), mlp_.down);
  }

  Multipliers left_;
  kernels::Norm norm_;
  kernels::Norm mixer_norm_;  // norm_, multiplied
  MambaMixer mixer_;
  kernels::Norm attention_norm_;  // norm_, multiplied
  SelfAttention attention_;
  kernels::Norm mlp_norm_;
  kernels::GatedMlp mlp_;
};

}  // namespace

std::unique_ptr<Model> make_falcon_h1(const ModelConfig& config, Weights& weights) {
  const Folded folded(read_multipliers(config), weights.is_mlx_convolution("model.layers.0.mamba.conv1d.weight"));
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    layers.push_back(std::make_unique<FalconH1Layer>(weights, config, folded, layer_module(i)));
  }
  DecoderEnds ends = read_ends(
      weights, config, read_rms_norm(weights, "model.final_layernorm", config.hidden_size, config.rms_norm_eps));
  const Multipliers left = folded.left(config.tie_embeddings);
  ends.embedding_scale = left.embedding;
  ends.logit_scale = left.logits;
  return std::make_unique<Decoder>(config, std::move(ends), std::vector{read_rope(weights, config)}, std::move(layers));
}

}  // namespace memoir::model
