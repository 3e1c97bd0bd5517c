#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "memoir/cli/commands.h"
#include "memoir/cli/report.h"
#include "memoir/cli/signals.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"

namespace {

using namespace memoir::cli;

int run(const Action& action) {
  try {
    return action();
  } catch (const UsageError& error) {
    report(error);
    return kWrongUsage;
  } catch (const std::exception& error) {
    report(error);
    return kFailed;
  }
}

std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  const std::vector<CLI::App*> commands = app->get_subcommands();
  const std::string command = commands.empty() ? "" : " " + commands.front()->get_name();
  return std::string("memoir: ") + error.what() + "\nmemoir" + command + " --help tells more.\n";
}

// What CLI11 makes of a parse that ended early: --help and --version, or wrong usage.
int finish_parse(const CLI::App& app, const CLI::ParseError& outcome) {
  std::ostringstream out;
  const int status = app.exit(outcome, out, std::cerr);
  if (status != 0) return kWrongUsage;
  return run([&] {
    write_out(out.str());
    return kDone;
  });
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("memoir runs language models and never computes the same prefix twice.", "memoir");
  app.set_version_flag("--version", MEMOIR_VERSION);
  app.require_subcommand(0, 1);  // none is checked below: here it would hide the name of a command that isn't one
  app.get_formatter()->column_width(36);
  app.failure_message(usage_message);
  Action action;
  add_chat_command(app, action);
  add_generate_command(app, action);
  add_logits_command(app, action);
  add_tokenize_command(app, action);
  add_template_command(app, action);
  add_bench_command(app, action);
  add_cache_command(app, action);
  add_serve_command(app, action);
  add_create_command(app, action);
  add_models_command(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& outcome) {
    return finish_parse(app, outcome);
  }
  if (!action) {
    std::cerr << "memoir: no command given\n\n" << app.help();
    return kWrongUsage;
  }
  return run(action);
}

}  // namespace

int main(int argc, char** argv) {
  prepare_standard_streams();
  const int status = parse_and_run(argc, argv);
  // Not by return: OpenBLAS would wait for its threads, and one that can't have the memory it wants asks for it
  // forever.
  std::cerr.flush();
  std::fflush(nullptr);
  if (status > kSignalled) end_by_signal(status - kSignalled);
  std::_Exit(status);
}
