// Feed-forwards, with experts and without.

#include <mlx/ops.h>

#include "memoir/base/error.h"
#include "memoir/kernels/linear.h"
#include "memoir/model/config_fields.h"
#include "memoir/model/config_limits.h"
#include "memoir/model/layers.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

std::vector<std::string> expert_modules(const std::string& module, int n, const std::string& layer) {
  std::vector<std::string> modules;
  for (int e = 0; e < n; ++e) modules.push_back(module + ".experts." + std::to_string(e) + "." + layer);
  return modules;
}

// A dense tensor [n, rows, columns] as the rows [begin, end) of each matrix.
kernels::WeightStack dense_stack(const mx::array& all, int begin, int end) {
  return kernels::stacked(all.shape(0), [&](int e) {
    const mx::array part = mx::slice(all, mx::Shape{e, begin, 0}, mx::Shape{e + 1, end, all.shape(2)});
    return kernels::Weight{mx::squeeze(part, 0)};
  });
}

}  // namespace

kernels::WeightStack transposed_stack(const mx::array& all, int begin, int end, int step) {
  return kernels::stacked(all.shape(0), [&](int e) {
    const mx::array part =
        mx::slice(all, mx::Shape{e, 0, begin}, mx::Shape{e + 1, all.shape(1), end}, mx::Shape{1, 1, step});
    return kernels::Weight{mx::contiguous(mx::transpose(mx::squeeze(part, 0)))};
  });
}

ExpertCounts read_expert_counts(const ModelConfig& config) {
  const ConfigFields fields = family_fields(config);
  // transformers 5 writes num_local_experts for both.
  const char* key = fields.find("num_local_experts") != nullptr ? "num_local_experts" : "num_experts";
  const ExpertCounts counts{fields.size(key, kMaxExperts), fields.size("num_experts_per_tok", kMaxExperts)};
  if (counts.n_chosen > counts.n) {
    fields.fail("num_experts_per_tok",
                "is " + std::to_string(counts.n_chosen) + " of " + std::to_string(counts.n) + " experts");
  }
  return counts;
}

kernels::Gate read_gate(const ModelConfig& config) {
  const std::string& name = config.hidden_act;
  if (name == "silu" || name == "swish") return kernels::Gate::kSilu;
  // Different names of one formula in transformers.
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return kernels::Gate::kGeluTanh;
  throw UnsupportedError(config.path,
                         config.family_keys.contains("hidden_activation") ? "hidden_activation" : "hidden_act",
                         "'" + name + "' is not supported, expected silu or gelu_pytorch_tanh");
}

kernels::GatedMlp read_gated_mlp(Weights& weights, const std::string& module, const ModelConfig& config,
                                 int intermediate_size) {
  const int hidden = config.hidden_size;
  return {read_linear(weights, module + ".gate_proj", intermediate_size, hidden, config.mlp_bias),
          read_linear(weights, module + ".up_proj", intermediate_size, hidden, config.mlp_bias),
          read_linear(weights, module + ".down_proj", hidden, intermediate_size, config.mlp_bias), read_gate(config)};
}

kernels::Experts read_experts(Weights& weights, const std::string& module, const std::string& stack,
                              const ExpertsShape& shape, kernels::Gate gate) {
  const MatrixShape inner{shape.intermediate, shape.hidden, shape.n};
  const MatrixShape outer{shape.hidden, shape.intermediate, shape.n};
  const std::string fused = module + ".experts.gate_up_proj";
  if (weights.has(stack + ".gate_proj.weight")) {
    return {weights.stack(stack + ".gate_proj", inner),
            weights.stack(stack + ".up_proj", inner),
            weights.stack(stack + ".down_proj", outer),
            std::nullopt,
            std::nullopt,
            std::nullopt,
            gate};
  }
  if (weights.has(stack + ".gate_up_proj.weight")) {
    const int n_both = 2 * shape.intermediate;
    const kernels::Weight both = weights.stored_matrix(stack + ".gate_up_proj", {n_both, shape.hidden, shape.n});
    const auto part = [&](int begin) {
      return kernels::stacked(shape.n, [&](int e) {
        return kernels::some_rows(both, e * n_both + begin, e * n_both + begin + shape.intermediate);
      });
    };
    return {part(0),
            part(shape.intermediate),
            weights.stack(stack + ".down_proj", outer),
            std::nullopt,
            std::nullopt,
            std::nullopt,
            gate};
  }
  if (weights.has(fused)) {
    const mx::array gates_and_ups = weights.tensor(fused, {shape.n, 2 * shape.intermediate, shape.hidden});
    const mx::array down = weights.tensor(module + ".experts.down_proj", {shape.n, shape.hidden, shape.intermediate});
    return fused_experts(gates_and_ups, down, gate);
  }
  return {weights.stack(expert_modules(module, shape.n, "gate_proj"), inner),
          weights.stack(expert_modules(module, shape.n, "up_proj"), inner),
          weights.stack(expert_modules(module, shape.n, "down_proj"), outer),
          std::nullopt,
          std::nullopt,
          std::nullopt,
          gate};
}

kernels::Experts fused_experts(const mx::array& gates_and_ups, const mx::array& down, kernels::Gate gate) {
  const int intermediate = gates_and_ups.shape(1) / 2;
  return {dense_stack(gates_and_ups, 0, intermediate),
          dense_stack(gates_and_ups, intermediate, 2 * intermediate),
          dense_stack(down, 0, down.shape(1)),
          std::nullopt,
          std::nullopt,
          std::nullopt,
          gate};
}

mx::array mix(const mx::array& x, const Mixture& mixture, const std::optional<mx::array>& residual) {
  const kernels::Routes routes = kernels::route(kernels::linear(x, mixture.router), mixture.routing);
  const mx::array y = kernels::mix_experts(x, routes, mixture.experts, residual);
  if (!mixture.shared) return y;
  if (!mixture.shared_gate) return kernels::gated_mlp(x, std::nullopt, *mixture.shared, y);
  const mx::array gates = kernels::linear(x, *mixture.shared_gate);
  const mx::array shares = kernels::gate_product(gates, mx::ones_like(gates), kernels::Gate::kSigmoid);
  return mx::add(y, mx::multiply(shares, kernels::gated_mlp(x, std::nullopt, *mixture.shared)));
}

}  // namespace memoir::model
