#pragma once

// The few types that every layer shares.
//
// Axis letters used in every header: B batch, H heads, T new tokens, S stored rows, D head size, V vocabulary.
// No state, any thread.

#include <cstdint>

namespace memoir {

/// A token of a model's vocabulary, 0 <= id < V. Negative values never name a token.
using TokenId = std::int32_t;

/// The largest V that is taken, of a file or a caller: some 16 times the largest there is. Sums of V weights in the
/// sampler's units of 2^-40 stay below 2^63.
inline constexpr std::int32_t kMaxVocab = 1 << 22;

}  // namespace memoir
