#pragma once

// Which kind of attention each layer of a model has. No MLX.

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/model/config.h"

namespace memoir::model {

inline constexpr std::string_view kFullAttention = "full_attention";
inline constexpr std::string_view kSlidingAttention = "sliding_attention";
inline constexpr std::string_view kChunkedAttention = "chunked_attention";
inline constexpr std::string_view kLinearAttention = "linear_attention";  // a recurrent layer

/// A name for each layer: `layer_types` where the configuration has it, else what `otherwise` says of a layer's index.
/// Throws FormatError for a list of another length than n_layers, UnsupportedError for a name that is not in `known`.
std::vector<std::string> layer_pattern(const ModelConfig& config, std::initializer_list<std::string_view> known,
                                       const std::function<std::string_view(int)>& otherwise);

/// The pattern of models in which every `period`th layer sees everything and the others a window.
std::vector<std::string> sliding_pattern(const ModelConfig& config, int period);

/// The same with the period under the key sliding_window_pattern, which must be there where layer_types is not.
std::vector<std::string> sliding_pattern(const ModelConfig& config);

/// Which layers have experts: every decoder_sparse_step-th but those that mlp_only_layers names.
std::vector<bool> layers_with_experts(const ModelConfig& config);

/// How heads turn in layers of this type, where the configuration says so for each type; else `otherwise`.
RopeConfig rope_of_type(const ModelConfig& config, std::string_view layer_type, const RopeConfig& otherwise);

}  // namespace memoir::model
