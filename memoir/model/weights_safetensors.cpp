#include <mlx/ops.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/base/safetensors.h"
#include "memoir/kernels/shape.h"
#include "memoir/model/tensor_array.h"
#include "memoir/model/weights.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::model {
namespace {

std::optional<mx::Dtype> array_dtype(const std::string& dtype) {
  if (dtype == "F32") return mx::float32;
  if (dtype == "F16") return mx::float16;
  if (dtype == "BF16") return mx::bfloat16;
  if (dtype == "U32") return mx::uint32;
  return std::nullopt;
}

// Old checkpoints carry the rotary periods, which the configuration also gives.
bool is_derived(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

class SafetensorsWeights : public Weights {
 public:
  SafetensorsWeights(const fs::path& directory, const ModelConfig& config)
      : Weights(directory.string()), quantization_(config.quantization), tie_embeddings_(config.tie_embeddings) {
    for (const fs::path& path : files_of(directory)) open(path);
    check_index(directory);
  }

 protected:
  kernels::Weight read_matrix(const std::string& module, int rows, int columns) override {
    if (has(module + ".scales")) return read_quantized(module, rows, columns);
    check_is_dense(module);
    mx::array data = read(module + ".weight", {rows, columns});
    check_floating(module + ".weight", data);
    return {std::move(data), std::nullopt};
  }

  mx::array read_vector(const std::string& name, int size) override {
    mx::array data = read(name, {size});
    check_floating(name, data);
    return data;
  }

 private:
  struct Location {
    std::size_t file;
    const SafetensorsTensor* tensor;
  };

  // The shards that the index names, else the one file.
  std::vector<fs::path> files_of(const fs::path& directory) {
    const fs::path index = directory / "model.safetensors.index.json";
    if (!entry_exists(index)) return {directory / "model.safetensors"};
    const nlohmann::json json = parse_json(read_text_file(index), index.string());
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
      throw FormatError(index.string(), "weight_map", "expected an object of tensor names and file names");
    }
    std::set<fs::path> paths;
    for (const auto& [tensor, file] : json["weight_map"].items()) {
      // A file name only: an index must not be able to point outside its directory.
      if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>()) {
        throw FormatError(index.string(), tensor, "expected the name of a file in the same directory");
      }
      paths.insert(directory / file.get<std::string>());
      indexed_.push_back(tensor);
    }
    if (paths.empty()) throw FormatError(index.string(), "weight_map", "names no file");
    return {paths.begin(), paths.end()};
  }

  bool is_passed_over(const std::string& name) const {
    return is_derived(name) || (tie_embeddings_ && name.starts_with("lm_head."));
  }

  void check_index(const fs::path& directory) const {
    for (const std::string& name : indexed_) {
      if (tensors_.count(name) > 0 || is_passed_over(name)) continue;
      const fs::path index = directory / "model.safetensors.index.json";
      throw FormatError(index.string(), name, "is in none of the files that weight_map names");
    }
  }

  void open(const fs::path& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(SafetensorsFile::open(path)));
    for (const SafetensorsTensor& tensor : files_.back()->tensors()) {
      if (is_passed_over(tensor.name)) continue;
      if (!tensors_.emplace(tensor.name, Location{files_.size() - 1, &tensor}).second) {
        throw FormatError(path.string(), tensor.name, "is also in another shard");
      }
      offer(tensor.name);
    }
  }

  const std::string& path_of(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? path_ : files_[found->second.file]->path();
  }

  mx::array read(const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw FormatError(path_, name, "missing");
    take(name);
    const SafetensorsTensor& tensor = *found->second.tensor;
    SafetensorsFile& file = *files_[found->second.file];
    if (tensor.shape != shape) {
      throw FormatError(file.path(), name,
                        "has shape " + kernels::shape_text(tensor.shape) + ", expected " + kernels::shape_text(shape));
    }
    const std::optional<mx::Dtype> dtype = array_dtype(tensor.dtype);
    if (!dtype)
      throw UnsupportedError(file.path(), name, "has dtype " + tensor.dtype + ", which memoir can't compute with");
    return filled_array({shape.begin(), shape.end()}, *dtype,
                        [&](std::span<std::byte> out) { file.read(tensor, out); });
  }

  void check_floating(const std::string& name, const mx::array& data) const {
    if (!mx::issubdtype(data.dtype(), mx::floating)) {
      throw FormatError(path_of(name), name, "has dtype " + kernels::dtype_text(data.dtype()) + ", expected a float");
    }
  }

  // Codes without scales, which would be reported as a matrix of another shape.
  void check_is_dense(const std::string& module) const {
    const auto found = tensors_.find(module + ".weight");
    if (found == tensors_.end() || found->second.tensor->dtype != "U32") return;
    throw FormatError(path_of(found->first), module + ".scales", "missing, and the weight has codes");
  }

  // The group and bits of a module: its own, else the model's.
  ModuleQuantization format_of(const std::string& module) const {
    if (!quantization_) {
      throw FormatError(path_of(module + ".scales"), module + ".scales",
                        "the weight is quantized, but the configuration has no 'quantization'");
    }
    const auto found = quantization_->overrides.find(module);
    if (found == quantization_->overrides.end()) return {quantization_->group_size, quantization_->bits};
    if (!found->second) {
      throw FormatError(path_of(module + ".scales"), module + ".scales",
                        "the weight is quantized, but the configuration says that it is not");
    }
    return *found->second;
  }

  kernels::Weight read_quantized(const std::string& module, int rows, int columns) {
    const auto [group_size, bits] = format_of(module);
    if (columns % group_size != 0) {
      throw FormatError(
          path_of(module + ".weight"), module + ".weight",
          "has " + std::to_string(columns) + " columns, no multiple of the group of " + std::to_string(group_size));
    }
    mx::array words = read(module + ".weight", {rows, static_cast<std::int64_t>(columns) * bits / 32});
    mx::array scales = read(module + ".scales", {rows, columns / group_size});
    mx::array biases = read(module + ".biases", {rows, columns / group_size});
    if (words.dtype() != mx::uint32) {
      throw FormatError(path_of(module + ".weight"), module + ".weight",
                        "has dtype " + kernels::dtype_text(words.dtype()) + ", expected uint32 codes");
    }
    check_floating(module + ".scales", scales);
    check_floating(module + ".biases", biases);
    if (scales.dtype() != biases.dtype()) {
      // float32 holds the values of both; one in the other's type would lose bits.
      scales = mx::astype(scales, mx::float32);
      biases = mx::astype(biases, mx::float32);
    }
    return {std::move(words), kernels::Quantization{std::move(scales), std::move(biases), group_size, bits}};
  }

  std::optional<QuantizationConfig> quantization_;
  bool tie_embeddings_;
  std::vector<std::string> indexed_;  // the tensors that the index names, if there is one
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location> tensors_;  // point into files_
};

}  // namespace

std::unique_ptr<Weights> open_safetensors_weights(const fs::path& directory, const ModelConfig& config) {
  return std::make_unique<SafetensorsWeights>(directory, config);
}

}  // namespace memoir::model
