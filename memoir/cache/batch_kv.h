#pragma once

// Keys and values of one attention layer for a batch of sequences of any lengths, in one left-padded tensor: the
// batched side of kv.h, for the same six kinds (layout x row format), a ring's first positions (`keep`) included.
//
//                      dense rows              quantized rows
//   every row stays    BatchKVCache            BatchQuantizedKVCache
//   ring (window)      BatchRotatingKVCache    BatchQuantizedRotatingKVCache
//     with keep        BatchKeptRotatingKVCache
//   chunk              BatchChunkedKVCache     BatchQuantizedChunkedKVCache
//
// Position p of sequence b lies in column left_padding[b] + p, and all sequences end in the same column, so that a step
// is one write. The columns are the positions of a KVCache of B sequences: a flat one, or a ring of the window (or
// chunk) without keep. A ring's kept rows are in arrays of their own, by position, since they lie in other columns for
// each sequence.
//
// Padding on the left is there from the start: the columns before a sequence's first token are fed like any others. On
// the right it comes with prepare(lengths): of the columns fed then, those from lengths[b] on are not real. An update
// moves such a sequence's rows to the right, so that after every update all end in the same column, and padding never
// drives a real row out of a ring.
//
// filter, extend, merge and right padding copy what is stored, and leave a ring without the slack rows behind its
// window, and a chunk without those before the present one: right after them at most one column can be taken back.
//
// Invariants: as LayerCache; offset() is the number of columns.
// Threads: the thread that owns MLX's work. Ownership: a history shares the buffers, as kv.h says.

#include <mlx/array.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/cache/batch_history.h"
#include "memoir/cache/cache.h"
#include "memoir/cache/kv.h"

namespace memoir::cache {

class BatchKVCache final : public LayerCache {
 public:
  /// Empty, for left_padding.size() sequences.
  /// Throws std::invalid_argument as KVCache, and if there are no sequences or a padding is not from 0 to 2^30.
  BatchKVCache(const KVOptions& options, std::vector<int> left_padding);

  /// The caches' sequences, right-justified, in order. Some may be empty, or all.
  /// Throws std::invalid_argument if there are none, one is null or of several sequences, or options, shapes or types
  /// differ.
  static std::unique_ptr<BatchKVCache> merged(const std::vector<const KVCache*>& caches);

  const KVOptions& options() const { return options_; }
  int batch_size() const { return static_cast<int>(left_padding_.size()); }
  const std::vector<int>& left_padding() const { return left_padding_; }
  const std::vector<int>& lengths() const { return lengths_; }  // of prepare(), what is left of them; empty: none

  /// The position of the next column for each sequence: negative as long as that is left padding. [B]
  std::vector<int> offsets() const;

  /// More columns of padding before the first tokens. Throws std::invalid_argument unless the cache is empty, their
  /// number is the batch's, and none is negative or would pass 2^30.
  void pad_left(const std::vector<int>& left_padding);

  /// Of the columns to come, those from lengths[b] on are not real. Throws std::invalid_argument if their number is not
  /// the batch's, or one is not from 0 to 2^30.
  void prepare(std::vector<int> lengths);

  /// Every column to come is real.
  void finalize() { lengths_.clear(); }

  /// Appends T columns: keys [B, H, T, Dk], values [B, H, T, Dv], T >= 1. Query t of the history is at position
  /// offsets()[b] + t, as it was before. Lazy.
  /// Throws std::invalid_argument as KVCache::update, and if B is another.
  BatchHistory update(const mlx::core::array& keys, const mlx::core::array& values);

  /// The mask for n_tokens queries over the padded history that their update() will return: bool [B, 1, T, S]. A window
  /// narrower than the cache's own may be given. Lazy. Throws std::invalid_argument if n_tokens or window is below 1.
  mlx::core::array make_mask(int n_tokens, std::optional<int> window = std::nullopt) const;

  /// Keeps these sequences, in this order, and drops columns that are padding of all of them.
  /// Throws std::invalid_argument if one isn't there or none is named.
  void filter(const std::vector<int>& sequences);

  /// Appends the sequences of `other`. Throws std::invalid_argument, this cache unchanged, if options, shapes or types
  /// differ, either is prepared for right padding, or a padding would pass 2^30.
  void extend(const BatchKVCache& other);

  /// One sequence as a cache of its own, without padding. Throws std::invalid_argument if it isn't there.
  std::unique_ptr<KVCache> extract(int sequence) const;

  std::string_view kind() const override;
  int offset() const override { return columns_->offset(); }
  std::size_t size_bytes() const override;

  /// Keys and values by column, [B, H, S, D] (quantized: codes, scales and biases of both), then, of a ring that keeps
  /// its first positions, those rows in the same way, offsets and left padding as int32 [B].
  /// Numbers: the columns, then lengths[b] of each sequence where there are any.
  std::vector<mlx::core::array> state() const override;
  std::vector<std::string> meta_state() const override;
  void set_state(const std::vector<mlx::core::array>& state, const std::vector<std::string>& meta) override;
  void materialize() const override;

  /// Drops rows, padding and lengths; the number of sequences stays.
  void free() override;
  std::unique_ptr<LayerCache> copy() const override;

  /// The whole batch, whatever `from`; shares the buffers, and the next write to this cache copies them.
  std::unique_ptr<Snapshot> snapshot(int from) const override;

  /// Columns, as trim(). With a snapshot: takes over the batch as it was then, and trims it to target.
  bool restore(const Snapshot* snapshot, int target) override;
  bool can_rewind(int target) const override;

  /// The child, covering both; (null, the snapshot).
  std::unique_ptr<Snapshot> merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const override;
  SnapshotPair split(std::unique_ptr<Snapshot> snapshot, int at) const override;

  /// Drops the last columns. A sequence that has fewer tokens than that is at offset 0 then, in no padding. Nothing
  /// while it is prepared for right padding.
  int trim(int n_columns) override;

  /// No: the sequences of a batch accept different numbers of tokens.
  std::string_view unfit_for_transaction(int) const override { return kind(); }

 protected:
  void begun(const OpenTransaction&) override {}
  Held keep_first(int) override { return nullptr; }

 private:
  using Arrays = std::vector<mlx::core::array>;

  static std::unique_ptr<BatchKVCache> of_one(const KVCache& cache);
  KVOptions column_options() const;
  std::vector<Padding::Span> spans(int n_tokens) const;
  BatchColumns columns_after(int n_tokens) const;
  Arrays stored_rows() const;
  Arrays encoded_rows(const mlx::core::array& keys, const mlx::core::array& values) const;
  std::unique_ptr<KVCache> made_of(const Arrays& rows, int n_columns) const;
  void keep_rows(const kernels::History& history, const BatchColumns& after);
  void take_over(BatchKVCache&& other);

  KVOptions options_;
  std::unique_ptr<KVCache> columns_;
  int complete_from_ = 0;  // column: no sequence of a ring or chunk lacks a row from there on that it would have alone
  std::vector<int> left_padding_;
  std::vector<int> lengths_;
  Arrays kept_;  // as KVCache::state(), but [B, H, keep, D]; empty without keep or rows
};

}  // namespace memoir::cache
