#include <memory>

#include "memoir/base/error.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/messages_file.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/model/load.h"
#include "memoir/text/chat_template.h"

namespace memoir::cli {
namespace {

struct TemplateArguments {
  std::string model;
  std::string file;
};

int run_template(const TemplateArguments& arguments) {
  text::Tokenizer tokenizer = model::load_tokenizer(resolve_model(arguments.model));
  const std::optional<model::Package> package = find_package(arguments.model);
  if (package && package->modelfile.chat_template) tokenizer.use_chat_template(*package->modelfile.chat_template);
  if (!tokenizer.chat_template()) throw UnsupportedError(arguments.model, "chat_template", "the model has none");
  const text::ChatTemplate chat_template(*tokenizer.chat_template());
  write_out(chat_template.render(read_messages_file(arguments.file, tokenizer)));
  return kDone;
}

}  // namespace

void add_template_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<TemplateArguments>();
  CLI::App* command = app.add_subcommand("template", "render a chat as the text the model reads");
  command->add_option("-m,--model", arguments->model, kModelHelp)->type_name("MODEL")->required();
  command
      ->add_option("file", arguments->file,
                   "{\"messages\": [...], \"tools\": [...]}; other keys are variables; - is stdin")
      ->type_name("FILE.json")
      ->required();
  command->callback([arguments, &action] { action = [arguments] { return run_template(*arguments); }; });
}

}  // namespace memoir::cli
