#include "memoir/cache/cell_caches.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/cache/kv.h"

namespace memoir::cache {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cell_caches.") + function + "] " + what);
}

bool same_options(const KVOptions& a, const KVOptions& b) {
  return a.window == b.window && a.keep == b.keep && a.chunk == b.chunk && a.dtype == b.dtype &&
         a.quantization == b.quantization;
}

// As many as the sequences need that share their beginning; with a window no more than they ever have at once.
int n_cells_for(const CellsOptions& options, const CellRoom& room) {
  const int n_most = Cells(options).n_cells();  // refuses numbers out of range
  const int n_shared = std::clamp(room.n_shared, 0, room.capacity);
  const std::int64_t n_all = n_shared + std::int64_t{room.max_sequences} * (room.capacity - n_shared);
  return static_cast<int>(std::min<std::int64_t>(n_all, n_most));
}

CellCacheOptions options_for(const KVOptions& kv, const CellRoom& room, const KeyTurn& turn) {
  CellsOptions cells{.max_sequences = room.max_sequences,
                     .capacity = room.capacity,
                     .max_batch = room.max_batch,
                     .window = kv.window,
                     .keep = kv.keep,
                     .chunk = kv.chunk,
                     .placing = Placing::kBesideOwn};
  cells.n_cells = n_cells_for(cells, room);
  return {.cells = cells, .dtype = kv.dtype, .quantization = kv.quantization, .turn = turn};
}

}  // namespace

CellCaches::CellCaches(const std::vector<CellCacheOptions>& caches,
                       std::vector<std::optional<std::size_t>> cache_of_layer)
    : cache_of_layer_(std::move(cache_of_layer)) {
  if (caches.empty()) refuse("CellCaches", "there are no caches, expected at least one");
  for (const CellCacheOptions& options : caches) {
    if (options.cells.max_sequences != caches.front().cells.max_sequences) {
      refuse("CellCaches", "caches for " + std::to_string(caches.front().cells.max_sequences) + " and " +
                               std::to_string(options.cells.max_sequences) + " sequences, expected as many");
    }
    caches_.emplace_back(options);
  }
  for (const std::optional<std::size_t>& cache : cache_of_layer_) {
    if (cache && *cache >= caches_.size()) {
      refuse("CellCaches",
             "a layer belongs to cache " + std::to_string(*cache) + " of " + std::to_string(caches_.size()));
    }
  }
}

std::size_t CellCaches::size_bytes() const {
  std::size_t n_bytes = 0;
  for (const CellCache& cache : caches_) n_bytes += cache.size_bytes();
  return n_bytes;
}

void CellCaches::materialize() const {
  for (const CellCache& cache : caches_) cache.materialize();
}

bool CellCaches::begin(const CellBatch& batch) {
  const auto has_room = [&](const CellCache& cache) { return cache.has_room(batch); };
  if (!std::all_of(caches_.begin(), caches_.end(), has_room)) return false;
  for (CellCache& cache : caches_) cache.begin(batch);
  return true;
}

CellCache& CellCaches::of_layer(std::size_t layer) {
  if (layer >= n_layers() || !cache_of_layer_[layer]) {
    refuse("update", "layer " + std::to_string(layer) + " has no cache");
  }
  return caches_[*cache_of_layer_[layer]];
}

std::vector<kernels::SequenceHistory> CellCaches::update(std::size_t layer, const mlx::core::array& keys,
                                                         const mlx::core::array& values) {
  CellCache& cache = of_layer(layer);
  cache.put(layer, keys, values);
  return cache.histories(layer);
}

void CellCaches::copy_prefix(int from, int to, int end) {
  for (CellCache& cache : caches_) cache.copy_prefix(from, to, end);
}

bool CellCaches::can_resume(int sequence, int position) const {
  return std::all_of(caches_.begin(), caches_.end(),
                     [&](const CellCache& cache) { return cache.can_resume(sequence, position); });
}

