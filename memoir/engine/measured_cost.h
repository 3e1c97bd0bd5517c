#pragma once

// What a sequence's cache costs, asked of caches themselves, whatever their layers keep.

#include <cstddef>
#include <functional>

#include "memoir/cache/kv.h"
#include "memoir/engine/cache_cost.h"
#include "memoir/model/model.h"

namespace memoir::engine {

/// Of caches that model.make_cache(caches) makes. Computes nothing.
CacheCost measured_cost(const model::Model& model, const cache::CacheOptions& caches);

/// bytes_for: what a cache takes with so many tokens, at least one. context: the most that there are.
CacheCost measured_cost(int context, const std::function<std::size_t(int n_tokens)>& bytes_for);

}  // namespace memoir::engine
