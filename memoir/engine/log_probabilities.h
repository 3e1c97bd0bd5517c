#pragma once

// Log probabilities of a model's choice, as servers report them. Host memory only, no state, any thread.

#include <span>
#include <utility>
#include <vector>

#include "memoir/base/types.h"

namespace memoir::engine {

struct LogProbabilities {
  float of_token;
  std::vector<std::pair<TokenId, float>> likeliest;  // the likeliest first, equals by id
};

/// ln softmax(logits) at temperature 1, of one token and of the n_likeliest likeliest; those that can't be chosen
/// (-inf, NaN) are left out of the latter. Agrees with log_probability() of sampler.h up to float rounding.
/// Throws std::invalid_argument if `token` is outside the logits or n_likeliest is negative, std::runtime_error if
/// every logit is -inf or NaN. Cost: O(V log n_likeliest).
LogProbabilities log_probabilities(std::span<const float> logits, TokenId token, int n_likeliest);

}  // namespace memoir::engine
