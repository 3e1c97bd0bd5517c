#pragma once

// A model's tensors, by the names Hugging Face gives them, whatever file they lie in.
//
// A loader asks for every tensor it needs, with the shape it expects, and then calls finish(), which refuses tensors
// that nobody asked for. Tensors are read when asked for, one at a time. While one is unpacked (GGUF's blocks) or
// packed (kernels::prepared) both forms of it are in memory, of no more than one tensor at once. Quantized tensors stay
// quantized where MLX has the same form (see kernels/weight.h).
// Threads: one at a time.

#include <mlx/array.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/base/gguf.h"
#include "memoir/kernels/weight.h"
#include "memoir/model/config.h"

namespace memoir::model {

class Weights {
 public:
  virtual ~Weights() = default;

  /// The matrix `module`.weight, [rows, columns]: dense float32, float16 or bfloat16, or quantized; as
  /// kernels::prepared leaves it.
  /// Throws FormatError (path, tensor) if it, its scales or biases are missing or have another shape or type, or a
  /// value is too large to be held; UnsupportedError for a type that can't be read; FileError.
  kernels::Weight matrix(const std::string& module, int rows, int columns);

  /// The vector `name`, [size], dense.
  /// Throws as matrix().
  mlx::core::array vector(const std::string& name, int size);

  bool has(const std::string& name) const { return available_.contains(name); }

  /// Throws FormatError naming the tensors that were never asked for, if there are any.
  void finish() const;

  /// What a user should know about how the file was read ("12 tensors of type Q4_K became float16").
  virtual std::vector<std::string> notes() const { return {}; }

 protected:
  explicit Weights(std::string path) : path_(std::move(path)) {}

  virtual kernels::Weight read_matrix(const std::string& module, int rows, int columns) = 0;
  virtual mlx::core::array read_vector(const std::string& name, int size) = 0;

  /// Declares a tensor that can be asked for.
  void offer(const std::string& name) { available_.insert(name); }
  void take(const std::string& name) { taken_.insert(name); }

  /// Declares a tensor that no model has a name for, by its name in the file.
  void offer_unknown(const std::string& name) { unknown_.insert(name); }

  std::string path_;

 private:
  std::set<std::string> available_;
  std::set<std::string> taken_;
  std::set<std::string> unknown_;
};

/// The tensors of a directory in Hugging Face or MLX layout: model.safetensors, or the shards that
/// model.safetensors.index.json names. lm_head, where config ties it to the embeddings, and rotary_emb.inv_freq, which
/// config gives as well, are passed over.
/// Throws FileError; FormatError for a file that is none, an index that is wrong or names a tensor that no shard has, a
/// tensor in two shards.
std::unique_ptr<Weights> open_safetensors_weights(const std::filesystem::path& directory, const ModelConfig& config);

/// The tensors of a GGUF file of the llama architecture, and config as config_from_gguf read it. Consumes the file.
/// llama.cpp's converter interleaves the rows of each query and key head for its rotary kernel; they are put back in
/// Hugging Face's order, so that one model serves both files. A linear RoPE factor, which llama.cpp applies along with
/// rope_freqs.weight, is multiplied into that tensor. A tensor under another name than llama.cpp's counts as one that
/// the model does not have. Throws nothing of its own.
std::unique_ptr<Weights> open_gguf_weights(GgufFile file, const ModelConfig& config);

}  // namespace memoir::model
