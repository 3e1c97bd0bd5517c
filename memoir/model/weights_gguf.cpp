#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/base/gguf_blocks.h"
#include "memoir/base/half.h"
#include "memoir/base/mxfp4.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/shape.h"
#include "memoir/model/gguf_names.h"
#include "memoir/model/tensor_array.h"
#include "memoir/model/weights.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

// RoPE factors, which Hugging Face's files do not have.
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// Row j * (D/2) + i of each head lies at row 2i + j in the file (j = 0, 1): the converter's interleaving for a rotary
// kernel that turns neighbours.
void deinterleave_heads(std::span<std::byte> bytes, std::size_t n_rows, std::size_t n_heads) {
  const std::size_t row_bytes = bytes.size() / n_rows;
  const std::size_t head_rows = n_rows / n_heads;
  const std::size_t half = head_rows / 2;
  std::vector<std::byte> head(head_rows * row_bytes);
  for (std::size_t h = 0; h < n_heads; ++h) {
    std::byte* begin = bytes.data() + h * head.size();
    std::memcpy(head.data(), begin, head.size());
    for (std::size_t row = 0; row < head_rows; ++row) {
      const std::size_t source = 2 * (row % half) + row / half;
      std::memcpy(begin + row * row_bytes, head.data() + source * row_bytes, row_bytes);
    }
  }
}

std::optional<mx::Dtype> dense_dtype(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return mx::float32;
    case GgufType::kF16:
      return mx::float16;
    case GgufType::kBF16:
      return mx::bfloat16;
    default:
      return std::nullopt;
  }
}

// Bits per code of a type that stays quantized.
std::optional<int> affine_bits(GgufType type) {
  if (const std::optional<AffineBlock> block = affine_block(type)) return block->bits;
  return grouped_bits(type);
}

// Whether matrices of the type become float16: they can be read, but have no packed form.
bool is_converted(GgufType type) {
  return can_dequantize(type) && !dense_dtype(type) && !affine_bits(type);
}

constexpr std::size_t kPieceBlocks = std::size_t{1} << 14;

class GgufWeights : public Weights {
 public:
  GgufWeights(std::shared_ptr<const GgufFile> file, const ModelConfig& config)
      : Weights(file->path()),
        file_(std::move(file)),
        is_interleaved_(config.model_type == "llama" || config.model_type == "granitemoehybrid"),
        n_heads_(config.n_heads),
        n_kv_heads_(config.n_kv_heads),
        linear_factor_(config.rope.type == "linear" ? static_cast<float>(config.rope.factor) : 1) {
    for (const GgufTensor& tensor : file_->tensors()) {
      if (tensor.name == "token_embd.weight") has_float32_embeddings_ = tensor.type == GgufType::kF32;
      const std::optional<std::string> name = name_of_gguf_tensor(tensor.name, config);
      if (!name) {
        offer_unknown(tensor.name);
        continue;
      }
      tensors_[*name] = &tensor;
      offer(*name);
    }
  }

  std::vector<std::string> notes() const override {
    std::vector<std::string> notes;
    for (const auto& [type, n_tensors] : converted_) {
      notes.push_back(std::to_string(n_tensors) + " tensors of type " + gguf_type_name(type) + " became float16");
    }
    return notes;
  }

 protected:
  kernels::Weight read_matrix(const std::string& module, const MatrixShape& shape) override {
    kernels::Weight weight = read_stored(module, shape);
    return kernels::on_cpu() ? weight : typed_for_gpu(std::move(weight));
  }

  std::optional<kernels::WeightSource> matrix_source(const std::string& module, const MatrixShape& shape) override {
    const GgufTensor& tensor = checked(module + ".weight", shape.sizes(shape.columns));
    const std::optional<kernels::cpu::PackedFormat> format = packed_format(tensor, shape);
    if (!format) return std::nullopt;
    if (is_converted(tensor.type)) ++converted_[tensor.type];
    const std::size_t n_heads = interleaved_heads(module);
    const std::size_t n_rows = static_cast<std::size_t>(format->n_rows);
    const std::size_t head_rows = n_heads > 0 ? n_rows / n_heads : 1;
    const std::size_t row_bytes = tensor.size_bytes / n_rows;
    const std::size_t row_room = room_bytes(tensor.type, format->n_columns);
    const auto read = [=, this, &tensor, format = *format](int begin, int end, std::byte* scratch) {
      const auto n_here = static_cast<std::size_t>(end - begin);
      const std::span<std::byte> bytes(scratch + n_here * row_room, n_here * row_bytes);
      file_->read_part(tensor, static_cast<std::size_t>(begin) * row_bytes, bytes);
      if (n_heads > 0) deinterleave_heads(bytes, n_here, n_here / head_rows);
      return stored_rows(tensor, format, bytes, scratch);  // whose beginning is aligned
    };
    return kernels::WeightSource{*format, row_bytes + row_room, read, static_cast<int>(head_rows)};
  }

