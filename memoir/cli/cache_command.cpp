#include <algorithm>
#include <iomanip>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/base/printable.h"
#include "memoir/cache/prompt_file.h"
#include "memoir/cli/cache_tree.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/output_file.h"
#include "memoir/cli/report.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/cli/text_checks.h"
#include "memoir/model/fingerprint.h"

namespace memoir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CacheArguments {
  std::vector<std::string> files;
  bool is_json = false;
  std::string output;
  std::string format = "v2";
  int bits = 0;
  int group_size = 0;  // 0: 64, or 32 where rows are no multiple of that
  std::string model;
  std::string tokens;
};

// ---- show

Json json_of(const SafetensorsFile& file, const cache::PromptLayer& layer) {
  Json result = {{"layer", layer.key}, {"kind", layer.kind}};
  if (!layer.children.empty()) {
    for (const cache::PromptLayer& child : layer.children) result["children"].push_back(json_of(file, child));
    return result;
  }
  if (layer.offset) result["offset"] = *layer.offset;
  if (layer.n_rows > 0) result["rows"] = layer.n_rows;
  if (!layer.numbers.empty()) result["numbers"] = layer.numbers;
  result["arrays"] = Json::array();
  std::uint64_t n_bytes = 0;
  for (const auto& index : layer.tensors) {
    if (!index) {
      result["arrays"].push_back(nullptr);
      continue;
    }
    const SafetensorsTensor& tensor = file.tensors()[*index];
    result["arrays"].push_back({{"dtype", tensor.dtype}, {"shape", tensor.shape}});
    n_bytes += tensor.size_bytes;
  }
  result["bytes"] = n_bytes;
  return result;
}

Json json_of(const SafetensorsFile& file, const cache::PromptIndex& index) {
  Json result = {{"file", file.path()}, {"format", cache::format_name(index.format)}, {"offset", index.offset}};
  result["model"] = index.metadata.model.empty() ? Json() : Json(index.metadata.model);
  result["model_name"] = index.metadata.model_name.empty() ? Json() : Json(index.metadata.model_name);
  result["tokens"] = index.metadata.tokens ? Json(*index.metadata.tokens) : Json();
  result["metadata"] = index.metadata.user;
  result["layers"] = Json::array();
  for (const cache::PromptLayer& layer : index.layers) result["layers"].push_back(json_of(file, layer));
  return result;
}

std::string arrays_text(const Json& layer) {
  std::string text;
  for (const Json& array : layer.at("arrays")) {
    text += text.empty() ? "" : ", ";
    text += array.is_null() ? "none" : array.at("dtype").get<std::string>() + " " + array.at("shape").dump();
  }
  return text.empty() ? "empty" : text;
}

void write_layer(std::ostream& out, const Json& layer, const std::string& indent) {
  out << indent << layer.at("layer").get<std::string>() << "  " << layer.at("kind").get<std::string>();
  if (layer.contains("children")) {
    out << '\n';
    for (const Json& child : layer.at("children")) write_layer(out, child, indent + "  ");
    return;
  }
  if (layer.contains("rows")) out << ", " << layer.at("rows") << " rows";
  out << ", " << arrays_text(layer) << ", " << layer.at("bytes") << " bytes\n";
}

std::string text_of(const Json& file) {
  std::ostringstream out;
  out << printable(file.at("file").get<std::string>()) << '\n';
  out << "  format " << file.at("format").get<std::string>() << ", offset " << file.at("offset") << ", ";
  if (file.at("tokens").is_null()) {
    out << "tokens not known\n";
  } else {
    out << file.at("tokens").size() << " tokens\n";
  }
  if (!file.at("model").is_null()) {
    out << "  model " << printable(file.at("model_name").is_null() ? "" : file.at("model_name").get<std::string>())
        << " (" << printable(file.at("model").get<std::string>()) << ")\n";
  }
  for (const auto& [key, value] : file.at("metadata").items()) {
    out << "  " << printable(key) << ": " << printable(value.get<std::string>()) << '\n';
  }
  for (const Json& layer : file.at("layers")) write_layer(out, layer, "  ");
  return out.str();
}

// Calls `use` for every file; one that fails is reported, and the others follow.
int for_each_file(const CacheArguments& arguments, const std::function<void(const std::string&)>& use) {
  int status = kDone;
  for (const std::string& path : arguments.files) {
    try {
      use(path);
    } catch (const OutputError&) {
      throw;
    } catch (const InputError& error) {
      report(error);
      status = kFailed;
    }
  }
  return status;
}

int run_show(const CacheArguments& arguments) {
  return for_each_file(arguments, [&](const std::string& path) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const Json shown = json_of(file, cache::read_prompt_index(file));
    write_out(arguments.is_json ? json_text(shown) + "\n" : text_of(shown));
  });
}

int run_check(const CacheArguments& arguments) {
  return for_each_file(arguments, [](const std::string& path) {
    const cache::PromptFile file = cache::load_prompt_file(path);
    write_out(printable(path) + ": fine\n");
  });
}