Removal CellCaches::check_removal(int sequence, int begin, std::optional<int> end) const {
  for (const CellCache& cache : caches_) {
    const Removal result = cache.check_removal(sequence, begin, end);
    if (result != Removal::kDone) return result;
  }
  return Removal::kDone;
}

Removal CellCaches::remove(int sequence, int begin, std::optional<int> end) {
  const Removal result = check_removal(sequence, begin, end);
  if (result != Removal::kDone) return result;
  std::vector<CellCache::TurnedKeys> turned;
  for (const CellCache& cache : caches_) turned.push_back(cache.turned_keys(sequence, begin, end));
  for (std::size_t i = 0; i < caches_.size(); ++i) caches_[i].remove(sequence, begin, end, turned[i]);
  return result;
}

int CellCaches::defragment(int max_moves) {
  int n_moves = 0;
  for (CellCache& cache : caches_) n_moves += cache.defragment(max_moves);
  return n_moves;
}

std::vector<std::unique_ptr<Snapshot>> CellCaches::snapshot(int sequence) const {
  std::vector<std::unique_ptr<Snapshot>> snapshots(n_layers());
  for (std::size_t layer = 0; layer < n_layers(); ++layer) {
    if (!cache_of_layer_[layer]) continue;
    snapshots[layer] = caches_[*cache_of_layer_[layer]].snapshot(sequence, layer);
    if (!snapshots[layer]) return {};
  }
  return snapshots;
}

std::vector<LayerSnapshot> CellCaches::of_cache(std::size_t cache,
                                                const std::vector<std::unique_ptr<Snapshot>>& snapshots) const {
  std::vector<LayerSnapshot> result;
  for (std::size_t layer = 0; layer < n_layers(); ++layer) {
    if (cache_of_layer_[layer] == cache) result.push_back({layer, snapshots[layer].get()});
  }
  return result;
}

bool CellCaches::restore(int sequence, const std::vector<std::unique_ptr<Snapshot>>& snapshots, int target) {
  if (snapshots.size() != n_layers()) {
    refuse("restore", std::to_string(snapshots.size()) + " snapshots, expected one for each of the " +
                          std::to_string(n_layers()) + " layers");
  }
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (!caches_[i].can_restore(sequence, of_cache(i, snapshots), target)) return false;
  }
  for (std::size_t i = 0; i < caches_.size(); ++i) caches_[i].restore(sequence, of_cache(i, snapshots), target);
  return true;
}

std::string_view unfit_for_cells(const ModelCache& model, std::size_t index) {
  const LayerCache* layer = model.find(index);
  return !layer || dynamic_cast<const KVCache*>(layer) ? std::string_view() : layer->kind();
}

CellCaches make_cell_caches(const ModelCache& model, const CellRoom& room, const KeyTurn& turn) {
  std::vector<KVOptions> kinds;
  std::vector<std::optional<std::size_t>> cache_of_layer;
  for (std::size_t layer = 0; layer < model.n_layers(); ++layer) {
    const std::string_view unfit = unfit_for_cells(model, layer);
    if (!unfit.empty()) {
      refuse("make_cell_caches", "layer " + std::to_string(layer) + " has a " + std::string(unfit) +
                                     ", and only attention's keys and values can lie in cells");
    }
    cache_of_layer.emplace_back();
    if (!model.find(layer)) continue;
    const KVOptions options = dynamic_cast<const KVCache&>(*model.find(layer)).options();
    const auto known =
        std::find_if(kinds.begin(), kinds.end(), [&](const KVOptions& one) { return same_options(one, options); });
    cache_of_layer.back() = static_cast<std::size_t>(known - kinds.begin());
    if (known == kinds.end()) kinds.push_back(options);
  }
  std::vector<CellCacheOptions> caches;
  for (const KVOptions& kind : kinds) caches.push_back(options_for(kind, room, turn));
  return CellCaches(caches, std::move(cache_of_layer));
}

}  // namespace memoir::cache
