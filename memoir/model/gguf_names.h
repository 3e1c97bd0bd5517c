#pragma once

// What llama.cpp's files call the parts of a model, in Hugging Face's words. No MLX.
//
// Source: gguf-py, constants.py and tensor_mapping.py; what keys mean where a file lacks them: llama.cpp's loading of
// each architecture.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "memoir/model/config.h"

namespace memoir::model {

/// Whether the names of the model type's tensors are known here.
bool has_gguf_names(std::string_view model_type);

/// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; nullopt for a name that llama.cpp does not have
/// for this type of model. Different names stay different.
std::optional<std::string> name_of_gguf_tensor(const std::string& gguf_name, std::string_view model_type);

/// ModelConfig::family_keys of a GGUF file: what config.raw says of them, and what llama.cpp has for what it does not
/// say. `config` is complete but for them.
nlohmann::json family_keys_of_gguf(const ModelConfig& config);

}  // namespace memoir::model
