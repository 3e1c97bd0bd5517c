#pragma once

// The layers of Gemma 4: what the model and its assistant, which guesses tokens for it, have in common. Gemma 3's
// blocks, with other heads in layers that see everything; some layers read the keys and values of others.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "memoir/kernels/rope.h"
#include "memoir/model/config.h"
#include "memoir/model/decoder.h"
#include "memoir/model/weights.h"

namespace memoir::model {

/// What one layer is.
struct Gemma4LayerKeys {
  bool is_sliding;
  int head_dim;
  int n_kv_heads;
  bool keys_are_values;               // values are the keys before their norm and rope
  std::optional<std::size_t> source;  // where in Step::histories the keys and values lie; nullopt: the layer's own
  bool is_source = false;             // of others
  int mlp_size = 0;
  std::size_t rope = 0;
};

struct Gemma4Keys {
  std::vector<Gemma4LayerKeys> layers;
  int input_size = 0;  // of a token's input for one layer, 0: there is none
  bool has_experts = false;
};

/// Kinds and sizes of all layers, each with keys and values of its own. Throws FormatError or UnsupportedError, naming
/// the key.
Gemma4Keys read_gemma4_keys(const ModelConfig& config);

/// num_kv_shared_layers: the last layers read the last ones of their kind before them.
void read_gemma4_sharing(const ModelConfig& config, Gemma4Keys& keys);

/// One rope for each kind of layer and size of head; tells the layers theirs.
std::vector<kernels::Rope> make_gemma4_ropes(const ModelConfig& config, std::vector<Gemma4LayerKeys>& layers);

/// Reads "model.layers.<index>". Throws as Weights.
std::unique_ptr<DecoderLayer> make_gemma4_layer(Weights& weights, const ModelConfig& config, const Gemma4Keys& keys,
                                                int index);

}  // namespace memoir::model
