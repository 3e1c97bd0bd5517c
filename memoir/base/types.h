#pragma once

// The few types that every layer shares.
//
// Axis letters used in every header: B batch, H heads, T new tokens, S stored rows, D head size, V vocabulary.

#include <cstdint>

namespace memoir {

/// A token of a model's vocabulary, 0 <= id < V. Negative values never name a token.
using TokenId = std::int32_t;

}  // namespace memoir
