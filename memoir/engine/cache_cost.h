#pragma once

// What a sequence's cache costs, as an estimate before it exists. A value; no MLX.

#include <cstddef>

namespace memoir::engine {

struct CacheCost {
  std::size_t fixed_bytes = 0;      // whatever the length: recurrent states
  std::size_t bytes_per_token = 0;  // keys and values of all layers
  int step_tokens = 1;              // buffers grow by so many tokens at a time, >= 1

  /// Bytes for n_tokens >= 0; the largest std::size_t where they can't be counted.
  std::size_t bytes(int n_tokens) const;

  /// The most tokens whose cache takes no more than n_bytes, at most INT_MAX rounded down to whole steps.
  int tokens_within(std::size_t n_bytes) const;
};

}  // namespace memoir::engine
