#pragma once

// What the server knows of the model it serves. No MLX: the engine has the model itself.
//
// Threads: read only once it is made.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/engine/grammar_processor.h"
#include "memoir/server/tool_calls.h"
#include "memoir/text/chat_template.h"
#include "memoir/text/tokenizer.h"

namespace memoir::server {

struct ModelDetails {
  std::string family;  // "llama"
  std::string format;  // "gguf" or "safetensors"
  std::string parameter_size;
  std::string quantization;
  std::uint64_t size_bytes = 0;
  std::uint64_t n_parameters = 0;  // 0: not known
  std::chrono::system_clock::time_point modified;
};

/// A model as lists show it, loaded or not.
struct ListedModel {
  std::string name;
  ModelDetails details;
};

class ServedModel {
 public:
  struct Inputs {
    std::string name;
    text::Tokenizer tokenizer;
    std::vector<TokenId> end_tokens;
    int context;  // in tokens
    int n_vocab;  // of the logits: the tokenizer may have fewer
    ModelDetails details;
    int n_embedding = 0;  // values of an embedding
  };

  /// Parses the tokenizer's chat template, if it has one. Throws as text::ChatTemplate.
  explicit ServedModel(Inputs inputs);

  const std::string& name() const { return inputs_.name; }
  const text::Tokenizer& tokenizer() const { return inputs_.tokenizer; }
  const std::vector<TokenId>& end_tokens() const { return inputs_.end_tokens; }
  int context() const { return inputs_.context; }
  int n_vocab() const { return inputs_.n_vocab; }
  int n_embedding() const { return inputs_.n_embedding; }
  const ModelDetails& details() const { return inputs_.details; }

  /// Null for a model without one.
  const text::ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }

  /// Whether the template itself shows tools to the model.
  bool template_has_tools() const { return template_has_tools_; }
  ToolFormat tool_format() const { return tool_format_; }
  /// Whether the model may think between <think> and </think>.
  bool may_think() const { return may_think_; }

  /// The vocabulary's bytes, made once when first asked for (some tenths of a second for a large one). Any thread.
  std::shared_ptr<const engine::JsonVocabulary> json_vocabulary() const;

  /// If `name` means this model: its name, with or without ":latest", or nothing.
  bool is_named(const std::string& name) const;

 private:
  struct LazyVocabulary;

  Inputs inputs_;
  std::optional<text::ChatTemplate> template_;
  bool template_has_tools_ = false;
  bool may_think_ = false;
  ToolFormat tool_format_ = ToolFormat::kHermes;
  std::shared_ptr<LazyVocabulary> vocabulary_;
};

}  // namespace memoir::server
