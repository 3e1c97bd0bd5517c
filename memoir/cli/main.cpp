#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "memoir/cli/commands.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"

namespace {

using namespace memoir::cli;

int report(const std::exception& error, int status) {
  std::cerr << "memoir: " << error.what() << '\n';
  return status;
}

int run(const Action& action) {
  try {
    return action();
  } catch (const UsageError& error) {
    return report(error, kWrongUsage);
  } catch (const std::exception& error) {
    return report(error, kFailed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ignore_broken_pipes();
  CLI::App app("memoir runs language models and never computes the same prefix twice.", "memoir");
  app.set_version_flag("--version", MEMOIR_VERSION);
  app.require_subcommand(0, 1);  // none is checked below: here it would hide the name of a command that isn't one
  app.get_formatter()->column_width(36);
  Action action;
  add_chat_command(app, action);
  add_generate_command(app, action);
  add_logits_command(app, action);
  add_tokenize_command(app, action);
  add_template_command(app, action);
  add_bench_command(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    return app.exit(request);  // --help and --version
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kWrongUsage;
  }
  if (!action) {
    std::cerr << "memoir: no command given\n\n" << app.help();
    return kWrongUsage;
  }
  return run(action);
}
