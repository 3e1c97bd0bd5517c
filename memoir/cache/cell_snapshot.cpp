// A sequence of a CellCache to and from the snapshots of single-stream caches.

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "memoir/cache/cell_cache.h"
#include "memoir/cache/kv_snapshot.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::KvBuffer;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("[cell_cache.restore] " + what);
}

bool same_rule(const Layout& a, const Layout& b) {
  return a.rule() == b.rule() && a.window() == b.window() && a.keep() == b.keep() && a.chunk() == b.chunk();
}

bool is_in_format(const KvBuffer& rows, const RowFormat& format) {
  if (format.dtype && rows.dtype() != *format.dtype) return false;
  if (rows.quantization.has_value() != format.quantization.has_value()) return false;
  return !rows.quantization || (rows.quantization->bits == format.quantization->bits &&
                                rows.quantization->group_size == format.quantization->group_size);
}

}  // namespace

// What a snapshot of the sequence holds; nothing where positions before its end are missing.
Positions CellCache::held(int sequence) const {
  const std::vector<StoredRun>& runs = cells_.runs(sequence);
  if (runs.empty()) return {};
  int first = cells_.end(sequence);
  for (auto run = runs.rbegin(); run != runs.rend() && run->first_position + run->n_rows == first; ++run) {
    first = run->first_position;
  }
  Layout layout = this->layout();
  const bool is_whole = first == 0;
  const int n_kept = is_whole ? 0 : layout.keep();
  int n_stored_kept = 0;
  for (const StoredRun& run : runs) n_stored_kept += std::clamp(n_kept - run.first_position, 0, run.n_rows);
  if (n_stored_kept < n_kept || first < n_kept) return {};
  layout.reclaim({n_kept, first, cells_.end(sequence)});
  const Positions held = layout.held_by_snapshot(0);
  const bool is_stored = layout.stored().has_all_of(held);
  return is_stored && layout.reaches(held, held.end) ? held : Positions{};
}

std::unique_ptr<Snapshot> CellCache::snapshot(int sequence, std::size_t layer) const {
  const Positions positions = held(sequence);
  const auto found = layers_.find(layer);
  if (positions.is_empty() || found == layers_.end()) return nullptr;
  const std::vector<StoredRun> runs = cells_.runs(sequence, positions.first, positions.end);
  KvBuffer keys = taken_out(found->second.keys, runs);
  KvBuffer values = options_.transposes_values ? KvBuffer{mx::contiguous(taken(value_rows(found->second), runs).data)}
                                               : taken_out(found->second.values, runs);
  mx::eval(kernels::arrays_of(keys, values));
  return std::make_unique<KVSnapshot>(layout(), 0, positions, std::move(keys), std::move(values));
}

const KVSnapshot& CellCache::checked(const LayerSnapshot& snapshot) const {
  const auto* kv = dynamic_cast<const KVSnapshot*>(snapshot.snapshot);
  const std::string name = "the snapshot of layer " + std::to_string(snapshot.layer);
  if (!kv || !same_rule(kv->layout(), layout()) || !is_in_format(kv->like_keys(), format()) ||
      !is_in_format(kv->like_values(), format())) {
    refuse(name + " is of another kind, expected one of this cache's window, chunk and rows");
  }
  if (kv->like_keys().data.shape(0) != 1) refuse(name + " is of several sequences, expected one");
  const auto found = layers_.find(snapshot.layer);
  if (found == layers_.end()) return *kv;
  if (!fits(kv->like_keys(), found->second.keys) || !fits(kv->like_values(), value_rows(found->second))) {
    refuse(name + " has keys " + rows_text(kv->like_keys()) + ", values " + rows_text(kv->like_values()) +
           ", expected " + rows_text(found->second.keys) + " and " + rows_text(value_rows(found->second)));
  }
  return *kv;
}

bool CellCache::can_restore(int sequence, std::span<const LayerSnapshot> snapshots, int target) const {
  if (snapshots.empty()) refuse("there are no snapshots, expected one for each layer");
  const Positions held = checked(snapshots[0]).held();
  for (const LayerSnapshot& one : snapshots) {
    if (checked(one).held() == held) continue;
    refuse("layers " + std::to_string(snapshots[0].layer) + " and " + std::to_string(one.layer) +
           " have different positions, expected the same");
  }
  for (const auto& [layer, buffers] : layers_) {
    const auto is_its = [&](const LayerSnapshot& one) { return one.layer == layer; };
    if (std::any_of(snapshots.begin(), snapshots.end(), is_its)) continue;
    refuse("there is no snapshot of layer " + std::to_string(layer));
  }
  return target >= 0 && layout().reaches(held, target) &&
         cells_.has_room_to_replace(sequence, Layout::cut(held, target).n_rows());
}

bool CellCache::restore(int sequence, std::span<const LayerSnapshot> snapshots, int target) {
  if (!can_restore(sequence, snapshots, target)) return false;
  const Positions wanted = Layout::cut(checked(snapshots[0]).held(), target);
  std::vector<int> positions;
  for (int p = 0; p < wanted.n_kept; ++p) positions.push_back(p);
  for (int p = wanted.first; p < wanted.end; ++p) positions.push_back(p);
  const std::optional<CellPlace> place = cells_.replace(sequence, positions);
  if (!place) return false;
  move(place->moves);
  pass_.reset();
  bool is_lazy = false;
  for (const LayerSnapshot& one : snapshots) {
    const KVSnapshot& kv = checked(one);
    const KvBuffer keys = kv.keys();
    const KvBuffer values = kv.values();
    Buffers& buffers = buffers_like(one.layer, keys, values);
    buffers.keys = written(buffers.keys, keys, place->rows, RowsLie::kAnyhow);
    buffers.values = with_values(buffers.values, values, place->rows);
    is_lazy = is_lazy || kv.is_lazy();
  }
  if (is_lazy) materialize();  // else the owner's next write would have to copy its buffers
  return true;
}

}  // namespace memoir::cache
