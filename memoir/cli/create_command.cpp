#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/report.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/assistant_drafter.h"
#include "memoir/model/load.h"
#include "memoir/model/package.h"

namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

constexpr std::uint64_t kMaxModelfileBytes = 16 << 20;

struct CreateArguments {
  std::string name;
  std::string file = "Modelfile";
  std::string quantize;
  std::string draft_quantize;
};

std::optional<int> bits_of(const std::string& option) {
  return option.empty() ? std::nullopt : std::optional(option == "q4" ? 4 : 8);
}

// FROM or DRAFT in its Modelfile.
struct Source {
  std::string modelfile;
  std::string line;
  std::string command;  // with the value

  Source(std::string file, int number, const std::string& name, const std::string& value)
      : modelfile(std::move(file)), line("line " + std::to_string(number)), command(name + " " + value) {}

  std::string text() const { return modelfile + ": " + line + ": " + command; }
};

// A path beside the Modelfile, else what -m takes; what it leads to is there.
fs::path path_of(const std::string& value, const Source& source) {
  const fs::path beside = fs::path(source.modelfile).parent_path() / value;
  try {
    fs::path path = entry_exists(beside) ? resolve_model(beside.string()) : resolve_model(value);
    existing_status(path);
    return path;
  } catch (const FileError& error) {
    throw FileError(source.modelfile, source.line,
                    source.command + ": " + (error.path() == value ? error.reason() : error.what()));
  }
}

// Before anything is copied: what they say of themselves is what can be run.
void check_kinds(const fs::path& from, const std::optional<fs::path>& draft) {
  model::read_model_config(from);
  if (draft && !model::is_gemma4_assistant(*draft)) model::read_model_config(*draft);
}

// What is in the folder can be run.
void check_package(const model::Package& package, const std::string& draft) {
  const model::LoadedModel model = model::load_model(package.model);
  for (const std::string& note : model.notes) report(note);
  if (!package.draft) return;
  if (model::is_gemma4_assistant(*package.draft)) {
    model::load_gemma4_assistant(*package.draft)->check_fits(*model.model);
    return;
  }
  check_same_vocabulary(model, model::load_model(*package.draft), draft);
}

int run_create(const CreateArguments& arguments) {
  if (!model::is_package_name(arguments.name)) {
    throw UsageError("'" + arguments.name +
                     "' is no name: letters, digits, '.', '_' and '-', at most 100, and no .gguf at the end");
  }
  if (const std::optional<fs::path> known = known_model(arguments.name)) {
    throw FileError(
        known->string(), "",
        "there is such a model already, which -m " + arguments.name + " means: take another name, or remove it");
  }
  const fs::path file = arguments.file;
  model::PackageRequest request;
  model::ModelfileLines lines;
  request.modelfile = model::parse_modelfile(read_text_file(file, kMaxModelfileBytes), arguments.file, &lines);
  for (const std::string& note : request.modelfile.notes) report(arguments.file + ": " + note);
  if (!arguments.draft_quantize.empty() && !request.modelfile.draft) {
    throw UsageError("--draft-quantize: " + arguments.file + " has no DRAFT");
  }
  request.name = arguments.name;
  request.folder = model_folders().front();
  const Source from(arguments.file, lines.from, "FROM", request.modelfile.from);
  const Source draft(arguments.file, lines.draft, "DRAFT", request.modelfile.draft.value_or(""));
  request.from = path_of(request.modelfile.from, from);
  if (request.modelfile.draft) request.draft = path_of(*request.modelfile.draft, draft);
  if (request.draft && fs::equivalent(request.from, *request.draft)) {
    throw FormatError(draft.modelfile, draft.line, draft.command + ": is the same model as FROM");
  }
  check_kinds(request.from, request.draft);
  request.bits = bits_of(arguments.quantize);
  request.draft_bits = bits_of(arguments.draft_quantize);
  request.check = [&](const model::Package& package) { check_package(package, draft.text()); };
  request.announce = [](const fs::path& path) { write_out(path.string() + "\n"); };
  model::create_package(request);
  return kDone;
}

}  // namespace

void add_create_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<CreateArguments>();
  CLI::App* command = app.add_subcommand("create", "make a model of a Modelfile, for -m NAME");
  command->add_option("name", arguments->name, "what -m will call it")->type_name("NAME")->required();
  command->add_option("-f,--file", arguments->file, "FROM, DRAFT, PARAMETER, TEMPLATE, SYSTEM, MESSAGE, LICENSE")
      ->type_name("Modelfile")
      ->capture_default_str();
  const auto bits = [&](const char* name, std::string& value, const char* help) {
    command->add_option(name, value, help)->check(CLI::IsMember({"q4", "q8"}))->type_name("q4|q8");
  };
  bits("--quantize", arguments->quantize, "quantize the model's matrices to 4 or 8 bits");
  bits("--draft-quantize", arguments->draft_quantize, "and those of DRAFT");
  command->footer("The model is copied into $MEMOIR_MODELS, else ~/.local/share/memoir/models (or $XDG_DATA_HOME).");
  command->callback([arguments, &action] { action = [arguments] { return run_create(*arguments); }; });
}

}  // namespace memoir::cli
