#pragma once

// A language model: tokens and a cache in, logits out, or the states that logits are made of.
//
// Threads: the thread that owns MLX's work. A Model is not changed by use; several ModelCaches may be used with one.

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memoir/base/types.h"
#include "memoir/cache/cell_caches.h"
#include "memoir/cache/kv.h"
#include "memoir/model/config.h"
#include "memoir/model/weights.h"

namespace memoir::model {

/// Which rows of logits a forward pass computes.
enum class LogitRows {
  kAll,   // one for every token
  kLast,  // the last token's alone: what generation needs, and much cheaper after a long prompt
  kNone,
};

/// A sequence's part of a pass over several.
struct SequenceTokens {
  std::span<const TokenId> tokens;  // at least one
  cache::ModelCache* cache;         // of one sequence
  LogitRows rows = LogitRows::kLast;
};

/// What a pass over one sequence gives.
struct Pass {
  mlx::core::array logits;  // [B, n_rows, V]
  mlx::core::array hidden;  // [B, n_hidden_rows, hidden]: what the logits are made of, behind the final norm
};

/// A sequence's part of a pass over the cells of several.
struct CellTokens {
  std::span<const TokenId> tokens;  // at least one
  int sequence;
  LogitRows rows = LogitRows::kLast;
};

struct Step;

class Model {
 public:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }

  /// The most tokens a cache may hold.
  int context() const { return config_.max_position; }

  /// An empty cache with a layer for each of the model's. Rows of keys and values whose type is not chosen are float16
  /// where the model's embeddings are quantized, else as the model computes, on the CPU in float32.
  /// Throws std::invalid_argument for options that a layer of the model can't have.
  virtual cache::ModelCache make_cache(const cache::CacheOptions& options = {}) const = 0;

  /// Runs T tokens of each of B sequences, all at the positions that follow the cache's offset, and moves the offset
  /// by T. tokens: B * T, one sequence after the other; the first call fixes the cache's B.
  /// Returns logits [B, n_rows, V], n_rows being T, 1 or 0, in the activations' type. Lazy.
  /// Throws std::invalid_argument if the cache has another number of layers than the model, there are no tokens,
  /// n_sequences doesn't divide them or isn't the cache's, one is outside the vocabulary, or they pass the context().
  /// On a throw the cache is as before, or empty where a layer got ahead that can't go back.
  mlx::core::array forward(std::span<const TokenId> tokens, cache::ModelCache& cache, LogitRows rows,
                           int n_sequences = 1) const;

  /// The same with the hidden states of all rows, the last one or none, for what reads the model: a drafter's head.
  Pass forward_with_hidden(std::span<const TokenId> tokens, cache::ModelCache& cache, LogitRows rows,
                           LogitRows hidden_rows) const;

  /// Embeddings as the first layer gets them, [B, T, hidden]. ids: int32 [B, T], within the vocabulary (the caller
  /// checks). Lazy.
  virtual mlx::core::array embed(const mlx::core::array& ids) const = 0;

  /// Runs several sequences in one pass, each at the positions that follow its own cache's offset, whatever their
  /// numbers of tokens: weights are read once for all. Each gets the bits that it gets alone, on the CPU.
  /// Returns the logits of the rows that are asked for, by sequence: [n_rows, V]. Lazy; where no row is asked for,
  /// ModelCache::materialize computes what the caches hold.
  /// Throws std::invalid_argument as above, and if there are no sequences or two have one cache. On a throw each cache
  /// is as before, or empty where a layer got ahead that can't go back.
  mlx::core::array forward(std::span<const SequenceTokens> sequences) const;

  /// As forward() does with several sequences, errors included, but returns what the logits are made of: the rows'
  /// states behind the final norm, [n_rows, hidden], in the activations' type. Lazy.
  mlx::core::array hidden_states(std::span<const SequenceTokens> sequences) const;

  /// states: [..., hidden], as hidden_states() returns them. Returns their logits, [..., V]. Lazy.
  virtual mlx::core::array logits_of(const mlx::core::array& states) const = 0;

  /// The same over sequences in cells (cache::make_cell_caches of this model's cache), which may share rows. Each gets
  /// the bits that it gets alone in a ModelCache, on the CPU. Returns nullopt, nothing changed, if there is no room.
  /// Throws std::invalid_argument as above, if a sequence was not promised or is named twice, or there are more rows
  /// than the caches' max_batch. On a throw each sequence is as before, or empty where its window has let something go.
  std::optional<mlx::core::array> forward(cache::CellCaches& cells, std::span<const CellTokens> sequences) const;

  /// Turns keys of the model's layers to other positions, as they lie in its caches; empty where a layer's can't be.
  /// It refers to the model.
  virtual cache::KeyTurn key_turn() const { return {}; }

  /// Bytes of the weights.
  virtual std::size_t size_bytes() const = 0;

 protected:
  /// Runs the layers over a step of checked tokens and caches. rows: those of T whose states are wanted, ascending.
  /// Returns [B, n_rows, hidden], behind the final norm.
  virtual mlx::core::array states(Step& step, const std::vector<int>& rows) const = 0;

 private:
  void check(const SequenceTokens& sequence, int n_sequences) const;
  enum class Output { kStates, kLogits };
  mlx::core::array run(Step& step, const std::vector<int>& rows, Output output) const;
  mlx::core::array run(std::span<const SequenceTokens> sequences, Output output) const;
  void check(const cache::CellCaches& cells, std::span<const CellTokens> sequences) const;

  ModelConfig config_;
};

/// Throws UnsupportedError naming `path` if memoir does not have the architecture.
void check_supported(const std::string& model_type, const std::string& path);

/// The model of config.model_type with these weights. Every tensor is read and evaluated.
/// Throws UnsupportedError for an architecture that memoir does not have, FormatError for a tensor that is missing,
/// extra, misshapen or mistyped.
std::unique_ptr<Model> make_model(const ModelConfig& config, Weights& weights);

}  // namespace memoir::model
