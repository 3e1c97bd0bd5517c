// The files of a model's directory on their way into a package, quantized if need be.

#include <mlx/io.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/base/replaced_file.h"
#include "memoir/model/package.h"
#include "memoir/model/tensor_names.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::model {
namespace {

using Tensors = std::unordered_map<std::string, mx::array>;

constexpr int kGroup = 64;
constexpr int kSmallGroup = 32;

// Of tokenizers, templates and configurations; weights in other forms are left behind.
bool is_taken(const fs::path& path) {
  constexpr std::array<std::string_view, 5> kEndings = {".json", ".safetensors", ".jinja", ".txt", ".model"};
  return std::ranges::find(kEndings, path.extension().string()) != kEndings.end();
}

// The group of a matrix, 0 for what stays dense.
int group_of(const std::string& name, const mx::array& tensor) {
  const bool is_stack = tensor.ndim() == 3 && name.find(".switch_") != std::string::npos;
  if (!name.ends_with(".weight") || (tensor.ndim() != 2 && !is_stack)) return 0;
  if (!mx::issubdtype(tensor.dtype(), mx::floating) || !text_tensor_name(name)) return 0;
  if (name.ends_with("gate.weight") || name.find("router") != std::string::npos) return 0;
  return tensor.shape(-1) % kGroup == 0 ? kGroup : tensor.shape(-1) % kSmallGroup == 0 ? kSmallGroup : 0;
}

class Quantizer {
 public:
  explicit Quantizer(int bits) : bits_(bits) {}

  void rewrite(const fs::path& from, const fs::path& to) {
    auto [tensors, metadata] = mx::load_safetensors(from.string());
    Tensors made;
    for (const auto& [name, tensor] : tensors) add(name, tensor, made);
    mx::save_safetensors(to.string(), made, metadata);
  }

  // What the configuration says of it.
  nlohmann::ordered_json description() const {
    nlohmann::ordered_json json = {{"group_size", kGroup}, {"bits", bits_}};
    for (const std::string& module : small_) json[module] = {{"group_size", kSmallGroup}, {"bits", bits_}};
    return json;
  }

  std::size_t n_matrices() const { return n_matrices_; }

 private:
  void add(const std::string& name, const mx::array& tensor, Tensors& made) {
    const int group = group_of(name, tensor);
    if (group == 0) {
      made.insert_or_assign(name, tensor);
      return;
    }
    const std::string module = name.substr(0, name.rfind('.'));
    const std::vector<mx::array> parts = mx::quantize(tensor, group, bits_);
    mx::eval(parts);
    made.insert_or_assign(name, parts[0]);
    made.insert_or_assign(module + ".scales", parts[1]);
    made.insert_or_assign(module + ".biases", parts[2]);
    if (group == kSmallGroup) small_.insert(module);
    ++n_matrices_;
  }

  int bits_;
  std::set<std::string> small_;  // modules in small groups
  std::size_t n_matrices_ = 0;
};

nlohmann::ordered_json read_config_json(const fs::path& path) {
  const nlohmann::ordered_json config = parse_ordered_model_json(read_text_file(path), path.string());
  if (!config.is_object()) throw FormatError(path.string(), "", "is no JSON object");
  return config;
}

void check_is_dense(const nlohmann::ordered_json& config, const fs::path& path) {
  for (const char* key : {"quantization", "quantization_config"}) {
    const auto text = config.find("text_config");
    const bool is_there = config.contains(key) || (text != config.end() && text->is_object() && text->contains(key));
    if (is_there) throw UnsupportedError(path.string(), key, "the model is quantized already");
  }
}

}  // namespace

void copy_model_directory(const fs::path& from, const fs::path& to, std::optional<int> bits) {
  const fs::path config_path = from / "config.json";
  if (!entry_exists(config_path)) throw FileError(config_path.string(), "", "there is no such file");
  std::optional<Quantizer> quantizer;
  if (bits) quantizer.emplace(*bits);
  nlohmann::ordered_json config = quantizer ? read_config_json(config_path) : nlohmann::ordered_json();
  if (quantizer) check_is_dense(config, config_path);
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    if (!entry.is_regular_file() || !is_taken(name)) continue;
    if (quantizer && name.extension() == ".safetensors")
      quantizer->rewrite(entry.path(), to / name);
    else
      fs::copy_file(entry.path(), to / name);
  }
  if (!quantizer) return;
  if (quantizer->n_matrices() == 0) {
    throw UnsupportedError(from.string(), "",
                           "has no matrix that can be quantized: rows of a multiple of 32 are needed");
  }
  config["quantization"] = quantizer->description();
  ReplacedFile file(to / "config.json");
  file.write(model_json_text(config) + "\n");
  file.commit();
}

}  // namespace memoir::model
