#include "memoir/engine/measured_cost.h"

#include <algorithm>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/layout.h"

namespace memoir::engine {

CacheCost measured_cost(const model::Model& model, const cache::CacheOptions& caches) {
  // Arrays know their size before they are computed, and these never are.
  return measured_cost(model.context(), [&](int n_tokens) {
    cache::ModelCache cache = model.make_cache(caches);
    model.forward(std::vector<TokenId>(static_cast<std::size_t>(n_tokens), 0), cache, model::LogitRows::kLast);
    return cache.size_bytes();
  });
}

CacheCost measured_cost(int context, const std::function<std::size_t(int n_tokens)>& bytes_for) {
  const int n_step = cache::Layout::kStep;
  const std::size_t one_step = bytes_for(1);
  // A context of one step and less is all that is ever asked for.
  const std::size_t two_steps = context > n_step ? bytes_for(n_step + 1) : one_step;
  const std::size_t per_token = (two_steps - one_step) / static_cast<std::size_t>(n_step);
  // A ring takes more for a moment when many tokens come at once: then nothing is left for what is fixed.
  const std::size_t step_bytes = per_token * static_cast<std::size_t>(n_step);
  return {one_step - std::min(one_step, step_bytes), per_token, n_step};
}

}  // namespace memoir::engine
