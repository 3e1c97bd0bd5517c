#pragma once

// A prefix cache in numbers, for metrics.

#include <cstddef>
#include <cstdint>

namespace memoir::engine {

/// Of what is kept for later requests.
struct PrefixCacheCounts {
  std::size_t bytes = 0;              // in memory
  std::uint64_t directory_bytes = 0;  // of all that is in its directory, if it has one
  std::uint64_t n_lookups = 0;        // since the start, as the next two
  std::uint64_t n_hits = 0;           // lookups that found a beginning
  std::uint64_t n_evicted_bytes = 0;  // from memory, to make room
};

}  // namespace memoir::engine
