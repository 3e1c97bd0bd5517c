#pragma once

// Keys and values of many sequences in one buffer a layer, for layers of one kind: every row stays, a window, or
// chunks. Cells (cells.h) says which row of the buffers holds which position of which sequences; sequences that begin
// alike share rows.
//
// A pass:   begin(batch)  then for each layer  put(layer, keys, values)  and either
//           histories(layer), for kernels::attention, which reads the rows where they lie,
//           or get(layer) with mask(), for other code: the rows from the lowest to the highest that the batch sees.
// A buffer is made whole by the layer's first put(). Rows are written in place as long as nobody holds what histories()
// or get() gave for an earlier pass.
//
// Threads: the thread that owns MLX's work; the owner serializes. Ownership: owns its buffers.

#include <mlx/array.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "memoir/cache/cells.h"
#include "memoir/cache/rows.h"
#include "memoir/cache/snapshot.h"
#include "memoir/kernels/attention.h"

namespace memoir::cache {

class KVSnapshot;

/// Keys [1, H, n, Dk] of a layer, as they would be `shift` (negative) positions on: what a model knows of its layers.
/// Same shape and type. Lazy.
using KeyTurn = std::function<mlx::core::array(std::size_t layer, const mlx::core::array& keys, int shift)>;

struct CellCacheOptions {
  CellsOptions cells = {};
  std::optional<mlx::core::Dtype> dtype = std::nullopt;  // rows (or scales) are stored in it; else in that of the first
  std::optional<KVQuantization> quantization = std::nullopt;
  bool transposes_values = false;  // values lie as [1, H, Dv, C]; dense rows alone
  KeyTurn turn = {};               // may be empty: then positions can't shift
};

/// What get() gives: S rows of the buffers, [1, H, S, Dk] and [1, H, S, Dv], dequantized. Lazy; dense rows are a view.
struct CellRows {
  mlx::core::array keys;
  mlx::core::array values;
};

/// What a layer's snapshot is of.
struct LayerSnapshot {
  std::size_t layer;
  const Snapshot* snapshot;
};

class CellCache {
 public:
  /// Throws std::invalid_argument for an option out of range, or values both transposed and quantized.
  explicit CellCache(const CellCacheOptions& options);

  const Cells& cells() const { return cells_; }
  const CellCacheOptions& options() const { return options_; }

  /// Bytes of the buffers.
  std::size_t size_bytes() const;

  /// Evaluates the buffers, without a copy.
  void materialize() const;

  // ---- A pass

  /// Cells::has_room.
  bool has_room(const CellBatch& batch) const { return cells_.has_room(batch); }

  /// Gives the batch's rows their cells. Returns false, nothing changed, if there is no room. Throws as Cells::place.
  /// On false the caller may remove what it can do without, and try again.
  bool begin(const CellBatch& batch);

  /// A pass of n_rows rows that writes nothing and reads everything: for put() and get() to make what the largest pass
  /// would need. Sequences stay as they are. Throws std::invalid_argument unless 1 <= n_rows <= max_batch.
  void begin_reserving(int n_rows);

  /// From here on in this pass, the queries of these rows of the batch see later positions of their sequence too.
  /// Throws std::invalid_argument for a row that the batch doesn't have.
  void set_uncausal(std::vector<int> rows);

  /// Writes the pass's rows of a layer. Lazy. keys: [1, H, T, Dk], values: [1, H, T, Dv], floating. The layer's first
  /// fixes H, Dk, Dv and types. Throws std::invalid_argument if something doesn't fit, or no pass has begun.
  void put(std::size_t layer, const mlx::core::array& keys, const mlx::core::array& values);

  /// What the pass's queries see in a layer: rows of consecutive cells, which mask() tells apart. Throws
  /// std::invalid_argument if the layer has no rows, or no pass has begun.
  CellRows get(std::size_t layer) const;

  /// bool [1, 1, T, S] for get()'s S rows; T is the batch's, rounded up to the mask's padding, whose rows see nothing.
  mlx::core::array mask() const;

  /// The same as numbers to add to scores: 0, and -infinity where a query doesn't see.
  mlx::core::array mask(mlx::core::Dtype dtype) const;

