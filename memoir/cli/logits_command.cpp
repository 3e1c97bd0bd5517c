#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>

#include "memoir/base/safetensors.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/number_checks.h"
#include "memoir/cli/output_file.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/session.h"

namespace mx = mlx::core;

namespace memoir::cli {
namespace {

struct LogitsArguments {
  RunOptions run;
  KvArguments kv;
  std::string tokens;
  std::string output;
  int chunk = 512;
};

// Before anything is written: what goes into a pipe can't be taken back.
void check_tokens(const std::vector<TokenId>& tokens, const model::Model& model) {
  const int n_vocab = model.config().vocab_size;
  for (const TokenId token : tokens) {
    if (token < n_vocab) continue;
    throw std::invalid_argument("--tokens: token " + std::to_string(token) + " is outside the vocabulary of " +
                                std::to_string(n_vocab));
  }
  if (tokens.size() <= static_cast<std::size_t>(model.context())) return;
  throw std::invalid_argument("--tokens: " + std::to_string(tokens.size()) + " tokens pass the model's context of " +
                              std::to_string(model.context()));
}

// The rows of each chunk are written as they come, so that memory holds one chunk's.
void write_logits(const LogitsArguments& arguments, const std::vector<TokenId>& tokens, const model::Model& model,
                  OutputFile& file) {
  const auto n_tokens = static_cast<std::int64_t>(tokens.size());
  file.write(safetensors_header("logits", "F32", {n_tokens, model.config().vocab_size}));
  engine::Session session(model, arguments.kv.cache_options(model.config()));
  const auto n_chunk = static_cast<std::size_t>(arguments.chunk);
  ProgressLine progress("tokens");
  for (std::span<const TokenId> rest(tokens); !rest.empty();) {
    const std::span<const TokenId> chunk = session.first_chunk(rest, n_chunk);
    const mx::array logits = session.forward(chunk, model::LogitRows::kAll);
    rest = rest.subspan(chunk.size());
    const mx::array rows = mx::contiguous(mx::astype(logits, mx::float32));
    mx::eval(rows);
    file.write({reinterpret_cast<const char*>(rows.data<float>()), rows.nbytes()});
    progress.show(static_cast<int>(session.tokens().size()), static_cast<int>(tokens.size()));
  }
}

int run_logits(const LogitsArguments& arguments) {
  const std::vector<TokenId> tokens = parse_tokens(arguments.tokens);
  if (tokens.empty()) throw UsageError("--tokens: the list is empty");
  check_output_path("--output", arguments.output);
  const model::LoadedModel loaded = arguments.run.load();
  arguments.kv.check(*loaded.model);
  check_tokens(tokens, *loaded.model);
  write_file(arguments.output, [&](OutputFile& file) { write_logits(arguments, tokens, *loaded.model, file); });
  return kDone;
}

}  // namespace

void add_logits_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<LogitsArguments>();
  CLI::App* command = app.add_subcommand("logits", "write the logits [T, V] after each of the given tokens");
  arguments->run.add_to(*command);
  arguments->kv.add_to(*command);
  command->add_option("--tokens", arguments->tokens, "token ids, 1,2,3")->type_name("IDS")->required();
  command->add_option("-o,--output", arguments->output, "gets one float32 tensor, logits")
      ->type_name("FILE.safetensors")
      ->required();
  command->add_option("--chunk", arguments->chunk, "tokens in one forward pass")
      ->type_name("N")
      ->transform(whole_number(1, 1 << 20))
      ->capture_default_str();
  command->callback([arguments, &action] { action = [arguments] { return run_logits(*arguments); }; });
}

}  // namespace memoir::cli
