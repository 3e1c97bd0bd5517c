#pragma once

// What survives between forward passes: one LayerCache for each layer of a model, and the ModelCache that holds them.
//
// Invariants:
//   1. offset() is the number of tokens the layer has consumed.
//   2. A call that throws or returns false leaves the cache as it was.
// Threads: the thread that owns MLX's work; the owner serializes. Ownership: a ModelCache owns its layers.

#include <mlx/array.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memoir/cache/mask.h"
#include "memoir/cache/rows.h"
#include "memoir/cache/snapshot.h"
#include "memoir/kernels/attention.h"
#include "memoir/kernels/attention_block.h"

namespace memoir::cache {

class RecurrentCache;

/// How a recurrent layer comes to the state at a position inside a forward pass of a transaction, whose later positions
/// are taken back.
enum class InsideStates : std::uint8_t {
  kCheaper,   // the cheaper of the two: is_replay_cheaper(), recurrent.h
  kCaptured,  // the pass's kernels hand out the state after each position
  kReplayed,  // they record their inputs, and run once more over the positions that are kept
};

class LayerCache {
 public:
  virtual ~LayerCache() = default;

  /// The kind's name on the wire, as mlx-lm spells it ("KVCache").
  virtual std::string_view kind() const = 0;

  virtual int offset() const = 0;
  bool is_empty() const { return offset() == 0; }

  /// Bytes of the buffers, padding included.
  virtual std::size_t size_bytes() const = 0;

  /// What to keep in a file: arrays, in the order that mlx-lm writes them in, without padding; empty for an empty
  /// cache. Lazy; rows of a ring that has turned are copied, so to evaluate a cache call materialize().
  virtual std::vector<mlx::core::array> state() const = 0;

  /// And the numbers beside them, as mlx-lm's files had them up to 0.31: docs/caches.md lists them for each kind.
  virtual std::vector<std::string> meta_state() const = 0;

  /// Takes over a state and its numbers. The options in them must be this cache's own.
  /// Throws std::invalid_argument, the cache unchanged, if something does not fit.
  virtual void set_state(const std::vector<mlx::core::array>& state, const std::vector<std::string>& meta) = 0;

  /// Evaluates the buffers, without a copy.
  virtual void materialize() const = 0;

  /// Says how many positions are to come, with those that are there: where rows lie one after the other, the buffer
  /// that the next growth makes has room for all of them, and none is copied again on the way. Until free().
  virtual void reserve(int /*n_tokens*/) {}

  /// Drops every row and every buffer. Lazy snapshots are copied out before.
  virtual void free() = 0;

  /// A cache with the same contents, independent of this one from now on. Lazy: the first write to one of the two
  /// copies the buffers. The hook stays with this one.
  virtual std::unique_ptr<LayerCache> copy() const = 0;

  /// A snapshot of [max(0, from), offset). Lazy where the kind can: no data are copied yet.
  /// Returns null if there is nothing at or after `from`, or the cache never had rows.
  virtual std::unique_ptr<Snapshot> snapshot(int from) const = 0;

  /// A snapshot of the state as it was after `at` tokens, for restoring a cache of the same kind to `at`: all that the
  /// kind still has of it. What a ring's or chunk's last write left behind is enough for every offset inside that
  /// write, however long it was. Lazy where the kind can. Returns null if the state at `at` is not there any more, or
  /// at is 0 or beyond the offset.
  virtual std::unique_ptr<Snapshot> snapshot_at(int at) const { return at == offset() ? snapshot(0) : nullptr; }

  /// Brings the cache to `target`.
  /// Without a snapshot: rewinds by the live state alone. Returns false if target is negative, beyond the offset, or
  /// no longer reachable.
  /// With one: rewinds to its start, feeds it, clamps to target. Returns false if target is negative or beyond its
  /// end, or the cache does not reach its start.
  /// Throws std::invalid_argument if the snapshot is of another kind or its arrays don't fit this cache.
  virtual bool restore(const Snapshot* snapshot, int target) = 0;

  /// True if restore(nullptr, target) would succeed.
  virtual bool can_rewind(int target) const = 0;

