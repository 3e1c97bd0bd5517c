#pragma once

// Any number of arrays ("slots") that a layer replaces as it goes, for layers whose states RecurrentCache doesn't
// describe; after mlx-lm's ArraysCache. Slots are read and written by the layer, which then tells how many tokens that
// took in.
//
// A batch may be padded (padding.h): left_padding[b] columns before a sequence's first token, and of what is fed next
// only lengths[b] columns are real. They are plain numbers, not arrays: nothing is left to evaluate.
//
// Invariant: the first axis of every slot is the batch.

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/padding.h"
#include "memoir/cache/state_snapshot.h"
#include "memoir/kernels/recurrence.h"

namespace memoir::cache {

class ArraysCache : public LayerCache {
 public:
  /// Throws std::invalid_argument if n_slots < 1 or a padding is negative.
  explicit ArraysCache(int n_slots, std::vector<int> left_padding = {});

  int n_slots() const { return static_cast<int>(slots_.size()); }

  /// None until it is set. Throws std::invalid_argument if there is no such slot.
  const std::optional<mlx::core::array>& slot(int index) const;

  /// a: [B, ...]. Lazy; what is part of a larger buffer is copied.
  /// Throws std::invalid_argument if there is no such slot, or a has no axes, no sequences, or not those of the other
  /// slots and the padding.
  void set_slot(int index, const mlx::core::array& a);

  /// n_tokens >= 1 columns have been taken in.
  void advance(int n_tokens);

  /// Sequences: those of the slots, else of the padding or lengths, else 1.
  int batch_size() const;

  const Padding& padding() const { return padding_; }
  const std::vector<int>& left_padding() const { return padding_.left(); }  // empty: none
  const std::vector<int>& lengths() const { return padding_.lengths(); }    // empty: all tokens are real

  /// As the constructor's padding. Throws std::invalid_argument unless the cache is empty, if one is negative, or their
  /// number is not that of the slots' sequences.
  void pad_left(std::vector<int> left_padding);

  /// Before a right-padded batch is fed: the real tokens of each sequence. After it: forgets padding and lengths.
  /// Throws std::invalid_argument if a length is negative or their number is not the batch's.
  void prepare(std::vector<int> lengths);
  void finalize() { padding_.finalize(); }

  /// How many real tokens each sequence has taken in, where a file doesn't tell.
  /// Throws std::invalid_argument if they are not the batch's, negative, or above offset().
  void set_offsets(const std::vector<int>& offsets);

  /// Which of the next n_tokens columns are real: bool [B, n_tokens], none if all are. And the same as spans, for the
  /// kernels; empty if all are.
  std::optional<mlx::core::array> mask(int n_tokens) const;
  std::vector<kernels::TokenSpan> spans(int n_tokens) const { return padding_.spans(n_tokens); }

  /// Keeps these sequences, in this order. Throws std::invalid_argument if one isn't there or none is named.
  void filter(const std::vector<int>& sequences);

  /// Appends the sequences of `other`; a slot that one of the two lacks is zeros for its sequences.
  /// Throws std::invalid_argument if the numbers of slots or a slot's shapes and types differ.
  void extend(const ArraysCache& other);

  /// One sequence as a cache of its own, without padding, at its own offset.
  std::unique_ptr<ArraysCache> extract(int sequence) const;

  std::string_view kind() const override { return "ArraysCache"; }

  /// Columns taken in; of a batch made of several caches, and after filter(), the most real tokens of any.
  int offset() const override { return offset_; }
  std::size_t size_bytes() const override { return bytes_of(slots_); }

  /// Every slot, then left padding and lengths as int32 [B]; an array of float32 [0] stands for what isn't there.
  /// Numbers: the offset.
  std::vector<mlx::core::array> state() const override;
  std::vector<std::string> meta_state() const override;
  void set_state(const std::vector<mlx::core::array>& state, const std::vector<std::string>& meta) override;
  void materialize() const override;
  void free() override;
  std::unique_ptr<LayerCache> copy() const override;

  /// As RecurrentCache: whole states, exact offsets.
  std::unique_ptr<Snapshot> snapshot(int from) const override;
  bool restore(const Snapshot* snapshot, int target) override;
  bool can_rewind(int target) const override {
    return target == offset_ || (transaction_ && target == transaction_->begin);
  }
  std::unique_ptr<Snapshot> merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const override;
  SnapshotPair split(std::unique_ptr<Snapshot> snapshot, int at) const override;
  int trim(int n_tokens) override;
  bool is_trimmable() const override { return false; }

  /// Fit for one position: the slots are known before and after what a layer takes in, not inside.
  std::string_view unfit_for_transaction(int n_max) const override { return n_max > 1 ? kind() : std::string_view(); }

 protected:
  void begun(const OpenTransaction& transaction) override;
  Held keep_first(int n) override;
  virtual std::unique_ptr<ArraysCache> make(int n_slots) const { return std::make_unique<ArraysCache>(n_slots); }

 private:
  struct Before {
    StateArrays slots;
    Padding padding;
  };

  std::size_t checked(int index, const char* function) const;

  bool has_slots() const;

  // Of the slots but this one, else of the padding; 0 where nothing tells.
  int n_sequences_but_of(std::size_t index) const;
  void go_back_to_begin();

  StateArrays slots_;
  Padding padding_;
  int offset_ = 0;
  std::shared_ptr<Before> before_;  // the open transaction
};

/// Two slots: the convolution's tail and the scan's state.
class MambaCache final : public ArraysCache {
 public:
  explicit MambaCache(std::vector<int> left_padding = {}) : ArraysCache(2, std::move(left_padding)) {}
  std::string_view kind() const override { return "MambaCache"; }

 protected:
  std::unique_ptr<ArraysCache> make(int) const override { return std::make_unique<MambaCache>(); }
};

/// One batch of the caches' sequences, in order, as extend() joins them. If no slot of any is set, left padding of 0
/// keeps their number.
/// Throws std::invalid_argument if there are none, or as extend().
std::unique_ptr<ArraysCache> make_batch(const std::vector<const ArraysCache*>& caches);

}  // namespace memoir::cache
