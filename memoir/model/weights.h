#pragma once

// A model's tensors, by the names Hugging Face gives them, whatever file they lie in.
//
// A loader asks for every tensor it needs, with the shape it expects, and then calls finish(), which refuses tensors
// that nobody asked for. Tensors are read when asked for, one at a time, on the CPU straight into the kernels' packed
// form (kernels/weight_source.h); where that is not possible, both forms of one tensor are in memory at once. Quantized
// tensors stay quantized where MLX has the same form (see kernels/weight.h).
// Threads: one at a time.

#include <mlx/array.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/gguf.h"
#include "memoir/kernels/weight.h"
#include "memoir/kernels/weight_source.h"
#include "memoir/kernels/weight_stack.h"
#include "memoir/model/config.h"

namespace memoir::model {

/// What a matrix, or several stacked in one tensor, must look like.
struct MatrixShape {
  int rows;
  int columns;
  int n = 0;  // the leading axis, 0: none

  int all_rows() const { return n == 0 ? rows : n * rows; }
  std::vector<std::int64_t> sizes(std::int64_t last) const;
};

class Weights {
 public:
  virtual ~Weights() = default;

  /// The matrix `module`.weight, [rows, columns]: dense float32, float16 or bfloat16, or quantized; as
  /// kernels::prepared leaves it.
  /// Throws FormatError (path, tensor) if it, its scales or biases are missing or have another shape or type, or a
  /// value is too large to be held; UnsupportedError for a type that can't be read; FileError.
  kernels::Weight matrix(const std::string& module, int rows, int columns);

  /// The same as the file stores it, not packed; with shape.n all its rows one after the other.
  kernels::Weight stored_matrix(const std::string& module, const MatrixShape& shape);

  /// n matrices, one tensor `module`.weight [n, rows, columns]. Throws as matrix().
  kernels::WeightStack stack(const std::string& module, const MatrixShape& shape);

  /// n matrices in a tensor each, `modules`, of one type. Throws as matrix(), and FormatError if types differ.
  kernels::WeightStack stack(const std::vector<std::string>& modules, const MatrixShape& shape);

  /// n matrices of MXFP4, `name`_blocks [n, rows, columns / 32, 16] and `name`_scales [n, rows, columns / 32], as
  /// gpt-oss is published: their rows one after the other, in the affine form of base/mxfp4.h. Throws as matrix().
  kernels::Weight mxfp4_blocks(const std::string& name, const MatrixShape& shape);

  /// The tensor `name`, dense. Throws as matrix().
  mlx::core::array tensor(const std::string& name, const std::vector<std::int64_t>& shape);

  /// The weight of a depthwise convolution, stored as [channels, 1, width] (Hugging Face) or [channels, width, 1]
  /// (MLX), or [channels, width] (GGUF): [width, channels], in the activations' type. Throws as matrix().
  mlx::core::array convolution(const std::string& name, int n_channels, int width);

  /// Whether that weight is stored in MLX's order, which tells files that mlx-lm converted: it changes norms too. False
  /// where both orders are the same, or there is no such tensor.
  bool is_mlx_convolution(const std::string& name) const;

  /// The vector `name`, [size], dense.
  /// Throws as matrix().
  mlx::core::array vector(const std::string& name, int size);

  /// The vector `name` of whole numbers, [size], each at least 0 and below `end`: int32. Throws as matrix(), and
  /// FormatError for another number.
  mlx::core::array indices(const std::string& name, int size, int end);

  /// How fast the states of a recurrence decay, [size] float32: -exp of the tensor `name`, or that itself in GGUF
  /// files, whose converter has worked it out. Evaluated. Throws as matrix().
  virtual mlx::core::array decay_rates(const std::string& name, int size);

  /// The weight of a norm that multiplies by 1 + w, as what it multiplies by, in float32: Hugging Face's and MLX's
  /// files hold w, GGUF files 1 + w. Throws as matrix().
  virtual mlx::core::array centered_norm(const std::string& name, int size);

  bool has(const std::string& name) const { return available_.contains(name); }

