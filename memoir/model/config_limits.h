#pragma once

// What both readers of configurations (JSON, GGUF) hold sizes against, besides kMaxVocab (base/types.h). Far above any
// model there is, low enough that products of a few of them stay inside 64 bits.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "memoir/model/config.h"

namespace memoir::model {

inline constexpr std::int64_t kMaxLayers = 10000;
inline constexpr std::int64_t kMaxHiddenSize = 1 << 20;
inline constexpr std::int64_t kMaxIntermediateSize = 1 << 24;
inline constexpr std::int64_t kMaxHeads = 1 << 16;
inline constexpr std::int64_t kMaxExperts = 1 << 16;
inline constexpr std::int64_t kMaxHeadDim = 1 << 16;
inline constexpr std::int64_t kMaxPosition = 1 << 30;

/// Models that have neither heads nor a feed-forward width nor a bound on positions.
bool is_attention_free(std::string_view model_type);

/// Models in which every layer has experts: they have no width of a feed-forward for all tokens.
bool has_experts_alone(std::string_view model_type);

/// What the keys are called in the file at hand, for messages.
struct ConfigKeys {
  std::string heads;
  std::string kv_heads;
  std::string head_dim;
  std::string rope;
};

/// Whether heads, their size and the rotated part of them fit together. Throws FormatError.
void check_heads(const ModelConfig& config, const ConfigKeys& keys);

/// Whether a constant that must be above 0 is so in float32, which kernels compute in. False for NaN.
constexpr bool is_positive_float(double value) {
  return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
}

}  // namespace memoir::model
