#pragma once

// Gemma 4's assistant (gemma4_assistant): a small network that guesses the tokens after those that a Gemma 4 model has
// taken in. It keeps nothing between guesses: its layers have queries only, and read the keys and values that the
// model, its target, holds in its last layer of each kind. What goes in is the target's embedding of a token beside a
// hidden state: the target's own for the first guess, then the assistant's of the guess before. Every guess after one
// another stands at one position, that of the first token that the target has not taken in.
//
// With use_ordered_embeddings only the tokens of a few clusters get logits of their own: those whose centroids fit
// best.
//
// Threads: the thread that owns MLX's work. Ownership: owns its weights; not changed by use.

#include <mlx/array.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/norm.h"
#include "memoir/kernels/rope.h"
#include "memoir/model/decoder.h"
#include "memoir/model/model.h"

namespace memoir::model {

/// The keys and values of a target that an assistant reads: [1, Hkv, T, D] each, at the positions below T.
struct SharedHistories {
  cache::History sliding;
  cache::History full;
};

class Gemma4Assistant {
 public:
  struct Guess {
    mlx::core::array logits;  // [V]
    mlx::core::array hidden;  // [1, 1, hidden of the target], for the next guess
  };

  /// n_visible: how many of the latest positions layers with a window see; nullopt: those that the target's window
  /// leaves a query at position T, one less than the window.
  /// Throws as make_model().
  Gemma4Assistant(const ModelConfig& config, Weights& weights, std::optional<int> n_visible = std::nullopt);

  /// Throws UnsupportedError, naming the configuration's key and both values, unless it was made for such a target:
  /// sizes, kinds of layers, vocabulary and the turns of heads agree.
  void check_fits(const Model& target) const;

  /// A guess at what follows a token at position T. embedding: the target's, hidden: see above, both [1, 1, hidden of
  /// the target]. Lazy.
  Guess guess(const mlx::core::array& embedding, const mlx::core::array& hidden, const SharedHistories& shared,
              int position) const;

  std::size_t size_bytes() const;

 private:
  struct Clusters {
    kernels::Linear centroids;  // [n, hidden]
    mlx::core::array tokens;    // [n, V / n], int32
    int n_chosen;
  };

  mlx::core::array logits(const mlx::core::array& h) const;
  std::optional<Clusters> read_clusters(Weights& weights) const;

  ModelConfig config_;
  int target_hidden_;
  std::vector<kernels::Rope> ropes_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  kernels::Norm norm_;
  kernels::Weight embedding_;  // [V, hidden]
  kernels::Linear before_;     // [hidden, 2 * target's]
  kernels::Linear after_;      // [target's, hidden]
  std::optional<Clusters> clusters_;
};

/// Whether a model's directory has an assistant's configuration. Throws UnsupportedError, naming model_type, for one
/// that has an assistant's keys under another name, or none.
bool is_gemma4_assistant(const std::filesystem::path& directory);

/// Loads a directory with config.json and safetensors. Throws as load_model.
std::unique_ptr<Gemma4Assistant> load_gemma4_assistant(const std::filesystem::path& directory,
                                                       std::optional<int> n_visible = std::nullopt);

/// The layers of a Gemma 4 model whose caches an assistant reads: the last with keys and values of its own of each
/// kind.
struct SharedLayers {
  std::size_t sliding;
  std::size_t full;
};

/// Throws UnsupportedError for a model without both kinds, or of another family.
SharedLayers shared_layers(const Model& target);

}  // namespace memoir::model
