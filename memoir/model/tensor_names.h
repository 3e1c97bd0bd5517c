#pragma once

// What tensors are called: the spellings of one model's weights in safetensors files. No MLX.

#include <optional>
#include <string>
#include <string_view>

namespace memoir::model {

/// The name that a tensor of a multimodal model's language part has in the language model alone; nullopt for a tensor
/// of a part for other media. "language_model.model.X", "model.language_model.X" and "model.X" are "model.X".
std::optional<std::string> text_tensor_name(std::string_view name);

}  // namespace memoir::model