  /// Joins [a, b) and [b, c) into [a, c). Consumes both; null if either is null.
  /// Throws std::invalid_argument if they are of another kind, don't meet or don't fit each other.
  virtual std::unique_ptr<Snapshot> merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const = 0;

  /// Divides [a, c) into [a, at) and [at, c). Consumes the snapshot. (null, snapshot) if at <= a, (snapshot, null) if
  /// at >= c, (null, null) for null.
  /// Throws std::invalid_argument if it is of another kind.
  virtual SnapshotPair split(std::unique_ptr<Snapshot> snapshot, int at) const = 0;

  /// Drops the last min(n_tokens, offset) tokens and returns how many that were; 0, changing nothing, where they can't
  /// be taken back. Throws std::invalid_argument if n_tokens is negative.
  virtual int trim(int n_tokens) = 0;

  /// Whether trim() takes back any number of tokens up to Layout::kSlack.
  virtual bool is_trimmable() const;

  /// `hook` is called with each lazy snapshot that has just got rows of its own; its size_bytes() tells how many. It
  /// must not use the cache.
  void on_snapshot_copied(std::function<void(const Snapshot&)> hook) { snapshot_copied_ = std::move(hook); }
  const std::function<void(const Snapshot&)>& snapshot_copied_hook() const { return snapshot_copied_; }

  // ---- One layer's part of a transaction: transaction.h has the whole, over all layers, for callers to use.
  // While one is open, a rewind goes back to its begin at most, restore() from a snapshot and set_state() throw
  // std::invalid_argument, and free() ends it.

  /// The kind that can't keep any beginning of n_max positions written in a transaction: this one's, or that of a cache
  /// inside; empty if all can.
  virtual std::string_view unfit_for_transaction(int n_max) const = 0;

  /// From here on what is written can be taken back. Copies and computes nothing.
  /// Throws std::invalid_argument if n_max < 1, one is open, or a kind is unfit.
  void begin(int n_max, InsideStates inside = InsideStates::kCheaper);

  bool is_in_transaction() const { return transaction_.has_value(); }

  /// Positions written since begin() and still there; 0 if none is open.
  int n_written() const { return transaction_ ? offset() - transaction_->begin : 0; }

  /// Something that a layer held for a transaction (states); null where there is nothing.
  using Held = std::shared_ptr<void>;

  /// Keeps exactly the first n of them, and ends the transaction. Returns what was held for it: giving its memory back
  /// takes longer than all else here, so that is the caller's to do, when it suits.
  /// Throws std::invalid_argument, the transaction still open, unless one is and 0 <= n <= n_written().
  Held commit(int n);

  /// Back to begin(), and ends the transaction; nothing if none is open.
  void roll_back() noexcept;

 protected:
  struct OpenTransaction {
    int begin;  // the offset
    int n_max;
    InsideStates inside;
  };

  /// What a kind does at begin(); transaction_ is not set yet.
  virtual void begun(const OpenTransaction& transaction) = 0;

  /// Brings an open transaction to its first n positions. Returns what was held for it.
  virtual Held keep_first(int n) = 0;

  /// Throws std::invalid_argument "[cache.<function>] ..." if n_tokens more pass n_max of an open transaction.
  void check_room(const char* function, int n_tokens) const;

  /// Throws std::invalid_argument "[cache.<function>] ..." if a transaction is open.
  void check_no_transaction(const char* function) const;

  /// False for what lies before the begin of an open transaction.
  bool transaction_reaches(int target) const { return !transaction_ || target >= transaction_->begin; }

  std::function<void(const Snapshot&)> snapshot_copied_;
  std::optional<OpenTransaction> transaction_;
};

/// Keys and values to attend to. The arrays are the cache's buffers: drop them before the next update, else that update
/// has to copy the buffer.
using History = kernels::History;

/// A cache that an attention layer writes keys and values to.
class AttentionCache : public LayerCache {
 public:
  /// Appends T rows and returns the history with them, its last T rows. Lazy.
  /// keys: [B, H, T, Dk], values: [B, H, T, Dv], T >= 1. The first update fixes B, H, Dk, Dv and both dtypes.
  /// Throws std::invalid_argument if a shape or dtype does not fit.
  virtual History update(const mlx::core::array& keys, const mlx::core::array& values) = 0;

