#pragma once

// The experts of each token, see kernels/routing.h. No MLX. A token's result depends on its own row alone.

#include <cstdint>

namespace memoir::kernels::cpu {

struct RoutingArgs {
  int n_rows = 0;
  int n_experts = 0;
  int n_chosen = 0;
  bool is_sigmoid = false;  // else softmax
  bool is_normalized = false;
  float added_to_sum = 0;
  float scale = 1;
  int n_groups = 1;
  int n_chosen_groups = 1;
  const float* logits = nullptr;         // [n_rows, n_experts]
  const float* choice_biases = nullptr;  // [n_experts] or null
  const float* expert_scales = nullptr;  // [n_experts] or null
  std::int32_t* experts = nullptr;       // [n_rows, n_chosen]
  float* weights = nullptr;              // [n_rows, n_chosen]
};

void route(const RoutingArgs& args);

}  // namespace memoir::kernels::cpu
