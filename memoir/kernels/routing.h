#pragma once

// Which experts a token goes to, and with what weights, from its router's logits.

#include <mlx/array.h>

#include <optional>

namespace memoir::kernels {

/// How experts are chosen: the n_chosen with the largest scores, of equal ones the first.
struct Routing {
  enum class Score { kSoftmax, kSigmoid };

  Score score = Score::kSoftmax;  // of a logit, over all experts
  int n_chosen = 1;
  bool is_normalized = false;  // the weights of the chosen are divided by their sum
  float added_to_sum = 0;      // before that division
  float scale = 1;             // and multiplied by this after it

  /// Experts in equal groups; only those of the n_chosen_groups best groups can be chosen. A group's score is the sum
  /// of its two best (DeepSeek-V3, arXiv:2412.19437, 2.1.2). 1: no groups.
  int n_groups = 1;
  int n_chosen_groups = 1;

  std::optional<mlx::core::array> choice_biases = std::nullopt;  // [E], added to scores for choosing, not for weighing
  std::optional<mlx::core::array> expert_scales = std::nullopt;  // [E], multiply the weights at last
};

/// For each token the experts it goes to, best first, and their weights.
struct Routes {
  mlx::core::array experts;  // [..., k] int32, each 0 <= expert < E
  mlx::core::array weights;  // [..., k] float32
};

/// logits: [..., E] float. Lazy. On the CPU a token's routes depend on its own logits alone; logits that are not
/// numbers give experts all the same, with weights that are none. Throws std::invalid_argument if there are fewer
/// experts than n_chosen, or groups or arrays don't fit them.
Routes route(const mlx::core::array& logits, const Routing& routing);

}  // namespace memoir::kernels
