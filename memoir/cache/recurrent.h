#pragma once

// The states of one recurrent layer: the last inputs of its short convolution (the tail), in the activations' type, and
// the state of its delta rule or scan, in float32. Their size doesn't grow with the tokens.
//
// A state can't be rewound: what a token added can't be taken out. So restore() takes exact offsets alone, and where a
// state will be asked for again it has to be kept: by snapshot(), or by capture_at() for offsets inside a forward pass,
// whose kernels hand the states out on the way. In a transaction it may also be made again: from the state before the
// pass and the inputs that its kernels took.
//
// For one stream or a batch, whose sequences may be padded on either side (padding.h): which columns are real is for
// the kernels, RecurrenceOptions::spans.
//
// Invariant: both states are of one batch and the same column.

#include <mlx/array.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memoir/cache/cache.h"
#include "memoir/cache/padding.h"
#include "memoir/cache/state_snapshot.h"
#include "memoir/kernels/recurrence.h"

namespace memoir::cache {

/// What one sequence keeps.
struct RecurrentShape {
  int tail_tokens = 0;          // inputs of the convolution before the next one: its width - 1; 0: no tail
  int tail_channels = 0;        // channels of the convolution
  std::vector<int> state = {};  // axes of the state: (Hv, Dv, Dk), (H, P, N), (C, N); none: no state (LFM2)
  bool operator==(const RecurrentShape&) const = default;
};

/// Of B sequences. Each is there if the shape has it.
struct RecurrentState {
  std::optional<mlx::core::array> tail = std::nullopt;   // [B, tail_tokens, tail_channels]
  std::optional<mlx::core::array> state = std::nullopt;  // [B, ...] float32
};

/// What a forward pass's kernels make of the state before it in its first n_tokens tokens, at least 1 and fewer than
/// all. Holds the inputs that they took. Lazy, and to the bit what they would have handed out after so many.
using StateReplay = std::function<RecurrentState(const RecurrentState& before, int n_tokens)>;

/// True if a pass of n_tokens in a transaction should record its inputs (so many bytes) rather than capture the states
/// (of state_bytes each) inside:
///   2 (n_tokens - 1) state_bytes > state_bytes + input_bytes + kReplayBytes
/// Capturing writes n_tokens - 1 states in every pass. A replay takes about as long as capturing one, and some
/// operations more (kReplayBytes: what could be written meanwhile), after every second pass if that many lose some of
/// their drafts. docs/speculation.md has what was measured.
bool is_replay_cheaper(int n_tokens, std::size_t state_bytes, std::size_t input_bytes);

class RecurrentCache final : public LayerCache {
 public:
  /// Throws std::invalid_argument if a size is negative or there is neither a tail nor a state.
  explicit RecurrentCache(const RecurrentShape& shape);

  const RecurrentShape& shape() const { return shape_; }

  /// The states, for a layer to read. Made of zeros at first use, and anew when n_sequences or dtype (of the tail) is
  /// not that of the present ones: the cache is then at offset 0 again. Lazy.
  /// Throws std::invalid_argument if n_sequences < 1 or dtype is not f32, f16 or bf16.
  RecurrentState get(int n_sequences, mlx::core::Dtype dtype);

  /// The states after n_tokens more columns. The tail is copied where it is part of a larger
  /// buffer. captured: the states after each of capture_steps(n_tokens, replay given), in order.
  /// Throws std::invalid_argument, the cache unchanged, if shapes, types, the batch or the number of captured states
  /// don't fit, n_tokens < 1, or the offset would pass 2^30.
  void put(const RecurrentState& after, int n_tokens, const std::vector<RecurrentState>& captured = {},
           StateReplay replay = {});

  // ---- A batch

  /// Sequences: those of the states, else of the padding, else 1.
  int batch_size() const;
  const Padding& padding() const { return padding_; }

  /// Columns before each sequence's first token. Throws std::invalid_argument unless the cache is empty, if one is
  /// negative, or a transaction is open.
  void pad_left(std::vector<int> left_padding);

  /// Before a right-padded batch is fed: of the columns to come those below lengths[b] are real. After it: forgets
  /// padding and lengths. Throws std::invalid_argument if a length is negative, their number is not the batch's, or a
  /// transaction is open.
  void prepare(std::vector<int> lengths);
  void finalize() { padding_.finalize(); }

  /// The real ones of the next n_tokens columns, for the kernels; empty if all are.
  std::vector<kernels::TokenSpan> spans(int n_tokens) const { return padding_.spans(n_tokens); }

