#pragma once

// The caches of a model sorted by what the prefix cache can keep of them (payload.h): flat keys and values as rows, all
// others (ring, chunk, recurrent, any array) as checkpoints. Lists of caches are taken apart, so that a layer with
// attention beside a recurrence has a part in both. A companion (companion.h) has a part behind them in both.
//
// Ownership: refers to the ModelCache. Threads: as that.

#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/kv.h"
#include "memoir/prefix/companion.h"
#include "memoir/prefix/policy.h"
#include "memoir/prefix/trie.h"

namespace memoir::prefix {

struct CacheParts {
  std::vector<cache::KVCache*> flat;
  std::vector<cache::LayerCache*> others;
  Companion* companion = nullptr;  // of a sequence that runs, where there is one

  Needs needs() const { return {!flat.empty(), !others.empty()}; }
};

/// Always in the same order for one model.
CacheParts parts_of(const cache::ModelCache& cache);

/// What a position's rows take in all flat parts, and what a checkpoint of the others takes once rings are full, judged
/// by a cache that has taken in a token, computed or not.
StateSize state_size(const cache::ModelCache& cache);

}  // namespace memoir::prefix
