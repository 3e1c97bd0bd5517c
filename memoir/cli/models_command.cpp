#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "memoir/cli/commands.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/model/registry.h"

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

std::string json_lines() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const model::FamilyInfo& family : model::families()) {
    list.push_back({{"model_type", family.model_type},
                    {"models", family.models},
                    {"caches", family.caches},
                    {"rewinds_anywhere", family.rewinds_anywhere()},
                    {"takes_drafts", family.takes_drafts()},
                    {"gguf", family.gguf}});
  }
  return list.dump(1) + "\n";
}

}  // namespace

void add_models_command(CLI::App& app, Action& action) {
  const auto is_json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("models", "the families of models there are, and what each supports");
  command->add_flag("--json", *is_json, "a JSON array instead of a table");
  command->callback([is_json, &action] {
    action = [is_json] {
      write_out(*is_json ? json_lines() : table());
      return kDone;
    };
  });
}

}  // namespace memoir::cli
