#pragma once

// A forward pass on its way through the layers: which sequences it runs, and where their tokens lie.
//
// Tokens lie in rows [B, T]: B sequences of T tokens that share one cache, or (B = 1) several sequences of any lengths
// side by side, each with a cache of its own, or (layers that are all attention) in the cells of one. What works on
// rows one by one, as norms and matrices do, need not know; what depends on earlier tokens goes through the functions
// here. A sequence's rows get the bits that they get alone.
//
// Threads: the thread that owns MLX's work. Ownership: refers to the caches, which must outlive it.

#include <mlx/array.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/cell_caches.h"
#include "memoir/cache/recurrent.h"
#include "memoir/kernels/attention.h"
#include "memoir/kernels/mixer_block.h"
#include "memoir/kernels/recurrence.h"
#include "memoir/kernels/rope.h"

namespace memoir::model {

/// The B sequences of one cache, or a single one.
struct StepSequence {
  cache::ModelCache* cache;  // null in a pass over cells
  int begin;                 // the row, in T, of its first token
  int n_tokens;              // at least 1
  int offset;                // that token's position
};

/// Keys and values to attend to, of each sequence: what kernels::attention takes.
using Histories = std::vector<kernels::SequenceHistory>;

struct Step {
  mlx::core::array ids;                                         // [B, T]
  std::vector<StepSequence> sequences;                          // by their rows, which they cover
  cache::CellCaches* cells = nullptr;                           // of a pass over cells, which has begun there
  std::vector<kernels::Turns> turns = {};                       // for each rope of the model
  std::map<std::size_t, Histories> histories = {};              // of layers whose keys and values others read, by layer
  std::optional<mlx::core::array> layer_inputs = std::nullopt;  // [B, T, L, P]: something for each layer alone

  /// Of every row, [T].
  std::vector<int> positions() const;
};

/// Puts into a layer's cache what its operations left after n_tokens: the convolution's tail, and the state of what
/// stands behind it (null: nothing does), with those captured on the way, or the replay. Throws as RecurrentCache::put.
void put_states(cache::RecurrentCache& cache, int n_tokens, const kernels::Recurrence& convolution,
                const kernels::Recurrence* behind = nullptr, cache::StateReplay replay = {});

/// x[:, :n_tokens]. x: [B, T, ...].
mlx::core::array first_tokens(const mlx::core::array& x, int n_tokens);

/// The turns of the step's rows.
kernels::Turns make_turns(const kernels::Rope& rope, const std::vector<StepSequence>& sequences);

/// Which of a model's caches: a layer's, or one of the list that a layer has (CacheList).
struct CachePlace {
  std::size_t layer;
  std::optional<std::size_t> child = std::nullopt;

  CachePlace(std::size_t the_layer) : layer(the_layer) {}  // where an index is meant, the index will do
  CachePlace(std::size_t the_layer, std::size_t the_child) : layer(the_layer), child(the_child) {}
};

/// Throw std::invalid_argument if there is none of that sort.
cache::AttentionCache& attention_cache(const cache::ModelCache& cache, const CachePlace& place);
cache::RecurrentCache& recurrent_cache(const cache::ModelCache& cache, const CachePlace& place);

/// A recurrent layer's mixer as one operation, from the states before the step: mamba_block() or delta_block().
using MixerFunction = std::function<kernels::MixerOutput(std::vector<kernels::MixerStates> before)>;

/// What `run` makes of x [B, T, ...], of the states in the caches at `place`, which then hold those behind the step's
/// tokens. Lazy. Null, the caches unchanged, where that can't be: in a pass over cells, or if a cache asks for states
/// inside the step.
std::optional<mlx::core::array> mix_at_once(const mlx::core::array& x, const Step& step, const CachePlace& place,
                                            const MixerFunction& run);

/// Appends each sequence's rows to its attention cache at `place`, or all of them to the cells. Lazy.
/// keys: [B, Hkv, T, Dk], values: [B, Hkv, T, Dv]. Throws as AttentionCache::update or CellCaches::update.
Histories update(const Step& step, const CachePlace& place, const mlx::core::array& keys,
                 const mlx::core::array& values);

/// A sequence's rows of what by_sequence() is given, and its cache. Returns [B, n_tokens, ...].
using SequenceFunction =
    std::function<mlx::core::array(const std::vector<mlx::core::array>& rows, cache::ModelCache& cache)>;

/// What `function` makes of each sequence, side by side: [B, T, ...]. inputs: each [B, T, ...].
/// Throws std::invalid_argument in a pass over cells, which hold nothing but keys and values.
mlx::core::array by_sequence(const Step& step, const std::vector<mlx::core::array>& inputs,
                             const SequenceFunction& function);

}  // namespace memoir::model
