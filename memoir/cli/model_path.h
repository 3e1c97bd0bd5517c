#pragma once

// Where a model named on the command line lies.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "memoir/model/package.h"

namespace memoir::cli {

/// What --help says of -m.
inline constexpr const char* kModelHelp =
    "a model's directory, a .gguf file, or the NAME of one that memoir create made, or NAME.gguf, in\n"
    "$MEMOIR_MODELS, ~/.local/share/memoir/models or ../share/memoir/models beside the program";

/// Where models are looked for by name, in this order: $MEMOIR_MODELS; memoir/models in $XDG_DATA_HOME or
/// ~/.local/share; ../share/memoir/models beside the program; and, for a program in its build tree, the source tree's
/// models, which `make setup` fills. `memoir create` puts them into the first.
std::vector<std::filesystem::path> model_folders();

/// The path of a model: `name` itself if there is such a file or directory. Else the file <name>.gguf or <name> in the
/// first models folder that has it. Of a package (model/package.h) the model in it.
/// Throws UsageError if the name is empty, FileError naming the folders if it is nowhere, and what read_package throws.
std::filesystem::path resolve_model(const std::string& name);

/// What -m takes `name` for, a package as its folder; nullopt if it is nowhere. Throws UsageError if the name is empty.
std::optional<std::filesystem::path> known_model(const std::string& name);

/// The same, of a package its folder, as an error where it is nowhere: throws FileError naming the folders.
std::filesystem::path find_model(const std::string& name);

/// The package that the name means; nullopt for any other model. Throws as resolve_model.
std::optional<model::Package> find_package(const std::string& name);

/// The path of the running program. One implementation per system, chosen by CMake.
std::filesystem::path executable_path();

}  // namespace memoir::cli
