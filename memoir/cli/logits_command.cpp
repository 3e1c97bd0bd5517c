#include <mlx/io.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "memoir/base/error.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/session.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::cli {
namespace {

struct LogitsArguments {
  RunOptions run;
  std::string tokens;
  std::string output;
  int chunk = 0;  // 0: all tokens at once
};

// Written aside and renamed, so that a failure leaves no half file behind.
void write_logits(const fs::path& path, const mx::array& logits) {
  const fs::path aside = path.string() + ".part.safetensors";
  try {
    mx::save_safetensors(aside.string(), {{"logits", logits}});
    fs::rename(aside, path);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove(aside, ignored);
    throw FileError(path.string(), "", std::string("can't write: ") + error.what());
  }
}

int run_logits(const LogitsArguments& arguments) {
  const std::vector<TokenId> tokens = parse_tokens(arguments.tokens);
  if (tokens.empty()) throw UsageError("--tokens: the list is empty");
  const fs::path folder = fs::path(arguments.output).parent_path();
  if (!folder.empty() && !fs::is_directory(folder)) throw FileError(arguments.output, "", "its folder does not exist");
  const model::LoadedModel loaded = arguments.run.load();
  engine::Session session(*loaded.model);
  const std::size_t n_chunk = arguments.chunk > 0 ? static_cast<std::size_t>(arguments.chunk) : tokens.size();
  ProgressLine progress("tokens");
  std::vector<mx::array> parts;
  for (std::size_t begin = 0; begin < tokens.size(); begin += n_chunk) {
    const std::size_t n_tokens = std::min(n_chunk, tokens.size() - begin);
    const mx::array logits = session.forward(std::span(tokens).subspan(begin, n_tokens), model::LogitRows::kAll);
    parts.push_back(mx::astype(mx::squeeze(logits, 0), mx::float32));
    mx::eval(parts.back());
    progress.show(static_cast<int>(begin + n_tokens), static_cast<int>(tokens.size()));
  }
  write_logits(arguments.output, mx::concatenate(parts, 0));
  return kDone;
}

}  // namespace

void add_logits_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<LogitsArguments>();
  CLI::App* command = app.add_subcommand("logits", "write the logits [T, V] after each of the given tokens");
  arguments->run.add_to(*command);
  command->add_option("--tokens", arguments->tokens, "token ids, 1,2,3")->type_name("IDS")->required();
  command->add_option("-o,--output", arguments->output, "gets one float32 tensor, logits")
      ->type_name("FILE.safetensors")
      ->required();
  command->add_option("--chunk", arguments->chunk, "tokens in one forward pass (default: all)")
      ->type_name("N")
      ->check(in_range(1, 1 << 20));
  command->callback([arguments, &action] { action = [arguments] { return run_logits(*arguments); }; });
}

}  // namespace memoir::cli