  /// For an operation that writes the rows itself (kernels::attention_block): where n_tokens rows of this shape would
  /// go, all as update() would have it. The cache changes with take_update(), which has to come before anything else.
  /// Returns nullopt where update() would refuse the rows, or the kind writes them by itself only.
  virtual std::optional<kernels::SequenceRows> plan_update(int n_tokens, const RowShape& shape);

  /// The rows have been written, by an operation at least: these are the buffers with them.
  virtual void take_update(const kernels::SequenceRows& plan, const kernels::KvBuffers& written);

  /// The present history without writing; nullopt if there are no rows. Lazy.
  /// Its rows are those that a query at the last position, offset - 1, sees. After a rewind of a ring or chunk those
  /// that are there, which may be no more than the next query sees, and none: nullopt.
  virtual std::optional<History> view() const = 0;

  /// The mask for n_tokens queries over the history that their update() will return, after mlx-lm's rules (mask.h):
  /// none for one query; causal where nothing but later rows is hidden; an array where `window` (or the kind's own, or
  /// a border of chunks) hides more, or return_array asks for one. kernels::attention needs none of it: it is told
  /// window, keep and chunk.
  /// Throws std::invalid_argument if n_tokens or window is less than 1.
  virtual Mask make_mask(int n_tokens, std::optional<int> window, bool return_array) const = 0;

  /// The same rows, quantized: a cache of the quantized kind in the same layout, with this one's hook. Null if they are
  /// quantized already. Throws std::invalid_argument if bits or group size are not known, or a width isn't a multiple
  /// of the group size.
  virtual std::unique_ptr<AttentionCache> to_quantized(const KVQuantization& quantization) const = 0;
};

/// The caches of a model's layers, all at one offset between forward passes.
class ModelCache {
 public:
  /// A null layer keeps no state. Throws std::invalid_argument if every layer is null.
  explicit ModelCache(std::vector<std::unique_ptr<LayerCache>> layers);

  std::size_t n_layers() const { return layers_.size(); }

  /// Null for a layer that keeps no state. Throws std::invalid_argument if there is no such layer.
  LayerCache* find(std::size_t index) const;

  /// The layer's cache. Throws std::invalid_argument if there is none, or (attention, recurrent) if it is of another
  /// sort.
  LayerCache& layer(std::size_t index) const;
  AttentionCache& attention(std::size_t index) const;
  RecurrentCache& recurrent(std::size_t index) const;

  /// Tokens consumed by every layer: the smallest of their offsets, should a failed forward have left them apart.
  int offset() const;

  std::size_t size_bytes() const;
  std::vector<mlx::core::array> state() const;

  /// Evaluates the buffers of all layers.
  void materialize() const;

  /// LayerCache::reserve for every layer.
  void reserve(int n_tokens);

  /// Replaces every dense attention layer, also inside a list, by its quantized kind, once offset() is at least
  /// min_offset (mlx-lm's quantized_kv_start). Returns the number of layers replaced; references to them are void then.
  /// Throws std::invalid_argument, nothing replaced, where AttentionCache::to_quantized does, or a transaction is open.
  int to_quantized(const KVQuantization& quantization, int min_offset = 0);

  /// Brings every layer to `target`, also layers that a failed forward left ahead. Returns false, changing nothing, if
  /// one of them can't.
  bool rewind(int target);

  void free();

  /// The layers, for another ModelCache to be made of.
  std::vector<std::unique_ptr<LayerCache>> release() && { return std::move(layers_); }

  /// LayerCache::copy of every layer.
  ModelCache copy() const;

  /// Takes over the layers of `other`, each with the hook of the one that it replaces. References to the present ones
  /// are void then. Throws std::invalid_argument if it has another number of layers.
  void replace(ModelCache other);

 private:
  std::vector<std::unique_ptr<LayerCache>> layers_;
};

}  // namespace memoir::cache
