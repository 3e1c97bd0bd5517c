// The files of a model on their way into a package, quantized if need be.

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/base/replaced_file.h"
#include "memoir/base/safetensors.h"
#include "memoir/model/package.h"
#include "memoir/model/tensor_array.h"
#include "memoir/model/tensor_names.h"
#include "memoir/model/weights.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::model {
namespace {

constexpr int kGroup = 64;
constexpr int kSmallGroup = 32;

// Of tokenizers, templates and configurations, what stands beside the weights; of indices, that of those alone.
bool is_taken(const fs::path& name) {
  constexpr std::array<std::string_view, 4> kEndings = {".json", ".jinja", ".txt", ".model"};
  if (name.string().ends_with(".index.json")) return name == "model.safetensors.index.json";
  return std::ranges::find(kEndings, name.extension().string()) != kEndings.end();
}

// Calls write(bytes) for n_bytes that read(offset, part) gives, part by part.
template <typename Read>
void copy_parts(std::uint64_t n_bytes, ReplacedFile& to, const Read& read) {
  constexpr std::uint64_t kPart = 4 << 20;
  std::vector<std::byte> part(std::min(n_bytes, kPart));
  for (std::uint64_t offset = 0; offset < n_bytes; offset += part.size()) {
    part.resize(std::min(n_bytes - offset, kPart));
    read(offset, part);
    to.write(part);
  }
}

// The group of a matrix, 0 for what stays dense.
int group_of(const SafetensorsTensor& tensor) {
  const std::string& name = tensor.name;
  const std::size_t n_axes = tensor.shape.size();
  const bool is_stack = n_axes == 3 && name.find(".switch_") != std::string::npos;
  if (!name.ends_with(".weight") || (n_axes != 2 && !is_stack) || tensor.size_bytes == 0) return 0;
  if (!floating_dtype(tensor.dtype) || !text_tensor_name(name)) return 0;
  if (name.ends_with("gate.weight") || name.find("router") != std::string::npos) return 0;
  return tensor.shape.back() % kGroup == 0 ? kGroup : tensor.shape.back() % kSmallGroup == 0 ? kSmallGroup : 0;
}

class Quantizer {
 public:
  explicit Quantizer(int bits) : bits_(bits) {}

  // One tensor at a time is in memory.
  void rewrite(const fs::path& from, const fs::path& to) {
    const SafetensorsFile file = SafetensorsFile::open(from);
    std::vector<SafetensorsEntry> entries;
    for (const SafetensorsTensor& tensor : file.tensors()) add_entries(tensor, entries);
    check_names(entries, from);
    ReplacedFile out(to);
    out.write(safetensors_header(entries, file.metadata()));
    for (const SafetensorsTensor& tensor : file.tensors()) write(file, tensor, out);
    out.commit(Durability::kLater);
  }

  // What the configuration says of it.
  nlohmann::ordered_json description() const {
    nlohmann::ordered_json json = {{"group_size", kGroup}, {"bits", bits_}};
    for (const std::string& module : small_) json[module] = {{"group_size", kSmallGroup}, {"bits", bits_}};
    return json;
  }

  std::size_t n_matrices() const { return n_matrices_; }

 private:
  void add_entries(const SafetensorsTensor& tensor, std::vector<SafetensorsEntry>& entries) {
    const int group = group_of(tensor);
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    if (group == 0) return;
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    entries.back().dtype = "U32";
    entries.back().shape.back() = tensor.shape.back() * bits_ / 32;
    std::vector<std::int64_t> groups = tensor.shape;
    groups.back() /= group;
    for (const char* part : {".scales", ".biases"}) entries.push_back({module + part, tensor.dtype, groups});
    if (group == kSmallGroup) small_.insert(module);
    ++n_matrices_;
  }

  static void check_names(const std::vector<SafetensorsEntry>& entries, const fs::path& path) {
    std::set<std::string_view> names;
    for (const SafetensorsEntry& entry : entries) {
      if (names.insert(entry.name).second) continue;
      throw UnsupportedError(path.string(), entry.name, "is there already, beside a weight that is not quantized");
    }
  }

  // What add_entries() said.
  void write(const SafetensorsFile& file, const SafetensorsTensor& tensor, ReplacedFile& out) const {
    const int group = group_of(tensor);
    if (group == 0) {
      return copy_parts(tensor.size_bytes, out,
                        [&](std::uint64_t offset, std::span<std::byte> part) { file.read_part(tensor, offset, part); });
    }
    const mx::array dense = filled_array({tensor.shape.begin(), tensor.shape.end()}, *floating_dtype(tensor.dtype),
                                         [&](std::span<std::byte> bytes) { file.read(tensor, bytes); });
    for (const mx::array& part : mx::quantize(dense, group, bits_)) {
      const mx::array row = mx::contiguous(part);
      mx::eval(row);
      out.write(std::span{reinterpret_cast<const std::byte*>(row.data<std::uint8_t>()), row.nbytes()});
    }
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

void check_can_be_quantized(const fs::path& from) {
  if (!fs::is_directory(existing_status(from))) {
    throw UnsupportedError(from.string(), "",
                           "a GGUF file is taken as it is; to quantize, name a directory of safetensors");
  }
  check_is_dense(read_config_json(from / "config.json"), from / "config.json");
}

void copy_model_file(const fs::path& from, const fs::path& to) {
  const std::unique_ptr<ByteSource> source = open_file(from);
  ReplacedFile out(to);
  copy_parts(source->size_bytes(), out,
             [&](std::uint64_t offset, std::span<std::byte> part) { source->read(offset, part); });
  out.commit(Durability::kLater);
}

void copy_model_directory(const fs::path& from, const fs::path& to, std::optional<int> bits) {
  existing_status(from / "config.json");
  const std::vector<fs::path> weights = safetensors_files(from).paths;
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    if (entry.is_regular_file() && is_taken(name)) copy_model_file(entry.path(), to / name);
  }
  if (!bits) {
    for (const fs::path& path : weights) copy_model_file(path, to / path.filename());
    return;
  }
  Quantizer quantizer(*bits);
  for (const fs::path& path : weights) quantizer.rewrite(path, to / path.filename());
  if (quantizer.n_matrices() == 0) {
    throw UnsupportedError(from.string(), "",
                           "has no matrix that can be quantized: rows of a multiple of 32 are needed");
  }
  nlohmann::ordered_json config = read_config_json(from / "config.json");
  config["quantization"] = quantizer.description();
  ReplacedFile file(to / "config.json");
  file.write(model_json_text(config) + "\n");
  file.commit();
}

}  // namespace memoir::model