  // No GGUF file has such blocks in tensors of their own: its type MXFP4 is read as a matrix.
  kernels::Weight read_mxfp4_blocks(const std::string& name, const MatrixShape&) override {
    throw UnsupportedError(path_, name, "can't be read from a GGUF file");
  }

  // llama.cpp's converter has added the 1.
  mx::array centered_norm(const std::string& name, int size) override {
    return mx::astype(vector(name, size), mx::float32);
  }

  mx::array decay_rates(const std::string& name, int size) override {
    mx::array rates = mx::astype(vector(name, size), mx::float32);
    mx::eval(rates);
    return rates;
  }

  std::vector<std::int64_t> shape_of(const std::string& name) const override { return tensors_.at(name)->shape; }

  mx::array read_integers(const std::string& name, const std::vector<std::int64_t>&) override {
    throw UnsupportedError(path_, name, "whole numbers can't be read from a GGUF file");
  }

  mx::array read_tensor(const std::string& name, const std::vector<std::int64_t>& shape) override {
    const GgufTensor& tensor = checked(name, shape);
    mx::array dense = read_dense(tensor);
    const std::size_t n_heads = interleaved_heads(name.substr(0, name.rfind('.')));
    if (n_heads > 0) {
      deinterleave_heads({dense.data<std::byte>(), dense.nbytes()}, static_cast<std::size_t>(shape[0]), n_heads);
    }
    if (name == kRopeFactors) return mx::multiply(mx::astype(dense, mx::float32), mx::array(linear_factor_));
    return mx::reshape(dense, {shape.begin(), shape.end()});
  }

 private:
  std::size_t interleaved_heads(const std::string& module) const {
    if (!is_interleaved_) return 0;
    if (module.ends_with(".self_attn.q_proj")) return static_cast<std::size_t>(n_heads_);
    if (module.ends_with(".self_attn.k_proj")) return static_cast<std::size_t>(n_kv_heads_);
    return 0;
  }

  // How a matrix is packed for the CPU's kernels; nullopt for a type that they don't read.
  static std::optional<kernels::cpu::PackedFormat> packed_format(const GgufTensor& tensor, const MatrixShape& shape) {
    kernels::cpu::PackedFormat format{shape.all_rows(), shape.columns, kernels::cpu::Element::kF32};
    if (const std::optional<mx::Dtype> dtype = dense_dtype(tensor.type)) {
      format.element = kernels::element_of(*dtype);
      return format;
    }
    const std::optional<int> bits = affine_bits(tensor.type);
    if (is_converted(tensor.type)) format.element = kernels::cpu::Element::kF16;
    if (!bits) return is_converted(tensor.type) ? std::optional(format) : std::nullopt;
    const std::optional<AffineBlock> block = affine_block(tensor.type);
    format.bits = *bits;
    format.group_size = kAffineGroup;
    if (block) format.element = kernels::cpu::Element::kF16;
    format.has_biases = !block || block->has_bias;
    return format;
  }

  // What reading a row takes beyond its bytes: the values of one that is converted, or the parts of split groups.
  static std::size_t room_bytes(GgufType type, int n_columns) {
    if (is_converted(type)) return static_cast<std::size_t>(n_columns) * (sizeof(float) + sizeof(std::uint16_t));
    const std::optional<int> bits = grouped_bits(type);
    if (!bits) return 0;
    return static_cast<std::size_t>(n_columns / kAffineGroup) *
           (static_cast<std::size_t>(*bits) * 4 + 2 * sizeof(float));
  }

