#pragma once

// Where a model named on the command line lies.

#include <filesystem>
#include <string>

namespace memoir::cli {

/// What --help says of -m.
inline constexpr const char* kModelHelp =
    "a model's directory, a .gguf file, or a NAME: NAME.gguf is looked for in $MEMOIR_MODELS and in "
    "../share/memoir/models beside the program";

/// The path of a model: `name` itself if there is such a file or directory. Else <name>.gguf or <name> in a models
/// folder, the first that has it of: $MEMOIR_MODELS, ../share/memoir/models beside the program, and, for a
/// program in its build tree, the source tree's models, which `make setup` fills.
/// Throws UsageError if the name is empty, FileError naming the folders if it is nowhere.
std::filesystem::path resolve_model(const std::string& name);

/// The path of the running program. One implementation per system, chosen by CMake.
std::filesystem::path executable_path();

}  // namespace memoir::cli
