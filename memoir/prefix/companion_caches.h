#pragma once

// How the caches of a drafter's companion (companion.h) are made. No MLX in this header.

#include <functional>

namespace memoir::cache {
class ModelCache;
}

namespace memoir::prefix {

/// The caches that a companion's rows and state are restored into: a flat KVCache and a RecurrentCache, in this order.
struct CompanionCaches {
  std::function<cache::ModelCache()> make;     // empty
  std::function<cache::ModelCache()> example;  // that has taken in a token; not computed
};

}  // namespace memoir::prefix