  // `bytes`, rows of the tensor, for packing, with room for what room_bytes() counts. nullopt if a scale or bias can't
  // be held.
  std::optional<kernels::cpu::StoredRows> stored_rows(const GgufTensor& tensor,
                                                      const kernels::cpu::PackedFormat& format,
                                                      std::span<const std::byte> bytes, std::byte* room) const {
    if (is_converted(tensor.type)) return converted_rows(tensor, format, bytes, room);
    if (grouped_bits(tensor.type)) return split_rows(tensor.type, format, bytes, room);
    kernels::cpu::StoredRows rows{bytes.data(), tensor.size_bytes / static_cast<std::size_t>(format.n_rows)};
    if (!format.is_quantized()) return rows;
    if (!is_affine(tensor.type, bytes)) return std::nullopt;
    const AffineBlock block = *affine_block(tensor.type);
    rows.values += block.codes_offset();
    rows.scales = bytes.data();
    rows.biases = bytes.data() + block.bias_offset();
    rows.block_bytes = rows.group_bytes = static_cast<std::size_t>(gguf_block(tensor.type)->size_bytes);
    rows.row_group_bytes = rows.row_bytes;
    rows.order = format.bits == 8 ? kernels::cpu::CodeOrder::kSigned : kernels::cpu::CodeOrder::kHalves;
    return rows;
  }

  kernels::cpu::StoredRows converted_rows(const GgufTensor& tensor, const kernels::cpu::PackedFormat& format,
                                          std::span<const std::byte> bytes, std::byte* room) const {
    const GgufBlock block = *gguf_block(tensor.type);
    const std::size_t n_values =
        bytes.size() / static_cast<std::size_t>(block.size_bytes) * static_cast<std::size_t>(block.n_elements);
    const std::span<float> values(reinterpret_cast<float*>(room), n_values);
    const std::span<std::uint16_t> halves(reinterpret_cast<std::uint16_t*>(room + values.size_bytes()), n_values);
    to_halves(tensor, bytes, values, halves);
    return {reinterpret_cast<const std::byte*>(halves.data()),
            static_cast<std::size_t>(format.n_columns) * sizeof(std::uint16_t)};
  }

  static std::optional<kernels::cpu::StoredRows> split_rows(GgufType type, const kernels::cpu::PackedFormat& format,
                                                            std::span<const std::byte> bytes, std::byte* room) {
    const GgufBlock block = *gguf_block(type);
    const std::size_t n_groups = bytes.size() / static_cast<std::size_t>(block.size_bytes) *
                                 static_cast<std::size_t>(block.n_elements / kAffineGroup);
    const auto row_groups = static_cast<std::size_t>(format.n_groups());
    auto* scales = reinterpret_cast<float*>(room);
    auto* biases = scales + n_groups;
    auto* codes = reinterpret_cast<std::byte*>(biases + n_groups);
    const std::size_t block_bytes = static_cast<std::size_t>(format.bits) * 4;
    if (!split_groups(type, bytes, {{codes, n_groups * block_bytes}, {scales, n_groups}, {biases, n_groups}})) {
      return std::nullopt;
    }
    kernels::cpu::StoredRows rows{codes, row_groups * block_bytes, block_bytes};
    rows.scales = reinterpret_cast<const std::byte*>(scales);
    rows.biases = reinterpret_cast<const std::byte*>(biases);
    rows.group_bytes = sizeof(float);
    rows.row_group_bytes = row_groups * sizeof(float);
    rows.order = kernels::cpu::CodeOrder::kHalves;
    return rows;
  }

  // The converter cuts some vectors into rows, or gives them an axis of 1, and makes a vector of a matrix of one row.
  static bool is_same_vector(const GgufTensor& tensor, const std::vector<std::int64_t>& shape) {
    const bool is_vector = shape.size() == 1 || (shape.size() == 2 && shape[0] == 1);
    return is_vector && std::cmp_equal(tensor.n_elements(), shape.back());
  }

  const GgufTensor& checked(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const GgufTensor& tensor = *tensors_.at(name);
    if (tensor.shape != shape && !is_same_vector(tensor, shape)) {
      throw FormatError(path_, tensor.name,
                        "has shape " + kernels::shape_text(tensor.shape) + ", expected " + kernels::shape_text(shape));
    }
    return tensor;
  }

  std::vector<std::byte> read_blocks(const GgufTensor& tensor) const {
    std::vector<std::byte> bytes(tensor.size_bytes);
    file_->read(tensor, bytes);
    return bytes;
  }

