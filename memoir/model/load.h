#pragma once

// A model as a user names it, a directory or a file, loaded with all that belongs to it.
// Threads: load_model on the thread that owns MLX's work; load_tokenizer on any. Ownership: a LoadedModel owns all of
// its parts, which don't refer to each other.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/model/model.h"
#include "memoir/text/tokenizer.h"

namespace memoir::model {

struct LoadedModel {
  std::unique_ptr<Model> model;
  std::optional<text::Tokenizer> tokenizer;  // nullopt for a directory without tokenizer.json
  std::vector<TokenId> end_tokens;           // every token that ends a turn, from configuration and tokenizer
  std::vector<std::string> notes;            // what a user should know about how the files were read
};

/// Loads a directory in Hugging Face or MLX layout (config.json, safetensors, tokenizer.json) or a .gguf file.
/// Throws FileError, FormatError or UnsupportedError with the file and key at fault.
LoadedModel load_model(const std::filesystem::path& path);

/// The configuration alone, of a model that load_model would go on to read. Throws as that.
ModelConfig read_model_config(const std::filesystem::path& path);

/// The tokenizer alone, without reading the weights. Throws as load_model, and FileError if there is none.
text::Tokenizer load_tokenizer(const std::filesystem::path& path);

}  // namespace memoir::model
