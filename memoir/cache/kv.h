#pragma once

// Keys and values of one attention layer: a layout (layout.h) over rows in a format (rows.h), six kinds in one class.
//
//                      dense rows          quantized rows
//   every row stays    KVCache             QuantizedKVCache
//   ring (window)      RotatingKVCache     QuantizedRotatingKVCache
//   chunk              ChunkedKVCache      QuantizedChunkedKVCache
//
// For one stream or a batch whose sequences have the same length. docs/caches.md has what each kind refuses.
//
// A write goes into the buffer in place as long as no history of an earlier one is held. Snapshots are lazy: one holds
// positions, and gets arrays of its own, in a copy, by the first write that would lose one of its rows, and when the
// cache is freed or destroyed. So a decode step after a snapshot costs nothing in a flat cache. The copy is the one
// thing that update() and restore() evaluate, besides a restore from another cache's lazy snapshot.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/kind.h"
#include "memoir/cache/layout.h"
#include "memoir/cache/rows.h"

namespace memoir::cache {

class KVSnapshot;

struct KVOptions {
  std::optional<int> window = std::nullopt;              // a ring: a query sees this many positions, its own included,
  int keep = 0;                                          // and the positions below keep
  std::optional<int> chunk = std::nullopt;               // a query sees its own chunk; not together with a window
  std::optional<mlx::core::Dtype> dtype = std::nullopt;  // rows (or scales) are stored in it; else in that of the first
  std::optional<KVQuantization> quantization = std::nullopt;
  bool operator==(const KVOptions&) const = default;
};

/// What a user may choose for the attention layers of any model, whatever kinds the model needs.
struct CacheOptions {
  std::optional<mlx::core::Dtype> dtype = std::nullopt;       // rows are stored in it; none: as the model chooses
  std::optional<KVQuantization> quantization = std::nullopt;  // scales then in float16, unless dtype says otherwise,
  int quantize_from = 0;                                      // from so many tokens on; dense before
  std::optional<int> max_size = std::nullopt;  // the most positions that a layer keeps: the first `keep` and the latest
  int keep = 4;                                // as in mlx-lm and StreamingLLM (arXiv:2309.17453)
};

class KVCache final : public AttentionCache {
 public:
  /// Throws std::invalid_argument if an option is out of range, or window and chunk are both set.
  explicit KVCache(const KVOptions& options = {});
  ~KVCache() override;
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  std::string_view kind() const override { return kind_name(kind_of()); }
  KVOptions options() const;
  int offset() const override { return layout_.offset(); }
  int capacity() const { return layout_.capacity(); }
  const Layout& layout() const { return layout_; }
  std::size_t size_bytes() const override;

  std::vector<mlx::core::array> state() const override;
  std::vector<std::string> meta_state() const override;
  void set_state(const std::vector<mlx::core::array>& state, const std::vector<std::string>& meta) override;
  void materialize() const override;
  void reserve(int n_tokens) override { layout_.reserve(n_tokens); }
  void free() override;
  std::unique_ptr<LayerCache> copy() const override;

  /// Further rows (or scales) are cast to the type of those there are, as if the options had asked for it. Nothing
  /// where there are none.
  void keep_dtype();

  /// AttentionCache::update. Without a dtype of the options, rows are stored in that of the first update and later ones
  /// must have the same; with one, f32, f16 and bf16 are taken and cast. Quantized: D must be a multiple of the group
  /// size.
  History update(const mlx::core::array& keys, const mlx::core::array& values) override;

  std::optional<kernels::SequenceRows> plan_update(int n_tokens, const RowShape& shape) override;
  void take_update(const kernels::SequenceRows& plan, const kernels::KvBuffers& written) override;

  /// Appends rows that are codes already, in this cache's bits, group size and dtype of scales; else as update().
  History update_quantized(const kernels::KvBuffer& keys, const kernels::KvBuffer& values);

  std::optional<History> view() const override;
  Mask make_mask(int n_tokens, std::optional<int> window, bool return_array) const override;

  std::unique_ptr<Snapshot> snapshot(int from) const override;
  std::unique_ptr<Snapshot> snapshot_at(int at) const override;
  bool restore(const Snapshot* snapshot, int target) override;

  /// Brings an empty flat cache to `target` with snapshots that meet, the first from 0: as restore() with one after the
  /// other, but in one copy, into a buffer with room for n_rows in all. Lazy. Returns false if it is not empty or not
  /// flat, or they don't meet or don't reach the target. Throws as restore(), and for a null or n_rows above 2^30.
  bool restore_chain(const std::vector<const KVSnapshot*>& snapshots, int target, int n_rows);
  bool can_rewind(int target) const override { return transaction_reaches(target) && layout_.can_rewind(target); }
  std::unique_ptr<Snapshot> merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const override;
  SnapshotPair split(std::unique_ptr<Snapshot> snapshot, int at) const override;
  int trim(int n_tokens) override;

  std::unique_ptr<AttentionCache> to_quantized(const KVQuantization& quantization) const override;

  /// A flat cache takes back any number of positions, a ring or chunk Layout::kSlack.
  std::string_view unfit_for_transaction(int n_max) const override;

 protected:
  void begun(const OpenTransaction&) override { began_without_rows_ = !keys_; }
  Held keep_first(int n) override;

 private:
  friend class KVSnapshot;

  CacheKind kind_of() const;
  void check_rows(const mlx::core::array& keys, const mlx::core::array& values) const;
  bool would_take(const RowShape& shape) const;
  bool is_in_format(const kernels::KvBuffer& rows) const;
  void check_encoded(const kernels::KvBuffer& keys, const kernels::KvBuffer& values) const;
  History append(const kernels::KvBuffer& keys, const kernels::KvBuffer& values);
  void write(const Write& write, const kernels::KvBuffer& keys, const kernels::KvBuffer& values, RowsLie lie);
  History history_of(const Positions& positions) const;
  const KVSnapshot& checked(const Snapshot& snapshot, const char* function) const;
  bool restore_lazy(const KVSnapshot& snapshot, int target);

  // Gives those of the lazy snapshots that don't survive arrays of their own. Evaluates.
  void copy_out_lost(const Write& write) const;
  void copy_out(const std::vector<KVSnapshot*>& snapshots) const;

  Layout layout_;
  RowFormat format_;
  std::optional<kernels::KvBuffer> keys_;    // [B, H, capacity, Dk]
  std::optional<kernels::KvBuffer> values_;  // [B, H, capacity, Dv]
  mutable std::vector<KVSnapshot*> lazy_;    // snapshots whose rows are still these buffers'
  bool began_without_rows_ = false;          // the open transaction
};

std::unique_ptr<KVCache> make_kv_cache(const KVOptions& options);

/// A cache for a layer whose queries see `window` positions, or their chunk, or everything, as the user wants it. A
/// layer that sees everything becomes a ring of max_size positions, one with a window a ring of the smaller of both.
/// Throws std::invalid_argument if max_size is less than 1 or than the chunk, or keep is negative beside it.
std::unique_ptr<KVCache> make_kv_cache(std::optional<int> window, std::optional<int> chunk,
                                       const CacheOptions& options);

/// A cache of the kind, with the options that `meta` and the arrays tell, and this state: what a file holds. Options
/// that are in neither (the chunk size of mlx-lm's older files may be "None") are refused.
/// Throws std::invalid_argument as KVCache and set_state do.
std::unique_ptr<KVCache> make_kv_cache(CacheKind kind, const std::vector<mlx::core::array>& state,
                                       const std::vector<std::string>& meta);

}  // namespace memoir::cache
