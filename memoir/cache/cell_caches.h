#pragma once

// The cell caches of a model: one for each kind of its layers (all rows, a window, chunks), used as a whole. A refusal
// of one of them leaves all as they were.
//
// Beside ModelCache, which holds one sequence: this one holds several, which may share what they begin with.
// Threads and ownership: as CellCache; owns them.

#include <mlx/array.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/cell_cache.h"

namespace memoir::cache {

/// How much the cell caches of a model are to hold.
struct CellRoom {
  int max_sequences = 1;
  int capacity = 1;     // positions of each sequence
  int n_shared = 0;     // of them, positions at the beginning that all sequences share
  int max_batch = 512;  // the most rows of a batch
};

class CellCaches {
 public:
  /// Layer i belongs to caches[cache_of_layer[i]]; to none, and keeps no state, if that is empty.
  /// Throws std::invalid_argument if a number is out of range, there are no caches, or they were not promised the same
  /// number of sequences.
  CellCaches(const std::vector<CellCacheOptions>& caches, std::vector<std::optional<std::size_t>> cache_of_layer);

  std::size_t n_layers() const { return cache_of_layer_.size(); }
  const std::vector<CellCache>& caches() const { return caches_; }
  int max_sequences() const { return caches_.front().cells().options().max_sequences; }

  /// Positions of a sequence; 0 for an empty one.
  int offset(int sequence) const { return caches_.front().cells().end(sequence); }

  std::size_t size_bytes() const;
  void materialize() const;

  /// CellCache::begin of all. Returns false, nothing changed, if one has no room. Throws as that.
  bool begin(const CellBatch& batch);

  /// CellCache::put and histories of the layer's cache. Lazy. Throws as they do, and for a layer without a cache.
  std::vector<kernels::SequenceHistory> update(std::size_t layer, const mlx::core::array& keys,
                                               const mlx::core::array& values);

  /// CellCache::copy_prefix of all.
  void copy_prefix(int from, int to, int end);

  /// True if all can.
  bool can_resume(int sequence, int position) const;

  /// The first refusal there is, else kDone.
  Removal check_removal(int sequence, int begin, std::optional<int> end = std::nullopt) const;

  /// CellCache::remove of all; on a refusal, or a throw of a KeyTurn, everything is as before.
  Removal remove(int sequence, int begin, std::optional<int> end = std::nullopt);

  /// CellCache::defragment of all.
  int defragment(int max_moves = Layout::kMaxRows);

  /// A snapshot of each layer, for the caches of a ModelCache to restore; null for a layer without state. Empty if one
  /// can't be made.
  std::vector<std::unique_ptr<Snapshot>> snapshot(int sequence) const;

  /// CellCache::restore of all, from a snapshot of each layer (null where it has no state). Returns false, nothing
  /// changed, if one can't be restored. Throws as that, and if there are not as many snapshots as layers.
  bool restore(int sequence, const std::vector<std::unique_ptr<Snapshot>>& snapshots, int target);

 private:
  CellCache& of_layer(std::size_t layer);
  std::vector<LayerSnapshot> of_cache(std::size_t cache, const std::vector<std::unique_ptr<Snapshot>>& snapshots) const;

  std::vector<CellCache> caches_;
  std::vector<std::optional<std::size_t>> cache_of_layer_;
};

/// What keeps layer `index` of `model` from being held in cells: the name of its kind; empty if nothing does.
std::string_view unfit_for_cells(const ModelCache& model, std::size_t index);

/// Cell caches for a model whose make_cache() gave `model`: the same windows, chunks, types of rows. Sequences grow
/// beside their own rows (Placing::kBesideOwn). `turn` may be empty.
/// Throws std::invalid_argument naming the kind of a layer that isn't attention with a cache of its own.
CellCaches make_cell_caches(const ModelCache& model, const CellRoom& room, const KeyTurn& turn = {});

}  // namespace memoir::cache
