#pragma once

// What keys mean that a config.json leaves out: the defaults of transformers' configuration classes.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace memoir::model {

/// The defaults of a model type, an empty object for a type without any of its own. Without the sizes that every
/// published file of the type has.
const nlohmann::json& config_defaults(std::string_view model_type);

/// The type of a text part where a file has that of the whole ("gemma3" -> "gemma3_text"); else as it is.
std::string text_part_type(const std::string& model_type);

/// `text` with the defaults for what it has not. A null stays null: it overrides a default, as in transformers, but
/// for the RoPE keys. Values under other names of a key (transformers' attribute_map) come under the key. `outer`, the
/// object around a text_config or null, keeps its say about tokens and tied embeddings.
nlohmann::json with_defaults(std::string_view model_type, const nlohmann::json& text, const nlohmann::json* outer);

}  // namespace memoir::model
