#pragma once

// Checks of texts on the command line.

#include <CLI/CLI.hpp>
#include <string>

namespace memoir::cli {

/// A text that is not empty, for options whose absence means something else: --prefix-cache-dir "$DIR" with DIR unset
/// is a slip. For Option::check.
inline CLI::Validator not_empty() {
  return CLI::Validator([](const std::string& text) { return text.empty() ? "the text is empty" : std::string(); }, "");
}

}  // namespace memoir::cli