  kernels::Weight read_stored(const std::string& module, const MatrixShape& shape) {
    const GgufTensor& tensor = checked(module + ".weight", shape.sizes(shape.columns));
    const auto n_rows = static_cast<std::size_t>(shape.all_rows());
    const std::size_t n_heads = interleaved_heads(module);
    if (tensor.type == GgufType::kMXFP4) return read_mxfp4(tensor);
    if (affine_bits(tensor.type)) {
      if (std::optional<kernels::Weight> weight = read_affine(tensor, n_heads)) return *weight;
    }
    mx::array dense = read_dense(tensor);
    if (n_heads > 0) deinterleave_heads({dense.data<std::byte>(), dense.nbytes()}, n_rows, n_heads);
    return {mx::reshape(dense, {shape.all_rows(), shape.columns}), std::nullopt};
  }

  // Converted once, so that all of a model's products are in the type that its embeddings have. Blocks have scales of
  // float16 whatever the model was trained in, and the activations of some (Gemma's) leave its range: bfloat16.
  kernels::Weight typed_for_gpu(kernels::Weight weight) const {
    const auto typed = [dtype = has_float32_embeddings_ ? mx::float32 : mx::bfloat16](mx::array& a) {
      a = mx::astype(a, dtype);
      mx::eval(a);
    };
    if (!weight.quantization) {
      typed(weight.data);
    } else {
      typed(weight.quantization->scales);
      typed(weight.quantization->biases);
    }
    return weight;
  }

  static mx::Shape array_shape(const GgufTensor& tensor) { return {tensor.shape.begin(), tensor.shape.end()}; }

  kernels::Weight read_mxfp4(const GgufTensor& tensor) const {
    constexpr std::size_t kBlockBytes = 17;  // the exponent, then the codes
    const auto n_groups = static_cast<int>(tensor.shape.back() / kMxfp4Group);
    const auto rows = static_cast<int>(tensor.n_elements() / tensor.shape.back());
    const auto nothing = [](std::span<std::byte>) {};
    mx::array words = filled_array({rows, n_groups * kMxfp4AffineBits}, mx::uint32, nothing);
    mx::array scales = filled_array({rows, n_groups}, mx::bfloat16, nothing);
    mx::array biases = filled_array({rows, n_groups}, mx::bfloat16, nothing);
    const std::vector<std::byte> blocks = read_blocks(tensor);
    const Mxfp4Groups groups{blocks.data() + 1, kBlockBytes, blocks.data(), kBlockBytes, Mxfp4Order::kHalves};
    const Mxfp4Affine out{elements<std::uint32_t>(words), elements<std::uint16_t>(scales),
                          elements<std::uint16_t>(biases)};
    if (!mxfp4_to_affine(groups, out)) {
      throw FormatError(path_, tensor.name, "holds a scale that is too large, or none");
    }
    return {words, kernels::Quantization{scales, biases, kMxfp4Group, kMxfp4AffineBits}};
  }

  // nullopt if a scale or bias can't be held.
  std::optional<kernels::Weight> read_affine(const GgufTensor& tensor, std::size_t n_heads) {
    const int bits = *affine_bits(tensor.type);
    const auto columns = tensor.shape.back();
    const int rows = static_cast<int>(tensor.n_elements() / columns);
    const int n_groups = static_cast<int>(columns / kAffineGroup);
    const auto nothing = [](std::span<std::byte>) {};
    const mx::Dtype dtype = grouped_bits(tensor.type) ? mx::float32 : mx::float16;
    mx::array words = filled_array({rows, n_groups * bits}, mx::uint32, nothing);
    mx::array scales = filled_array({rows, n_groups}, dtype, nothing);
    mx::array biases = filled_array({rows, n_groups}, dtype, nothing);
    const GgufBlock block = *gguf_block(tensor.type);
    const auto block_bytes = static_cast<std::size_t>(block.size_bytes);
    const auto block_groups = static_cast<std::size_t>(block.n_elements / kAffineGroup);
    const std::size_t n_blocks = scales.size() / block_groups;
    // In pieces: what is read on the way to a large matrix need not be as large.
    for (std::size_t begin = 0; begin < n_blocks; begin += kPieceBlocks) {
      const std::size_t n = std::min(kPieceBlocks, n_blocks - begin);
      piece_.resize(n * block_bytes);
      file_->read_part(tensor, begin * block_bytes, piece_);
      const std::size_t first = begin * block_groups;
      const std::size_t n_here = n * block_groups;
      const auto n_words = static_cast<std::size_t>(bits);
      const std::span<std::uint32_t> some = elements<std::uint32_t>(words).subspan(first * n_words, n_here * n_words);
      if (!unpack(tensor.type, some, scales, biases, first, n_here)) return std::nullopt;
    }
    if (n_heads > 0) {
      for (mx::array* part : {&words, &scales, &biases}) {
        deinterleave_heads({part->data<std::byte>(), part->nbytes()}, static_cast<std::size_t>(rows), n_heads);
      }
    }
    return kernels::Weight{words, kernels::Quantization{scales, biases, static_cast<int>(kAffineGroup), bits}};
  }

