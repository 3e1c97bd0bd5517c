#pragma once

// What the metadata of llama.cpp's files say of a family's own keys, in Hugging Face's words. No MLX.
//
// Source: convert_hf_to_gguf.py; what keys mean where a file lacks them: llama.cpp's loading of each architecture.

#include <nlohmann/json.hpp>
#include <string_view>

#include "memoir/base/gguf.h"
#include "memoir/model/config.h"

namespace memoir::model {

/// Value head h of a gated delta rule goes with key head h % (number of key heads), rather than with its neighbours:
/// llama.cpp's converter orders Qwen3.5's value heads so. A key that only family_keys_of_gguf() sets.
inline constexpr std::string_view kTiledValueHeads = "linear_tiled_value_heads";

/// ModelConfig::family_keys of a GGUF file: what config.raw and the file's tensors say of them, and what llama.cpp has
/// for what they do not say. `config` is complete but for them. UnsupportedError for what a family can't run.
nlohmann::json family_keys_of_gguf(const ModelConfig& config, const GgufFile& file);

bool has_tensor(const GgufFile& file, std::string_view name);

/// Whether a tensor's name ends with this, in any block.
bool has_tensor_like(const GgufFile& file, std::string_view ending);

}  // namespace memoir::model
