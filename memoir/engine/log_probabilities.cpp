#include "memoir/engine/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "memoir/engine/sampler.h"

namespace memoir::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

using Candidate = std::pair<TokenId, float>;

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.second != b.second ? a.second > b.second : a.first < b.first;
}

/// The n likeliest tokens with their logits, the likeliest first.
std::vector<Candidate> likeliest_tokens(std::span<const float> logits, std::size_t n) {
  std::vector<Candidate> heap;  // the least likely of the best so far in front
  for (std::size_t i = 0; i < logits.size() && n > 0; ++i) {
    const float logit = logits[i];
    if (std::isnan(logit) || logit == kNever) continue;
    // Ids ascend: an equal logit that comes later is less likely.
    if (heap.size() == n && !(logit > heap.front().second)) continue;
    if (heap.size() == n) {
      std::pop_heap(heap.begin(), heap.end(), is_likelier);
      heap.pop_back();
    }
    heap.emplace_back(static_cast<TokenId>(i), logit);
    std::push_heap(heap.begin(), heap.end(), is_likelier);
  }
  std::sort(heap.begin(), heap.end(), is_likelier);
  return heap;
}

}  // namespace

LogProbabilities log_probabilities(std::span<const float> logits, TokenId token, int n_likeliest) {
  if (n_likeliest < 0) {
    throw std::invalid_argument("[engine.log_probabilities] n_likeliest is " + std::to_string(n_likeliest) +
                                ", expected at least 0");
  }
  LogProbabilities result{log_probability(logits, token),
                          likeliest_tokens(logits, static_cast<std::size_t>(n_likeliest))};
  if (result.likeliest.empty()) return result;
  // The sum of the softmax is needed once: it is in the likeliest token's value, whose own logit drops out.
  const float largest = result.likeliest.front().second;
  const float base = log_probability(logits, result.likeliest.front().first);
  const auto value = [&](float logit) {
    return logit == largest ? base : static_cast<float>(static_cast<double>(logit) - largest + base);
  };
  for (Candidate& candidate : result.likeliest) candidate.second = value(candidate.second);
  // The same number for the same token in both places.
  const float logit = logits[static_cast<std::size_t>(token)];
  if (!std::isnan(logit)) result.of_token = value(logit);
  return result;
}

}  // namespace memoir::engine
