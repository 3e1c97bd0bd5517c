#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/base/mxfp4.h"
#include "memoir/base/safetensors.h"
#include "memoir/kernels/shape.h"
#include "memoir/model/tensor_array.h"
#include "memoir/model/tensor_names.h"
#include "memoir/model/weights.h"

namespace mx = mlx::core;
namespace fs = std::filesystem;

namespace memoir::model {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

std::optional<mx::Dtype> array_dtype(const std::string& dtype) {
  if (dtype == "U32") return mx::uint32;
  if (dtype == "U8") return mx::uint8;
  return floating_dtype(dtype);
}

std::optional<mx::Dtype> integer_dtype(const std::string& dtype) {
  if (dtype == "I32") return mx::int32;
  if (dtype == "I64") return mx::int64;
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
    const SafetensorsFiles files = safetensors_files(directory);
    for (const fs::path& path : files.paths) open(path);
    check_index(directory / kIndex, files.indexed);
    check_overrides(config.path);
  }

 protected:
  kernels::Weight read_matrix(const std::string& module, const MatrixShape& shape) override {
    if (has(module + ".scales")) return read_quantized(module, shape);
    check_is_dense(module);
    mx::array data = read(module + ".weight", shape.sizes(shape.columns));
    check_floating(module + ".weight", data.dtype());
    return {flat(data, shape), std::nullopt};
  }

  std::optional<kernels::WeightSource> matrix_source(const std::string& module, const MatrixShape& shape) override {
    if (has(module + ".scales")) return quantized_source(module, shape);
    check_is_dense(module);
    const Found found = find(module + ".weight", shape.sizes(shape.columns));
    check_floating(module + ".weight", found.dtype);
    return rows_source(found, {shape.all_rows(), shape.columns, kernels::element_of(found.dtype)});
  }

  kernels::Weight read_mxfp4_blocks(const std::string& name, const MatrixShape& shape) override {
    check_groups(name + "_blocks", shape.columns, kMxfp4Group);
    const std::int64_t n_groups = shape.columns / kMxfp4Group;
    std::vector<std::int64_t> blocks = shape.sizes(n_groups);
    blocks.push_back(kMxfp4Group / 2);
    const mx::array codes = read(name + "_blocks", blocks);
    check_dtype(name + "_blocks", codes.dtype(), mx::uint8);
    return from_mxfp4(name + "_scales", shape, codes, read(name + "_scales", shape.sizes(n_groups)));
  }

  std::vector<std::int64_t> shape_of(const std::string& name) const override { return tensors_.at(name).tensor->shape; }

  mx::array read_tensor(const std::string& name, const std::vector<std::int64_t>& shape) override {
    mx::array data = read(name, shape);
    check_floating(name, data.dtype());
    return data;
  }

  mx::array read_integers(const std::string& name, const std::vector<std::int64_t>& shape) override {
    return read(name, shape, integer_dtype);
  }

  std::string path_of(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return files_[found->second.file]->path();
    return files_.size() == 1 ? files_.front()->path() : (fs::path(path_) / kIndex).string();
  }

 private:
  struct Location {
    std::size_t file;
    const SafetensorsTensor* tensor;
  };

  // The leading axis joined to the rows.
  static mx::array flat(const mx::array& data, const MatrixShape& shape) {
    return shape.n == 0 ? data : mx::reshape(data, {shape.all_rows(), data.shape(-1)});
  }

  // Names are those of the file.
  void check_overrides(const std::string& config_path) const {
    if (!quantization_) return;
    for (const auto& [module, format] : quantization_->overrides) {
      if (!format || in_files_.contains(module + ".weight")) continue;
      throw FormatError(config_path, "quantization." + module, "the weights have no such module");
    }
  }

  // nullopt for a tensor that is passed over.
  std::optional<std::string> offered_name(const std::string& name) const {
    if (is_derived(name)) return std::nullopt;
    std::optional<std::string> offered = text_tensor_name(name);
    if (offered && tie_embeddings_ && offered->starts_with("lm_head.")) return std::nullopt;
    return offered;
  }

  void check_index(const fs::path& index, const std::vector<std::string>& indexed) const {
    for (const std::string& name : indexed) {
      if (in_files_.contains(name) || !offered_name(name)) continue;
      throw FormatError(index.string(), name, "is in none of the files that weight_map names");
    }
  }

