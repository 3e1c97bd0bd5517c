#pragma once

// The subcommands, one file each. Each function adds one to the app; parsing it leaves in `action` what to run, which
// returns the exit status or throws.

#include <CLI/CLI.hpp>
#include <functional>

namespace memoir::cli {

using Action = std::function<int()>;

void add_chat_command(CLI::App& app, Action& action);
void add_generate_command(CLI::App& app, Action& action);
void add_logits_command(CLI::App& app, Action& action);
void add_tokenize_command(CLI::App& app, Action& action);
void add_template_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);
void add_cache_command(CLI::App& app, Action& action);
void add_serve_command(CLI::App& app, Action& action);
void add_create_command(CLI::App& app, Action& action);
void add_models_command(CLI::App& app, Action& action);

}  // namespace memoir::cli