  /// For each run of the batch's rows that belong to one sequence, its rows of a layer as kernels::attention takes
  /// them. Their positions must follow each other. Throws as get().
  std::vector<kernels::SequenceHistory> histories(std::size_t layer) const;

  // ---- Sequences. Each throws std::invalid_argument for a sequence that was not promised. What takes rows from a
  // sequence, or moves them, ends a pass that it is in.

  /// Cells::copy_prefix: nothing is copied.
  void copy_prefix(int from, int to, int end);

  /// Cells::can_resume.
  bool can_resume(int sequence, int position) const { return cells_.can_resume(sequence, position); }

  /// Cells::check_removal, and kNoTurn where positions would shift and there is no KeyTurn: the caller then removes
  /// everything from `begin` on, and computes the rest again.
  Removal check_removal(int sequence, int begin, std::optional<int> end = std::nullopt) const;

  /// Keys of the positions from `end` on, by layer, as they will be once [begin, end) is gone. Evaluated.
  /// Throws what the KeyTurn throws. For a removal of several caches at once; empty where nothing shifts.
  using TurnedKeys = std::map<std::size_t, kernels::KvBuffer>;
  TurnedKeys turned_keys(int sequence, int begin, std::optional<int> end) const;

  /// Cells::remove, with the keys of positions that shift turned to their new ones. Quantized keys are quantized anew.
  /// On a refusal, or a throw of the KeyTurn, everything is as before.
  Removal remove(int sequence, int begin, std::optional<int> end = std::nullopt);

  /// The same with keys that turned_keys() gave for it. Throws std::invalid_argument, nothing changed, if they are of
  /// other layers or rows.
  Removal remove(int sequence, int begin, std::optional<int> end, const TurnedKeys& turned);

  /// Cells::defragment, with the rows. Returns the number of runs moved.
  int defragment(int max_moves = Layout::kMaxRows);

  /// A layer's rows of a sequence, as a KVCache of the same kind takes them: all, or what a query at the end sees and
  /// what there is of the rows to take Layout::kSlack back. A copy, evaluated. Null if there are none, or positions are
  /// missing before the end.
  std::unique_ptr<Snapshot> snapshot(int sequence, std::size_t layer) const;

  /// True if restore() would return true. Throws as restore().
  bool can_restore(int sequence, std::span<const LayerSnapshot> snapshots, int target) const;

  /// The sequence becomes what the layers' snapshots hold, of a KVCache or a cell cache of this kind, up to `target`.
  /// Returns false, nothing changed, if a snapshot doesn't reach from the sequence's beginning (or window) to the
  /// target, or there is no room. Throws std::invalid_argument, nothing changed, if a snapshot is of another kind, its
  /// rows don't fit a layer's, or the layers' differ in their positions.
  bool restore(int sequence, std::span<const LayerSnapshot> snapshots, int target);

 private:
  struct Buffers {
    kernels::KvBuffer keys;    // [1, H, C, Dk]
    kernels::KvBuffer values;  // [1, H, C, Dv], or [1, H, Dv, C]
  };

  struct Pass {
    CellBatch batch;
    CellPlace place;  // no rows while reserving
    bool is_reserving;
    std::vector<int> uncausal;
  };

  const Pass& pass(const char* function) const;
  const Buffers& buffers(const char* function, std::size_t layer) const;
  CellSpan seen() const;
  RowFormat format() const { return {options_.dtype, options_.quantization}; }
  Layout layout() const;
  void check_rows(std::size_t layer, const mlx::core::array& keys, const mlx::core::array& values, int n_rows) const;
  Buffers& buffers_like(std::size_t layer, const kernels::KvBuffer& keys, const kernels::KvBuffer& values);
  kernels::KvBuffer value_rows(const Buffers& buffers) const;
  kernels::KvBuffer with_values(const kernels::KvBuffer& buffer, const kernels::KvBuffer& rows,
                                const std::vector<RowRun>& runs) const;
  void move(const std::vector<RowRun>& moves);
  void check_turned(int sequence, int begin, std::optional<int> end, const TurnedKeys& turned) const;
  Positions held(int sequence) const;
  const KVSnapshot& checked(const LayerSnapshot& snapshot) const;

  CellCacheOptions options_;
  Cells cells_;
  std::map<std::size_t, Buffers> layers_;
  std::optional<Pass> pass_;
};

}  // namespace memoir::cache
