#pragma once

// What llama.cpp's files call the parts of a model, in Hugging Face's words. No MLX.
//
// Source: gguf-py, constants.py and tensor_mapping.py.

#include <optional>
#include <string>
#include <string_view>

#include "memoir/model/config.h"

namespace memoir::model {

/// Whether the names of the model type's tensors are known here.
bool has_gguf_names(std::string_view model_type);

/// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; nullopt for a name that llama.cpp does not have
/// for this type of model. Different names stay different. What lies in blocks behind the model's layers, where the
/// file says that there are some (nextn_predict_layers), is under "mtp.", as Qwen's checkpoints have it.
std::optional<std::string> name_of_gguf_tensor(const std::string& gguf_name, const ModelConfig& config);

}  // namespace memoir::model
