// gpt-oss (arXiv:2508.10925): Llama's blocks with biases everywhere, a sink for each head, windows in every other
// layer, and experts with a clamped gate, as published in MXFP4.

#include <mlx/ops.h>

#include <utility>
#include <vector>

#include "memoir/model/config_fields.h"
#include "memoir/model/decoder.h"
#include "memoir/model/families.h"
#include "memoir/model/layer_pattern.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr int kPeriod = 2;

struct ExpertBiases {
  mx::array gates;
  mx::array ups;
  mx::array down;
};

// As MLX and GGUF files name them, one array for each layer.
ExpertBiases read_biases(Weights& weights, const std::string& module, const ExpertsShape& shape) {
  return {weights.tensor(module + ".gate_proj.bias", {shape.n, shape.intermediate}),
          weights.tensor(module + ".up_proj.bias", {shape.n, shape.intermediate}),
          weights.tensor(module + ".down_proj.bias", {shape.n, shape.hidden})};
}

// As published: gates and ups by turns.
ExpertBiases read_fused_biases(Weights& weights, const std::string& module, const ExpertsShape& shape) {
  const mx::array both = weights.tensor(module + ".gate_up_proj_bias", {shape.n, 2 * shape.intermediate});
  const auto every_other = [&](int begin) {
    return mx::slice(both, mx::Shape{0, begin}, both.shape(), mx::Shape{1, 2});
  };
  return {every_other(0), every_other(1), weights.tensor(module + ".down_proj_bias", {shape.n, shape.hidden})};
}

kernels::Experts with_biases(kernels::WeightStack gates, kernels::WeightStack ups, kernels::WeightStack down,
                             const ExpertBiases& biases) {
  kernels::Experts experts{std::move(gates), std::move(ups), std::move(down)};
  experts.gate_biases = typed_vector(biases.gates);
  experts.up_biases = typed_vector(biases.ups);
  experts.down_biases = typed_vector(biases.down);
  return experts;
}

// `module`.gate_up_proj_blocks, rows of gates and ups by turns.
kernels::Experts read_mxfp4_experts(Weights& weights, const std::string& module, const ExpertsShape& shape) {
  const int n_both = 2 * shape.intermediate;
  const kernels::Weight both = weights.mxfp4_blocks(module + ".gate_up_proj", {n_both, shape.hidden, shape.n});
  const auto every_other = [&](int begin) {
    return kernels::stacked(shape.n,
                            [&](int e) { return kernels::some_rows(both, e * n_both + begin, (e + 1) * n_both, 2); });
  };
  const kernels::Weight down = weights.mxfp4_blocks(module + ".down_proj", {shape.hidden, shape.intermediate, shape.n});
  const auto down_of = [&](int e) { return kernels::some_rows(down, e * shape.hidden, (e + 1) * shape.hidden); };
  return with_biases(every_other(0), every_other(1), kernels::stacked(shape.n, down_of),
                     read_fused_biases(weights, module, shape));
}

// `module`.gate_up_proj [n, hidden, 2 * intermediate], columns of gates and ups by turns.
kernels::Experts read_dense_experts(Weights& weights, const std::string& module, const ExpertsShape& shape) {
  const int n_both = 2 * shape.intermediate;
  const mx::array both = weights.tensor(module + ".gate_up_proj", {shape.n, shape.hidden, n_both});
  const mx::array down = weights.tensor(module + ".down_proj", {shape.n, shape.intermediate, shape.hidden});
  return with_biases(transposed_stack(both, 0, n_both, 2), transposed_stack(both, 1, n_both, 2),
                     transposed_stack(down, 0, shape.hidden), read_fused_biases(weights, module, shape));
}

bool has_mxfp4(const Weights& weights, const std::string& module) {
  return weights.has(module + ".gate_up_proj_blocks") || weights.has(module + ".gate_up_proj_scales");
}

kernels::Experts read_stacked_experts(Weights& weights, const std::string& module, const ExpertsShape& shape) {
  const MatrixShape inner{shape.intermediate, shape.hidden, shape.n};
  return with_biases(weights.stack(module + ".gate_proj", inner), weights.stack(module + ".up_proj", inner),
                     weights.stack(module + ".down_proj", {shape.hidden, shape.intermediate, shape.n}),
                     read_biases(weights, module, shape));
}

Mixture read_mixture(Weights& weights, const ModelConfig& config, const std::string& module) {
  const ConfigFields fields = family_fields(config);
  const ExpertCounts counts = read_expert_counts(config);
  const ExpertsShape shape{counts.n, config.hidden_size, config.intermediate_size};
  const std::string experts = module + ".experts";
  kernels::Routing routing;
  routing.n_chosen = counts.n_chosen;
  routing.is_normalized = true;
  Mixture mixture{read_linear(weights, module + ".router", counts.n, config.hidden_size, true), routing,
                  weights.has(experts + ".gate_proj.weight") ? read_stacked_experts(weights, experts, shape)
                  : has_mxfp4(weights, experts)              ? read_mxfp4_experts(weights, experts, shape)
                                                             : read_dense_experts(weights, experts, shape)};
  const auto positive = [&](const char* key) {
    const auto value = fields.positive(key);
    if (!value) fields.fail(key, "is missing");
    return static_cast<float>(*value);
  };
  mixture.experts.clamped_gate = kernels::ClampedGate{positive("swiglu_alpha"), positive("swiglu_limit")};
  return mixture;
}

SelfAttention read_attention(Weights& weights, const ModelConfig& config, int index, bool is_sliding) {
  const std::string module = layer_module(index) + ".self_attn";
  SelfAttention attention = read_self_attention(weights, module, config.hidden_size, attention_layout(config));
  attention.options.sinks = typed_vector(weights.vector(module + ".sinks", config.n_heads));
  if (is_sliding) attention.options.window = config.sliding_window;
  attention.rope = 0;
  return attention;
}

}  // namespace

std::unique_ptr<Model> make_gpt_oss(const ModelConfig& config, Weights& weights) {
  if (read_gate(config) != kernels::Gate::kSilu) {
    family_fields(config).refuse("hidden_act", "is '" + config.hidden_act + "', expected silu");
  }
  const std::vector<std::string> pattern = sliding_pattern(config, kPeriod);
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const std::string module = layer_module(i);
    const auto norm = [&](const char* name) {
      return read_rms_norm(weights, module + name, config.hidden_size, config.rms_norm_eps);
    };
    const bool is_sliding = pattern[static_cast<std::size_t>(i)] == kSlidingAttention;
    layers.push_back(std::make_unique<PreNormLayer>(
        norm(".input_layernorm"), read_attention(weights, config, i, is_sliding), norm(".post_attention_layernorm"),
        read_mixture(weights, config, module + ".mlp")));
  }
  return std::make_unique<Decoder>(
      config, read_ends(weights, config, read_rms_norm(weights, "model.norm", config.hidden_size, config.rms_norm_eps)),
      std::vector{read_rope(weights, config)}, std::move(layers));
}

}  // namespace memoir::model
