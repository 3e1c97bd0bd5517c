#include "memoir/kernels/cpu/routing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace memoir::kernels::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Scores of all experts of a row.
void score_row(const RoutingArgs& args, const float* logits, std::vector<float>& scores) {
  if (args.is_sigmoid) {
    std::transform(logits, logits + args.n_experts, scores.begin(), [](float z) { return 1 / (1 + std::exp(-z)); });
    return;
  }
  const float largest = *std::max_element(logits, logits + args.n_experts);
  float sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = std::exp(logits[i] - largest);
    sum += scores[i];
  }
  for (float& score : scores) score /= sum;
}

// The first of the largest among those not yet taken. Of values that aren't numbers any may be it.
int take_best(std::vector<float>& values, std::vector<char>& is_taken) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (!is_taken[at] && (best < 0 || values[at] > values[static_cast<std::size_t>(best)])) best = i;
  }
  is_taken[static_cast<std::size_t>(best)] = 1;
  return best;
}

float sum_of_two_best(const float* values, int n) {
  float best = kLowest;
  float second = kLowest;
  for (int i = 0; i < n; ++i) {
    if (values[i] > best) {
      second = best;
      best = values[i];
    } else if (values[i] > second) {
      second = values[i];
    }
  }
  return best + second;
}

// Marks the experts of all but the best groups as taken.
void take_other_groups(const RoutingArgs& args, const std::vector<float>& choice, std::vector<char>& is_taken) {
  const int n_in_group = args.n_experts / args.n_groups;
  std::vector<float> group_scores;
  for (int g = 0; g < args.n_groups; ++g) {
    group_scores.push_back(sum_of_two_best(choice.data() + static_cast<std::ptrdiff_t>(g) * n_in_group, n_in_group));
  }
  std::vector<char> is_chosen(group_scores.size());
  for (int i = 0; i < args.n_chosen_groups; ++i) take_best(group_scores, is_chosen);
  for (int i = 0; i < args.n_experts; ++i) {
    is_taken[static_cast<std::size_t>(i)] = is_chosen[static_cast<std::size_t>(i / n_in_group)] ? 0 : 1;
  }
}

void weigh(const RoutingArgs& args, const std::int32_t* experts, float* weights) {
  float sum = args.added_to_sum;
  for (int i = 0; i < args.n_chosen; ++i) sum += weights[i];
  for (int i = 0; i < args.n_chosen; ++i) {
    if (args.is_normalized) weights[i] /= sum;
    weights[i] *= args.scale;
    if (args.expert_scales) weights[i] *= args.expert_scales[experts[i]];
  }
}

}  // namespace

void route(const RoutingArgs& args) {
  const auto n_experts = static_cast<std::size_t>(args.n_experts);
  std::vector<float> scores(n_experts);
  std::vector<float> choice(n_experts);
  std::vector<char> is_taken(n_experts);
  for (std::ptrdiff_t row = 0; row < args.n_rows; ++row) {
    const float* logits = args.logits + row * args.n_experts;
    std::int32_t* experts = args.experts + row * args.n_chosen;
    float* weights = args.weights + row * args.n_chosen;
    score_row(args, logits, scores);
    // Without biases the order of the logits, in which none are equal that differ.
    for (std::size_t i = 0; i < n_experts; ++i) {
      choice[i] = args.choice_biases ? scores[i] + args.choice_biases[i] : logits[i];
    }
    std::fill(is_taken.begin(), is_taken.end(), 0);
    if (args.n_groups > 1) take_other_groups(args, choice, is_taken);
    for (int i = 0; i < args.n_chosen; ++i) {
      experts[i] = take_best(choice, is_taken);
      weights[i] = scores[static_cast<std::size_t>(experts[i])];
    }
    weigh(args, experts, weights);
  }
}

}  // namespace memoir::kernels::cpu