// ---- convert

// Says of which model and tokens the file is, whatever it says itself.
void describe(const CacheArguments& arguments, cache::PromptFile& file) {
  const std::filesystem::path model = resolve_model(arguments.model);
  file.metadata.model = model::fingerprint(model);
  file.metadata.model_name = model.stem().string();
  file.metadata.tokens = parse_tokens(arguments.tokens);
  const std::size_t n_tokens = file.metadata.tokens->size();
  if (n_tokens != static_cast<std::size_t>(file.cache.offset())) {
    throw UsageError("--tokens has " + std::to_string(n_tokens) + " tokens, the file " +
                     std::to_string(file.cache.offset()));
  }
}

// Returns the number of layers that were.
int quantize(cache::ModelCache& cache, const CacheArguments& arguments, const std::string& path) {
  try {
    if (arguments.group_size > 0) return cache.to_quantized({arguments.bits, arguments.group_size});
    try {
      return cache.to_quantized({arguments.bits, 64});
    } catch (const std::invalid_argument&) {
      return cache.to_quantized({arguments.bits, 32});
    }
  } catch (const std::invalid_argument& refusal) {
    throw UnsupportedError(path, "", std::string(reason(refusal.what())));
  }
}

int run_convert(const CacheArguments& arguments) {
  const std::string& from = arguments.files.front();
  const std::string& to = arguments.output.empty() ? from : arguments.output;
  check_replaced_path(arguments.output.empty() ? "FILE" : "--output", to);
  cache::PromptFile file = cache::load_prompt_file(from);
  if (arguments.bits > 0 && quantize(file.cache, arguments, from) == 0) {
    throw UnsupportedError(from, "", "has no keys and values that are not quantized yet");
  }
  if (!arguments.model.empty()) describe(arguments, file);
  const auto format = arguments.format == "v1" ? cache::PromptFormat::kV1 : cache::PromptFormat::kV2;
  cache::save_prompt_file(to, file.cache, file.metadata, format);
  return kDone;
}

}  // namespace

void add_cache_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<CacheArguments>();
  CLI::App* command =
      app.add_subcommand("cache", "look at, check and convert prompt-cache files, look at kept prefixes");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const CacheArguments&)) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->callback([arguments, &action, run] { action = [arguments, run] { return run(*arguments); }; });
    return sub;
  };
  CLI::App* show = add("show", "print what files hold: kinds, offsets, shapes, bytes, tokens", run_show);
  show->add_flag("--json", arguments->is_json, "one JSON object a file and line");
  CLI::App* check = add("check", "read files whole; exit status 1 and the reason if one is damaged", run_check);
  for (CLI::App* sub : {show, check}) sub->add_option("files", arguments->files)->type_name("FILE")->required();
  CLI::App* convert = add("convert", "write a file in another format or with quantized rows", run_convert);
  convert->add_option("file", arguments->files)->type_name("FILE")->required()->expected(1);
  convert->add_option("-o,--output", arguments->output, "the new file (default: FILE is replaced)")
      ->type_name("FILE")
      ->check(not_empty());
  convert->add_option("--format", arguments->format, "mlx-lm 0.32's (v2) or that up to 0.31 (v1)")
      ->check(CLI::IsMember({"v1", "v2"}))
      ->type_name("v1|v2")
      ->capture_default_str();
  CLI::Option* bits =
      convert->add_option("--quantize", arguments->bits, "bits of keys and values that are not quantized yet")
          ->check(CLI::IsMember({2, 3, 4, 5, 6, 8}))
          ->type_name("BITS");
  convert
      ->add_option("--group-size", arguments->group_size,
                   "elements that share a scale (default: 64, or 32 where rows are no multiple of that)")
      ->check(CLI::IsMember({32, 64, 128}))
      ->type_name("N")
      ->needs(bits);
  CLI::Option* model =
      convert->add_option("-m,--model", arguments->model, "say that the file is of this model, for --prompt-cache")
          ->type_name("MODEL");
  CLI::Option* tokens =
      convert->add_option("--tokens", arguments->tokens, "and of these tokens, ids as 1,2,3")->type_name("IDS");
  model->needs(tokens);
  tokens->needs(model);
  const auto tree_arguments = std::make_shared<CacheTreeArguments>();
  CLI::App* tree = command->add_subcommand("tree", "print what a --prefix-cache-dir holds: tokens, bytes, kinds, ages");
  tree->add_option("--prefix-cache-dir", tree_arguments->directory, "the directory")->type_name("DIR")->required();
  tree->add_option("-m,--model", tree_arguments->model, "show the tokens of this model as text")->type_name("MODEL");
  tree->add_flag("--json", tree_arguments->is_json, "one JSON object a model and line");
  tree->callback([tree_arguments, &action] { action = [tree_arguments] { return run_cache_tree(*tree_arguments); }; });
}

}  // namespace memoir::cli
