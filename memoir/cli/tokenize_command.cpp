#include <memory>
#include <nlohmann/json.hpp>

#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/model/load.h"

namespace memoir::cli {
namespace {

using Json = nlohmann::json;

struct TokenizeArguments {
  std::string model;
  bool parse_special = false;
  bool is_json = false;
  bool is_decode = false;
};

Json parse_line(const std::string& line, int line_number) {
  return parse_json(line, "stdin: line " + std::to_string(line_number));
}

std::string encode_line(const text::Tokenizer& tokenizer, const TokenizeArguments& arguments, const std::string& line,
                        int line_number) {
  std::string text = line;
  if (arguments.is_json) {
    const Json json = parse_line(line, line_number);
    if (!json.is_string()) {
      throw FormatError("stdin", "line " + std::to_string(line_number), "expected a JSON string");
    }
    text = json.get<std::string>();
  }
  const text::Tokenizer::EncodeOptions options{.add_special = false, .parse_special = arguments.parse_special};
  return json_text(tokenizer.encode(text, options));
}

std::vector<TokenId> tokens_of(const Json& json, int n_vocab, int line_number) {
  const std::string key = "line " + std::to_string(line_number);
  if (!json.is_array()) throw FormatError("stdin", key, "expected a JSON array of token ids");
  std::vector<TokenId> tokens;
  for (const Json& item : json) {
    if (!item.is_number_integer() || item < 0 || item >= n_vocab) {
      throw FormatError("stdin", key, "expected token ids from 0 to " + std::to_string(n_vocab - 1));
    }
    tokens.push_back(item.get<TokenId>());
  }
  return tokens;
}

std::string decode_line(const text::Tokenizer& tokenizer, const TokenizeArguments& arguments, const std::string& line,
                        int line_number) {
  std::string text = tokenizer.decode(tokens_of(parse_line(line, line_number), tokenizer.n_vocab(), line_number));
  return arguments.is_json ? json_text(text) : text;
}

int run_tokenize(const TokenizeArguments& arguments) {
  const text::Tokenizer tokenizer = model::load_tokenizer(resolve_model(arguments.model));
  int line_number = 0;
  while (const std::optional<std::string> line = read_line()) {
    ++line_number;
    const auto convert = arguments.is_decode ? decode_line : encode_line;
    write_out(convert(tokenizer, arguments, *line, line_number) + "\n");
  }
  return kDone;
}

}  // namespace

void add_tokenize_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command =
      app.add_subcommand("tokenize", "lines of text on stdin become JSON arrays of token ids on stdout");
  command->add_option("-m,--model", arguments->model, kModelHelp)->type_name("MODEL")->required();
  CLI::Option* special =
      command->add_flag("--special", arguments->parse_special, "the text of a special token becomes its id");
  command->add_flag("--json", arguments->is_json, "each line of text is a JSON string");
  command->add_flag("--decode", arguments->is_decode, "the other way: arrays of ids become text")->excludes(special);
  command->callback([arguments, &action] { action = [arguments] { return run_tokenize(*arguments); }; });
}

}  // namespace memoir::cli