  void open(const fs::path& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(SafetensorsFile::open(path)));
    for (const SafetensorsTensor& tensor : files_.back()->tensors()) {
      if (!in_files_.insert(tensor.name).second) {
        throw FormatError(path.string(), tensor.name, "is also in another shard");
      }
      const std::optional<std::string> name = offered_name(tensor.name);
      if (!name) continue;
      if (!tensors_.emplace(*name, Location{files_.size() - 1, &tensor}).second) {
        throw FormatError(path.string(), tensor.name, "is there twice, under two names");
      }
      offer(*name);
    }
  }

  // A tensor that was looked at and can be read.
  struct Found {
    const SafetensorsFile* file;
    const SafetensorsTensor* tensor;
    mx::Dtype dtype;
  };

  Found find(const std::string& name, const std::vector<std::int64_t>& shape,
             std::optional<mx::Dtype> (*dtype_of)(const std::string&) = array_dtype) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw FormatError(path_of(name), name, "missing");
    take(name);
    const SafetensorsTensor& tensor = *found->second.tensor;
    const SafetensorsFile& file = *files_[found->second.file];
    if (tensor.shape != shape) {
      throw FormatError(file.path(), tensor.name,
                        "has shape " + kernels::shape_text(tensor.shape) + ", expected " + kernels::shape_text(shape));
    }
    const std::optional<mx::Dtype> dtype = dtype_of(tensor.dtype);
    if (!dtype) {
      throw UnsupportedError(file.path(), tensor.name,
                             "has dtype " + tensor.dtype + ", which memoir can't compute with");
    }
    return {&file, &tensor, *dtype};
  }

  mx::array read(const std::string& name, const std::vector<std::int64_t>& shape,
                 std::optional<mx::Dtype> (*dtype_of)(const std::string&) = array_dtype) {
    return read(find(name, shape, dtype_of));
  }

  static mx::array read(const Found& found) {
    const std::vector<std::int64_t>& shape = found.tensor->shape;
    return filled_array({shape.begin(), shape.end()}, found.dtype,
                        [&](std::span<std::byte> out) { found.file->read(*found.tensor, out); });
  }

  // Rows of elements, or of codes.
  static kernels::WeightSource rows_source(const Found& found, const kernels::cpu::PackedFormat& format) {
    const std::size_t row_bytes = found.tensor->size_bytes / static_cast<std::size_t>(format.n_rows);
    return {format, row_bytes, [found, row_bytes](int begin, int end, std::byte* scratch) {
              found.file->read_part(*found.tensor, static_cast<std::size_t>(begin) * row_bytes,
                                    {scratch, static_cast<std::size_t>(end - begin) * row_bytes});
              return std::optional(kernels::cpu::StoredRows{scratch, row_bytes});
            }};
  }

  void check_floating(const std::string& name, mx::Dtype dtype) const {
    if (mx::issubdtype(dtype, mx::floating)) return;
    throw FormatError(path_of(name), name, "has dtype " + kernels::dtype_text(dtype) + ", expected a float");
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
    // By the name in the file, which for a part of a multimodal model is longer.
    const std::string& weight = tensors_.at(module + ".scales").tensor->name;
    const auto found = quantization_->overrides.find(weight.substr(0, weight.rfind('.')));
    if (found == quantization_->overrides.end()) {
      return {quantization_->group_size, quantization_->bits, quantization_->mode};
    }
    if (!found->second) {
      throw FormatError(path_of(module + ".scales"), module + ".scales",
                        "the weight is quantized, but the configuration says that it is not");
    }
    return *found->second;
  }

  void check_groups(const std::string& name, int columns, int group_size) const {
    if (columns % group_size == 0) return;
    throw FormatError(
        path_of(name), name,
        "has " + std::to_string(columns) + " columns, no multiple of the group of " + std::to_string(group_size));
  }

  void check_dtype(const std::string& name, mx::Dtype dtype, mx::Dtype wanted) const {
    if (dtype == wanted) return;
    throw FormatError(path_of(name), name,
                      "has dtype " + kernels::dtype_text(dtype) + ", expected " + kernels::dtype_text(wanted));
  }

  // codes: 16 bytes a group; exponents: one.
  kernels::Weight from_mxfp4(const std::string& scales_name, const MatrixShape& shape, const mx::array& codes,
                             const mx::array& exponents) {
    check_dtype(scales_name, exponents.dtype(), mx::uint8);
    const int n_groups = shape.columns / kMxfp4Group;
    const auto nothing = [](std::span<std::byte>) {};
    mx::array words = filled_array({shape.all_rows(), n_groups * kMxfp4AffineBits}, mx::uint32, nothing);
    mx::array scales = filled_array({shape.all_rows(), n_groups}, mx::bfloat16, nothing);
    mx::array biases = filled_array({shape.all_rows(), n_groups}, mx::bfloat16, nothing);
    const Mxfp4Groups groups{codes.data<std::byte>(), kMxfp4Group / 2, exponents.data<std::byte>(), 1,
                             Mxfp4Order::kPairs};
    const Mxfp4Affine out{elements<std::uint32_t>(words), elements<std::uint16_t>(scales),
                          elements<std::uint16_t>(biases)};
    if (!mxfp4_to_affine(groups, out)) {
      throw FormatError(path_of(scales_name), scales_name, "holds a scale that is too large, or none");
    }
    return {words, kernels::Quantization{scales, biases, kMxfp4Group, kMxfp4AffineBits}};
  }

  // The codes of a module, checked but not read.
  Found find_codes(const std::string& module, const MatrixShape& shape, const ModuleQuantization& format) {
    const std::string name = module + ".weight";
    check_groups(name, shape.columns, format.group_size);
    const Found codes = find(name, shape.sizes(static_cast<std::int64_t>(shape.columns) * format.bits / 32));
    check_dtype(name, codes.dtype, mx::uint32);
    return codes;
  }

  // Scales and biases of a module, of one type.
  kernels::Quantization read_scales(const std::string& module, const MatrixShape& shape,
                                    const ModuleQuantization& format) {
    const std::vector<std::int64_t> sizes = shape.sizes(shape.columns / format.group_size);
    mx::array scales = read(module + ".scales", sizes);
    mx::array biases = read(module + ".biases", sizes);
    check_floating(module + ".scales", scales.dtype());
    check_floating(module + ".biases", biases.dtype());
    if (scales.dtype() != biases.dtype()) {
      // float32 holds the values of both; one in the other's type would lose bits.
      scales = mx::astype(scales, mx::float32);
      biases = mx::astype(biases, mx::float32);
    }
    return {flat(scales, shape), flat(biases, shape), format.group_size, format.bits};
  }

  kernels::Weight read_quantized(const std::string& module, const MatrixShape& shape) {
    const ModuleQuantization format = format_of(module);
    const mx::array words = read(find_codes(module, shape, format));
    if (format.mode == QuantizationMode::kMxfp4) {
      const mx::array scales = read(module + ".scales", shape.sizes(shape.columns / format.group_size));
      return from_mxfp4(module + ".scales", shape, words, scales);
    }
    return {flat(words, shape), read_scales(module, shape, format)};
  }

  std::optional<kernels::WeightSource> quantized_source(const std::string& module, const MatrixShape& shape) {
    const ModuleQuantization format = format_of(module);
    if (format.mode == QuantizationMode::kMxfp4) return std::nullopt;
    const Found codes = find_codes(module, shape, format);
    const kernels::Quantization q = read_scales(module, shape, format);
    mx::eval(q.scales, q.biases);
    const kernels::cpu::PackedFormat packed{shape.all_rows(), shape.columns, kernels::element_of(q.scales.dtype()),
                                            q.bits,           q.group_size,  !has_implied_biases(q)};
    kernels::WeightSource source = rows_source(codes, packed);
    source.read = [read = source.read, packed, q](int begin, int end, std::byte* scratch) {
      std::optional<kernels::cpu::StoredRows> rows = read(begin, end, scratch);
      rows->block_bytes = packed.block_bytes() / kernels::cpu::kLanes;
      rows->group_bytes = kernels::cpu::element_bytes(packed.element);
      rows->row_group_bytes = rows->group_bytes * static_cast<std::size_t>(packed.n_groups());
      rows->scales = kernels::packed_bytes(q.scales) + static_cast<std::size_t>(begin) * rows->row_group_bytes;
      rows->biases = kernels::packed_bytes(q.biases) + static_cast<std::size_t>(begin) * rows->row_group_bytes;
      return rows;
    };
    return source;
  }

  std::optional<QuantizationConfig> quantization_;
  bool tie_embeddings_;
  std::set<std::string> in_files_;  // all names
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location> tensors_;  // point into files_
};

}  // namespace

SafetensorsFiles safetensors_files(const fs::path& directory) {
  const fs::path index = directory / kIndex;
  if (!entry_exists(index)) return {{directory / "model.safetensors"}, {}};
  const nlohmann::json json = parse_json(read_text_file(index), index.string());
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw FormatError(index.string(), "weight_map", "expected an object of tensor names and file names");
  }
  SafetensorsFiles files;
  std::set<fs::path> paths;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    // A file name only: an index must not be able to point outside its directory.
    if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>()) {
      throw FormatError(index.string(), tensor, "expected the name of a file in the same directory");
    }
    paths.insert(directory / file.get<std::string>());
    files.indexed.push_back(tensor);
  }
  if (paths.empty()) throw FormatError(index.string(), "weight_map", "names no file");
  files.paths.assign(paths.begin(), paths.end());
  return files;
}

std::unique_ptr<Weights> open_safetensors_weights(const fs::path& directory, const ModelConfig& config) {
  return std::make_unique<SafetensorsWeights>(directory, config);
}

}  // namespace memoir::model
