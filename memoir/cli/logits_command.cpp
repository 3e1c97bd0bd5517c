#include <mlx/io.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <memory>

#include "memoir/base/error.h"
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
  std::string tokens;
  std::string output;
  int chunk = 0;  // 0: all tokens at once
};

// What MLX writes a file through. It goes front to back only, so that the file may be a pipe.
class FrontToBack : public mx::io::Writer {
 public:
  explicit FrontToBack(std::FILE* file) : file_(file) {}

  bool is_open() const override { return true; }
  bool good() const override { return true; }  // write_file() looks for errors when all is written
  std::size_t tell() override { return n_written_; }
  void seek(std::int64_t, std::ios_base::seekdir) override { throw std::logic_error("a pipe can't seek"); }
  void write(const char* data, std::size_t n_bytes) override { n_written_ += std::fwrite(data, 1, n_bytes, file_); }
  std::string label() const override { return "output"; }

 private:
  std::FILE* file_;
  std::size_t n_written_ = 0;
};

int run_logits(const LogitsArguments& arguments) {
  const std::vector<TokenId> tokens = parse_tokens(arguments.tokens);
  if (tokens.empty()) throw UsageError("--tokens: the list is empty");
  check_output_path("--output", arguments.output);
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
  mx::array logits = mx::concatenate(parts, 0);
  mx::eval(logits);
  write_file(arguments.output, [&](std::FILE* file) {
    mx::save_safetensors(std::make_shared<FrontToBack>(file), {{"logits", logits}});
  });
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
      ->transform(whole_number(1, 1 << 20));
  command->callback([arguments, &action] { action = [arguments] { return run_logits(*arguments); }; });
}

}  // namespace memoir::cli
