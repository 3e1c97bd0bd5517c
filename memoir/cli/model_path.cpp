#include "memoir/cli/model_path.h"

#include <cstdlib>
#include <system_error>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/cli/status.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

std::string how_to_name_one(const std::string& name) {
  const std::string file = name.ends_with(".gguf") ? name : name + ".gguf";
  return "Name a .gguf file or a model's directory with -m, or set MEMOIR_MODELS to the folder that has " + file +
         "; `make setup` in a checkout of memoir puts smollm2 into its models/";
}

// Where people's data lie, after the XDG base directory specification; nullopt without a home.
std::optional<fs::path> data_folder() {
  if (const char* folder = std::getenv("XDG_DATA_HOME"); folder && *folder) return folder;
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".local" / "share";
  return std::nullopt;
}

}  // namespace

std::vector<fs::path> model_folders() {
  std::vector<fs::path> folders;
  if (const char* folder = std::getenv("MEMOIR_MODELS"); folder && *folder) folders.emplace_back(folder);
  if (const auto folder = data_folder()) folders.push_back(*folder / "memoir" / "models");
  const fs::path prefix = executable_path().parent_path().parent_path();
  folders.push_back(prefix / "share" / "memoir" / "models");
  // In a build tree, <source>/build/<preset>/bin, the source tree's models.
  std::error_code error;
  if (fs::exists(prefix / "CMakeCache.txt", error)) {
    folders.push_back(prefix.parent_path().parent_path() / "models");
  }
  return folders;
}

std::optional<fs::path> known_model(const std::string& name) {
  if (name.empty()) throw UsageError("--model: the path is empty");
  if (entry_exists(name)) return name;
  if (fs::path(name).filename() != name) return std::nullopt;
  for (const fs::path& folder : model_folders()) {
    const fs::path file = folder / (name + ".gguf");
    std::error_code ignored;
    if (entry_exists(file) && !fs::is_directory(file, ignored)) return file;
    if (entry_exists(folder / name)) return folder / name;
  }
  return std::nullopt;
}

fs::path find_model(const std::string& name) {
  if (const std::optional<fs::path> path = known_model(name)) return *path;
  if (fs::path(name).filename() != name) throw FileError(name, "", "no such file or directory");
  std::string searched;
  for (const fs::path& folder : model_folders()) searched += (searched.empty() ? "" : ", ") + folder.string();
  throw FileError(name, "", "no such file or directory, nor a model in " + searched + ". " + how_to_name_one(name));
}

fs::path resolve_model(const std::string& name) {
  const fs::path path = find_model(name);
  return model::is_package(path) ? model::read_package(path).model : path;
}

std::optional<model::Package> find_package(const std::string& name) {
  const fs::path path = find_model(name);
  return model::is_package(path) ? std::optional(model::read_package(path)) : std::nullopt;
}

}  // namespace memoir::cli
