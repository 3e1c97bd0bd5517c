#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "memoir/base/printable.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/model/registry.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

constexpr std::size_t kColumns = 6;
using Row = std::array<std::string, kColumns>;

std::vector<Row> rows() {
  std::vector<Row> all = {{"model_type", "models", "caches", "restarts at", "drafts", "GGUF"}};
  for (const model::FamilyInfo& family : model::families()) {
    all.push_back({std::string(family.model_type), std::string(family.models), std::string(family.caches),
                   family.rewinds_anywhere() ? "any token" : "snapshots", family.takes_drafts() ? "yes" : "no",
                   std::string(family.gguf)});
  }
  return all;
}

// Markdown, padded to be read as it is: docs/models.md has the same.
std::string table() {
  const std::vector<Row> all = rows();
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : all) {
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add = [&](const Row& row, char padding) {
    for (std::size_t i = 0; i < kColumns; ++i)
      text += "| " + row[i] + std::string(widths[i] - row[i].size(), padding) + " ";
    text += "|\n";
  };
  add(all.front(), ' ');
  add({}, '-');
  std::for_each(all.begin() + 1, all.end(), [&](const Row& row) { add(row, ' '); });
  return text;
}

std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const std::uint64_t n_bytes = fs::file_size(path, error);
    return error ? 0 : n_bytes;
  }
  std::uint64_t n_bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) n_bytes += entry.file_size(error);
  }
  return n_bytes;
}

std::string size_text(std::uint64_t n_bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f MB", static_cast<double>(n_bytes) / 1e6);
  return text.data();
}

// What -m takes by name; empty for what is no model.
std::string name_of(const fs::path& path) {
  std::error_code error;
  const std::string file = path.filename().string();
  if (file.starts_with('.')) return "";
  if (fs::is_directory(path, error)) {
    return model::is_package(path) || fs::exists(path / "config.json", error) ? file : "";
  }
  return path.extension() == ".gguf" ? path.stem().string() : "";
}

struct NamedModel {
  fs::path path;
  std::uint64_t size_bytes;
};

// Of several of one name the one that -m takes.
std::map<std::string, NamedModel> named_models() {
  std::map<std::string, NamedModel> models;
  for (const fs::path& folder : model_folders()) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      const std::string name = name_of(entry.path());
      if (name.empty()) continue;
      const auto found = models.find(name);
      const bool is_file_beside = found != models.end() &&
                                  found->second.path.parent_path() == entry.path().parent_path() &&
                                  !entry.is_directory(error);
      if (found == models.end() || is_file_beside)
        models.insert_or_assign(name, NamedModel{entry.path(), size_of(entry.path())});
    }
  }
  return models;
}

std::string names() {
  const std::map<std::string, NamedModel> models = named_models();
  std::size_t width = 0;
  for (const auto& [name, model] : models) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, model] : models) {
    const std::string size = size_text(model.size_bytes);
    const std::string blanks(size.size() < 12 ? 12 - size.size() : 1, ' ');
    text += printable(name) + std::string(width - name.size(), ' ') + blanks + size + "  " +
            printable(model.path.string(), 4096) + "\n";
  }
  return text.empty() ? text : "\n" + text;
}

std::string json_text_of_all() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const model::FamilyInfo& family : model::families()) {
    list.push_back({{"model_type", family.model_type},
                    {"models", family.models},
                    {"caches", family.caches},
                    {"rewinds_anywhere", family.rewinds_anywhere()},
                    {"takes_drafts", family.takes_drafts()},
                    {"gguf", family.gguf}});
  }
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const auto& [name, model] : named_models()) {
    models.push_back({{"name", name}, {"size_bytes", model.size_bytes}, {"path", model.path.string()}});
  }
  const nlohmann::ordered_json all = {{"families", std::move(list)}, {"models", std::move(models)}};
  return all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

void add_models_command(CLI::App& app, Action& action) {
  const auto is_json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "models", "the families there are and what each supports, and the models that -m knows by name");
  command->add_flag("--json", *is_json, "a JSON object instead of tables");
  command->callback([is_json, &action] {
    action = [is_json] {
      write_out(*is_json ? json_text_of_all() : table() + names());
      return kDone;
    };
  });
}

}  // namespace memoir::cli
