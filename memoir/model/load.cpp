#include "memoir/model/load.h"

#include <mlx/memory.h>

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/gguf.h"
#include "memoir/model/config.h"
#include "memoir/model/gemma4_assistant.h"
#include "memoir/model/gguf_names.h"
#include "memoir/model/weights.h"

namespace fs = std::filesystem;
namespace mx = mlx::core;

namespace memoir::model {
namespace {

bool is_model_directory(const fs::path& path) {
  return fs::is_directory(existing_status(path));
}

// The union of what configuration and tokenizer know, without tokens the model has no logits for.
std::vector<TokenId> end_tokens(const ModelConfig& config, const std::optional<text::Tokenizer>& tokenizer) {
  std::vector<TokenId> ids = config.eos_ids;
  if (tokenizer) {
    const std::vector<TokenId> more = tokenizer->end_tokens();
    ids.insert(ids.end(), more.begin(), more.end());
  }
  std::erase_if(ids, [&](TokenId id) { return id < 0 || id >= config.vocab_size; });
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Being made by another thread while this one reads weights: it takes a fifth of the time that these do.
using ComingTokenizer = std::future<std::optional<text::Tokenizer>>;

LoadedModel assemble(const ModelConfig& config, Weights& weights, ComingTokenizer coming) {
  LoadedModel loaded;
  loaded.model = make_model(config, weights);
  mx::clear_cache();  // of what was read on the way to packed weights: as large as the largest of them
  std::optional<text::Tokenizer> tokenizer = coming.get();
  loaded.end_tokens = end_tokens(config, tokenizer);
  loaded.notes = weights.notes();
  if (tokenizer) {
    const std::vector<std::string>& warnings = tokenizer->warnings();
    loaded.notes.insert(loaded.notes.end(), warnings.begin(), warnings.end());
  }
  loaded.tokenizer = std::move(tokenizer);
  return loaded;
}

ModelConfig directory_config(const fs::path& path) {
  if (is_gemma4_assistant(path)) {
    throw UnsupportedError((path / "config.json").string(), "model_type",
                           "'gemma4_assistant' guesses tokens for a Gemma 4 model and writes no text of its own");
  }
  return read_config(path, check_supported);
}

ModelConfig gguf_config(const GgufFile& file, const fs::path& path) {
  ModelConfig config = config_from_gguf(file, check_supported);
  if (!has_gguf_names(config.model_type)) {
    throw UnsupportedError(path.string(), "general.architecture",
                           "\"" + *file.string("general.architecture") + "\" can only be read from safetensors files");
  }
  return config;
}

LoadedModel load_directory(const fs::path& path) {
  const ModelConfig config = directory_config(path);
  ComingTokenizer tokenizer = std::async([path]() -> std::optional<text::Tokenizer> {
    if (!entry_exists(path / "tokenizer.json")) return std::nullopt;
    return text::Tokenizer::from_directory(path);
  });
  return assemble(config, *open_safetensors_weights(path, config), std::move(tokenizer));
}

LoadedModel load_gguf(const fs::path& path) {
  auto file = std::make_shared<const GgufFile>(GgufFile::open(path));
  const ModelConfig config = gguf_config(*file, path);
  // Made from the file's metadata, which is in memory.
  ComingTokenizer tokenizer = std::async([file] { return std::optional(text::Tokenizer::from_gguf(*file)); });
  return assemble(config, *open_gguf_weights(std::move(file), config), std::move(tokenizer));
}

}  // namespace

LoadedModel load_model(const fs::path& path) {
  return is_model_directory(path) ? load_directory(path) : load_gguf(path);
}

ModelConfig read_model_config(const fs::path& path) {
  return is_model_directory(path) ? directory_config(path) : gguf_config(GgufFile::open(path), path);
}

text::Tokenizer load_tokenizer(const fs::path& path) {
  if (is_model_directory(path)) return text::Tokenizer::from_directory(path);
  return text::Tokenizer::from_gguf(GgufFile::open(path));
}

}  // namespace memoir::model