  /// Whether there are tensors whose names begin with this.
  bool has_any(const std::string& prefix) const;

  /// Lets finish() accept the tensors whose names begin with this, asked for or not.
  void pass_over(const std::string& prefix);

  /// Throws FormatError naming the tensors that were never asked for, if there are any.
  void finish() const;

  /// What a user should know about how the file was read ("12 tensors of type Q4_K became float16").
  virtual std::vector<std::string> notes() const { return {}; }

 protected:
  explicit Weights(std::string path) : path_(std::move(path)) {}

  virtual kernels::Weight read_matrix(const std::string& module, const MatrixShape& shape) = 0;
  /// The same, for kernels::prepared() to read; checked like it. nullopt where that has to be of read_matrix()'s. As
  /// long as this object is there.
  virtual std::optional<kernels::WeightSource> matrix_source(const std::string& module, const MatrixShape& shape) = 0;
  virtual kernels::Weight read_mxfp4_blocks(const std::string& name, const MatrixShape& shape) = 0;
  /// Of a tensor that is there.
  virtual std::vector<std::int64_t> shape_of(const std::string& name) const = 0;
  virtual mlx::core::array read_tensor(const std::string& name, const std::vector<std::int64_t>& shape) = 0;

  /// Of whole numbers, int32 or int64.
  virtual mlx::core::array read_integers(const std::string& name, const std::vector<std::int64_t>& shape) = 0;

  /// The file that a tensor is in, or should be.
  virtual std::string path_of(const std::string& /*name*/) const { return path_; }

  /// Throws FormatError if there is no such tensor.
  void check_is_there(const std::string& name) const;

  /// Declares a tensor that can be asked for.
  void offer(const std::string& name) { available_.insert(name); }
  void take(const std::string& name) { taken_.insert(name); }

  /// Declares a tensor that no model has a name for, by its name in the file.
  void offer_unknown(const std::string& name) { unknown_.insert(name); }

  std::string path_;

 private:
  void take_matrix(const std::string& module);

  std::set<std::string> available_;
  std::set<std::string> taken_;
  std::set<std::string> unknown_;
};

/// The files of weights that open_safetensors_weights reads, and no others that lie beside them.
struct SafetensorsFiles {
  std::vector<std::filesystem::path> paths;
  std::vector<std::string> indexed;  // tensors that model.safetensors.index.json names, if there is one
};

/// model.safetensors, or the shards that model.safetensors.index.json names; whether they are there is not looked at.
/// Throws FileError, and FormatError for an index that is wrong.
SafetensorsFiles safetensors_files(const std::filesystem::path& directory);

/// The tensors of a directory in Hugging Face or MLX layout: model.safetensors, or the shards that
/// model.safetensors.index.json names. lm_head, where config ties it to the embeddings, and rotary_emb.inv_freq, which
/// config gives as well, are passed over. Of a multimodal model the text part is offered, under the names that it has
/// alone ("language_model.model.norm.weight" and "model.language_model.norm.weight" are "model.norm.weight"), and
/// towers and projectors for other media are passed over.
/// Throws FileError; FormatError for a file that is none, an index that is wrong or names a tensor that no shard has, a
/// tensor in two shards, a quantization given for a module that there is not.
std::unique_ptr<Weights> open_safetensors_weights(const std::filesystem::path& directory, const ModelConfig& config);

/// The tensors of a GGUF file, and config as config_from_gguf read it. Reads the file while there are
/// tensors to read, which no other thread may do then.
/// For the architecture llama, llama.cpp's converter interleaves the rows of each query and key head for its rotary
/// kernel; they are put back in Hugging Face's order, so that one model serves both files. A linear RoPE factor, which
/// llama.cpp applies along with rope_freqs.weight, is multiplied into that tensor. A tensor under another name than
/// llama.cpp's counts as one that the model does not have. Throws nothing of its own.
std::unique_ptr<Weights> open_gguf_weights(std::shared_ptr<const GgufFile> file, const ModelConfig& config);

}  // namespace memoir::model