  /// Keeps these sequences, in this order. Throws std::invalid_argument if one isn't there or none is named.
  void filter(const std::vector<int>& sequences);

  /// Appends the sequences of `other`; states that one of the two lacks are zeros.
  /// Throws std::invalid_argument if shapes or the tails' types differ, or a transaction is open.
  void extend(const RecurrentCache& other);

  /// One sequence as a cache of its own, at its own offset. Throws std::invalid_argument if it isn't there.
  std::unique_ptr<RecurrentCache> extract(int sequence) const;

  // ---- Snapshots inside a forward pass

  /// Asks for snapshots at these offsets, ascending, none before the present one. That at the present offset is taken
  /// at once, those inside or at the end of later put()s by them, however the tokens are cut. Throws
  /// std::invalid_argument if they aren't, or what was asked for before hasn't been taken.
  void capture_at(const std::vector<int>& offsets);

  /// The steps inside the next n_tokens (each from 1 to n_tokens - 1) whose states put() will ask for: for
  /// RecurrenceOptions::capture. In a transaction all of them, but for a pass that gives put() a replay.
  std::vector<int> capture_steps(int n_tokens, bool has_replay = false) const;

  /// True if the next pass, of n_tokens, should give put() a replay, for which it holds on to input_bytes: in a
  /// transaction, where that was asked for or is cheaper. A layer without a replay need not ask.
  bool wants_replay(int n_tokens, std::size_t input_bytes) const;

  /// One snapshot for each offset asked for, from the offset before it; null where that hasn't been reached, and at
  /// offset 0. Ends the asking.
  std::vector<std::unique_ptr<Snapshot>> take_captured();

  std::string_view kind() const override { return "RecurrentCache"; }

  /// Columns taken in; of a batch made of several caches, and after filter(), the most real tokens of any.
  int offset() const override { return offset_; }
  std::size_t size_bytes() const override { return bytes_of(arrays_); }

  /// The tail, then the state; each if the shape has it. Numbers: the offset.
  std::vector<mlx::core::array> state() const override;
  std::vector<std::string> meta_state() const override;
  void set_state(const std::vector<mlx::core::array>& state, const std::vector<std::string>& meta) override;
  void materialize() const override;
  void free() override;
  std::unique_ptr<LayerCache> copy() const override;

  /// The whole state, whatever `from`; compact, never lazy.
  std::unique_ptr<Snapshot> snapshot(int from) const override;

  /// True only for the present offset, in a transaction any since its begin (no snapshot), or the snapshot's end. A
  /// snapshot of another batch, padding or type of tail is taken over with these.
  bool restore(const Snapshot* snapshot, int target) override;
  bool can_rewind(int target) const override;

  /// The child, covering both; also without a parent, whose state it doesn't need.
  std::unique_ptr<Snapshot> merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const override;

  /// (null, the snapshot); (the snapshot, null) if at >= its end.
  SnapshotPair split(std::unique_ptr<Snapshot> snapshot, int at) const override;
  int trim(int n_tokens) override;
  bool is_trimmable() const override { return false; }

  /// Fit: while a transaction is open, put() keeps the states as they come, without a copy, and inside a pass the
  /// states of all steps or its replay. Not fit: a padded batch.
  std::string_view unfit_for_transaction(int) const override { return padding_.is_even() ? "" : kind(); }

 protected:
  void begun(const OpenTransaction& transaction) override;
  Held keep_first(int n) override;

 private:
  // One offset asked for.
  struct Capture {
    int offset;
    std::unique_ptr<Snapshot> snapshot;
  };

  // Of an open transaction: an offset that can be gone back to, and how to come from there to those before the next.
  struct Point {
    int offset;
    StateArrays arrays;
    StateReplay replay;  // of the pass that began here, unless there is a point behind each of its tokens
  };

  StateArrays checked(const RecurrentState& states, const char* function) const;
  bool fits(const StateArrays& arrays) const;
  void drop_other_batch();
  void capture(int offset, const StateArrays& arrays);
  StateArrays arrays_at(int target) const;
  void take_back_to(int target);

  RecurrentShape shape_;
  StateArrays arrays_;  // tail, state; empty until the first use
  int offset_ = 0;
  Padding padding_;
  std::vector<Capture> captures_;
  std::shared_ptr<std::vector<Point>> points_;  // ascending, the begin first; null outside a transaction
};

}  // namespace memoir::cache