  // The blocks in piece_, n groups from the one numbered `first` on.
  bool unpack(GgufType type, std::span<std::uint32_t> words, mx::array& scales, mx::array& biases, std::size_t first,
              std::size_t n) {
    if (!grouped_bits(type)) {
      return unpack_affine(type, piece_,
                           {words, elements<std::uint16_t>(scales).subspan(first, n),
                            elements<std::uint16_t>(biases).subspan(first, n)});
    }
    std::vector<std::byte> codes(words.size_bytes());
    const SplitGroups groups{codes, elements<float>(scales).subspan(first, n),
                             elements<float>(biases).subspan(first, n)};
    if (!split_groups(type, piece_, groups)) return false;
    unpack_codes(*grouped_bits(type), codes, words);
    return true;
  }

  mx::array read_dense(const GgufTensor& tensor) {
    if (const std::optional<mx::Dtype> dtype = dense_dtype(tensor.type)) {
      return filled_array(array_shape(tensor), *dtype, [&](std::span<std::byte> out) { file_->read(tensor, out); });
    }
    if (!can_dequantize(tensor.type)) {
      throw UnsupportedError(path_, tensor.name, "type " + gguf_type_name(tensor.type) + " can't be read as weights");
    }
    ++converted_[tensor.type];
    mx::array halves = filled_array(array_shape(tensor), mx::float16, [](std::span<std::byte>) {});
    convert(tensor, elements<std::uint16_t>(halves));
    return halves;
  }

  void check_fits_float16(const GgufTensor& tensor, std::span<const float> values) const {
    constexpr float kFirstToOverflow = 65520;  // half a step above the largest, 65504
    // Written so that NaN does not fit.
    const auto fits = [](float value) { return std::abs(value) < kFirstToOverflow; };
    const auto found = std::find_if_not(values.begin(), values.end(), fits);
    if (found == values.end()) return;
    std::ostringstream value;
    std::isnan(*found) ? value << "a NaN" : value << *found;
    throw FormatError(path_, tensor.name, "holds " + value.str() + ", which does not fit float16");
  }

  // `in`, blocks of the tensor, as float16, by way of `values`.
  void to_halves(const GgufTensor& tensor, std::span<const std::byte> in, std::span<float> values,
                 std::span<std::uint16_t> out) const {
    dequantize_blocks(tensor.type, in, values);
    check_fits_float16(tensor, values);
    std::transform(values.begin(), values.end(), out.begin(), float_to_float16);
  }

  // Row by row, so that the float32 values in between need little memory.
  void convert(const GgufTensor& tensor, std::span<std::uint16_t> out) const {
    const std::vector<std::byte> blocks = read_blocks(tensor);
    const auto n_columns = static_cast<std::size_t>(tensor.shape.back());
    const std::size_t n_rows = out.size() / n_columns;
    const std::size_t row_bytes = blocks.size() / n_rows;
    std::vector<float> row(n_columns);
    for (std::size_t r = 0; r < n_rows; ++r) {
      to_halves(tensor, std::span(blocks).subspan(r * row_bytes, row_bytes), row,
                out.subspan(r * n_columns, n_columns));
    }
  }

  std::shared_ptr<const GgufFile> file_;
  bool is_interleaved_;
  int n_heads_;
  int n_kv_heads_;
  float linear_factor_;
  bool has_float32_embeddings_ = false;
  std::map<std::string, const GgufTensor*> tensors_;  // by Hugging Face name; point into file_
  std::map<GgufType, int> converted_;                 // tensors that became float16
  std::vector<std::byte> piece_;                      // of a tensor that is being read
};

}  // namespace

std::unique_ptr<Weights> open_gguf_weights(std::shared_ptr<const GgufFile> file, const ModelConfig& config) {
  return std::make_unique<GgufWeights>(std::move(file), config);
}

}  // namespace memoir::model
