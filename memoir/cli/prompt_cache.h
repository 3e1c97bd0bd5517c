#pragma once

// --prompt-cache: a session that begins with what a file holds, and is written back to it.

#include <CLI/CLI.hpp>
#include <string>

#include "memoir/cache/prompt_file.h"
#include "memoir/engine/session.h"

namespace memoir::cli {

class PromptCache {
 public:
  void add_to(CLI::App& command);

  bool is_used() const { return !path_.empty(); }

  /// Where the option is used: looks at the file, before the model is loaded. `model` is as -m has it.
  /// Throws UsageError or FileError if it can't be written, and what load_prompt_file throws; UnsupportedError if it is
  /// of another model, or does not say of which or of which tokens.
  void open(const std::string& model);

  /// Hands what was found over to the session. Throws UnsupportedError if the model can't use it.
  void load_into(engine::Session& session);

  /// Writes the session's cache. Does nothing where the option isn't used or the session is empty.
  void save(const engine::Session& session) const;

 private:
  std::string path_;
  cache::PromptMetadata metadata_;  // to be written
  std::optional<cache::PromptFile> found_;
};

}  // namespace memoir::cli
