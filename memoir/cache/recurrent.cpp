#include "memoir/cache/recurrent.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

#include "memoir/cache/layout.h"
#include "memoir/cache/sequences.h"
#include "memoir/kernels/shape.h"
#include "memoir/kernels/weight.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::dtype_text;
using kernels::shape_text;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cache.") + function + "] " + what);
}

std::vector<mx::array> present(const StateArrays& arrays) {
  std::vector<mx::array> result;
  for (const auto& a : arrays) {
    if (a) result.push_back(*a);
  }
  return result;
}

mx::Shape with_batch(int n_sequences, const std::vector<int>& axes) {
  mx::Shape shape{n_sequences};
  shape.insert(shape.end(), axes.begin(), axes.end());
  return shape;
}

mx::Shape tail_shape(int n_sequences, const RecurrentShape& shape) {
  return {n_sequences, shape.tail_tokens, shape.tail_channels};
}

bool is_like(const std::optional<mx::array>& a, const mx::Shape& shape) {
  return a && a->shape() == shape;
}

int batch_of(const StateArrays& arrays) {
  for (const auto& a : arrays) {
    if (a) return a->ndim() > 0 ? a->shape(0) : 0;
  }
  return 0;
}

// Some 17 microseconds at 6 GB/s.
constexpr std::size_t kReplayBytes = 100'000;

std::vector<std::vector<int>> numbers_of(const Padding& padding) {
  return {padding.left(), padding.lengths(), padding.offsets()};
}

}  // namespace

bool is_replay_cheaper(int n_tokens, std::size_t state_bytes, std::size_t input_bytes) {
  const auto n_captured = static_cast<std::size_t>(std::max(n_tokens - 1, 0));
  return 2 * n_captured * state_bytes > state_bytes + input_bytes + kReplayBytes;
}

RecurrentCache::RecurrentCache(const RecurrentShape& shape) : shape_(shape) {
  const bool has_tail = shape.tail_tokens > 0;
  const bool is_state_right = std::all_of(shape.state.begin(), shape.state.end(), [](int n) { return n > 0; });
  if (shape.tail_tokens < 0 || (has_tail && shape.tail_channels < 1) || !is_state_right ||
      (!has_tail && shape.state.empty())) {
    refuse("RecurrentCache", "the tail is (" + std::to_string(shape.tail_tokens) + "," +
                                 std::to_string(shape.tail_channels) + "), the state has " +
                                 std::to_string(shape.state.size()) +
                                 " axes, expected sizes of at least 1 and one of "
                                 "the two");
  }
}

RecurrentState RecurrentCache::get(int n_sequences, mx::Dtype dtype) {
  if (n_sequences < 1 || !kernels::is_float(dtype)) {
    refuse("get", std::to_string(n_sequences) + " sequences of " + dtype_text(dtype) +
                      ", expected at least 1 of float32, float16 or bfloat16");
  }
  const bool has_tail = shape_.tail_tokens > 0;
  if (batch_of(arrays_) != n_sequences || (has_tail && arrays_[0]->dtype() != dtype)) {
    if (offset_ > 0) check_no_transaction("get");
    StateArrays made(2);
    if (has_tail) made[0] = mx::zeros(tail_shape(n_sequences, shape_), dtype);
    if (!shape_.state.empty()) made[1] = mx::zeros(with_batch(n_sequences, shape_.state), mx::float32);
    arrays_ = std::move(made);
    if (padding_.n_sequences() != n_sequences) padding_ = {};
    if (offset_ > 0) padding_ = {};
    offset_ = 0;
  }
  return {arrays_[0], arrays_[1]};
}

// True if the arrays are those of one batch in this cache's shapes and types.
bool RecurrentCache::fits(const StateArrays& arrays) const {
  const int n_sequences = batch_of(arrays);
  const bool has_tail = shape_.tail_tokens > 0;
  const bool has_state = !shape_.state.empty();
  if (n_sequences < 1 || arrays[0].has_value() != has_tail || arrays[1].has_value() != has_state) return false;
  if (has_tail && !(is_like(arrays[0], tail_shape(n_sequences, shape_)) && kernels::is_float(arrays[0]->dtype())))
    return false;
  return !has_state || (is_like(arrays[1], with_batch(n_sequences, shape_.state)) && arrays[1]->dtype() == mx::float32);
}

StateArrays RecurrentCache::checked(const RecurrentState& states, const char* function) const {
  StateArrays arrays = {states.tail, states.state};
  const auto text = [](const std::optional<mx::array>& a) {
    return a ? shape_text(*a) + " " + dtype_text(a->dtype()) : std::string("none");
  };
  const bool is_batch = arrays_.empty() || batch_of(arrays) == batch_of(arrays_);
  const bool is_type = arrays_.empty() || !arrays_[0] || !states.tail || arrays_[0]->dtype() == states.tail->dtype();
  if (!fits(arrays) || !is_batch || !is_type) {
    std::vector<std::int64_t> axes = {-1};
    axes.insert(axes.end(), shape_.state.begin(), shape_.state.end());
    refuse(function, "tail " + text(states.tail) + ", state " + text(states.state) + ", expected (B," +
                         std::to_string(shape_.tail_tokens) + "," + std::to_string(shape_.tail_channels) + ") and " +
                         shape_text(axes) + " float32 for B sequences, as get() gave them");
  }
  return arrays;
}

void RecurrentCache::put(const RecurrentState& after, int n_tokens, const std::vector<RecurrentState>& captured,
                         StateReplay replay) {
  if (n_tokens < 1) refuse("put", "n_tokens is " + std::to_string(n_tokens) + ", expected at least 1");
  if (n_tokens > Layout::kMaxRows - offset_) refuse("put", "the offset would pass 2^30");
  check_room("put", n_tokens);
  const bool has_replay = replay != nullptr;
  const std::vector<int> steps = capture_steps(n_tokens, has_replay);
  if (captured.size() != steps.size()) {
    refuse("put", std::to_string(captured.size()) + " captured states for " + std::to_string(steps.size()) + " steps");
  }
  StateArrays arrays = checked(after, "put");
  const int n_sequences = batch_of(arrays);
  if (padding_.n_sequences() != 0 && padding_.n_sequences() != n_sequences) {
    refuse("put", "states of " + std::to_string(n_sequences) + " sequences, expected " +
                      std::to_string(padding_.n_sequences()) + ", as the padding has");
  }
  std::vector<StateArrays> inside;
  for (const RecurrentState& states : captured) {
    inside.push_back(checked(states, "put"));
    if (batch_of(inside.back()) != n_sequences) refuse("put", "captured states of another batch");
  }
  if (arrays[0]) arrays[0] = compact(*arrays[0]);
  for (std::size_t i = 0; i < steps.size(); ++i) capture(offset_ + steps[i], inside[i]);
  if (transaction_) {
    std::vector<Point>& points = *points_;
    if (points.back().arrays.empty()) points.back().arrays = arrays_;  // zeros, made since the begin
    points.back().replay = std::move(replay);
    for (std::size_t i = 0; i < steps.size() && !has_replay; ++i) {
      points.push_back({offset_ + steps[i], std::move(inside[i]), {}});
    }
    points.push_back({offset_ + n_tokens, arrays, {}});
  }
  arrays_ = std::move(arrays);
  padding_.advance(n_tokens, offset_);
  offset_ += n_tokens;
  capture(offset_, arrays_);
}

int RecurrentCache::batch_size() const {
  const int n = batch_of(arrays_);
  return n > 0 ? n : std::max(1, padding_.n_sequences());
}

void RecurrentCache::pad_left(std::vector<int> left_padding) {
  check_no_transaction("pad_left");
  if (!is_empty()) refuse("pad_left", "the cache has taken in tokens, expected an empty one");
  padding_ = Padding(std::move(left_padding));
  drop_other_batch();
}

void RecurrentCache::prepare(std::vector<int> lengths) {
  check_no_transaction("prepare");
  padding_.prepare(std::move(lengths), is_empty() ? padding_.n_sequences() : batch_size());
  drop_other_batch();
}

// At offset 0 the states are zeros, which get() makes again for the sequences that the padding tells of.
void RecurrentCache::drop_other_batch() {
  if (padding_.n_sequences() != 0 && batch_of(arrays_) != padding_.n_sequences()) arrays_.clear();
}

void RecurrentCache::filter(const std::vector<int>& sequences) {
  check_no_transaction("filter");
  check_sequences("filter", sequences, batch_size());
  for (auto& a : arrays_) {
    if (a) a = compact(sequences_of(*a, sequences));
  }
  offset_ = padding_.filter(sequences, offset_);
}

void RecurrentCache::extend(const RecurrentCache& other) {
  check_no_transaction("extend");
  const int n = batch_size();
  const int m = other.batch_size();
  const StateArrays nothing(2);
  const StateArrays& a = arrays_.empty() ? nothing : arrays_;
  const StateArrays& b = other.arrays_.empty() ? nothing : other.arrays_;
  if (other.shape_ != shape_ || (a[0] && b[0] && a[0]->dtype() != b[0]->dtype())) {
    refuse("extend", "the other is of a layer of other shapes or types");
  }
  StateArrays arrays;
  if (!arrays_.empty() || !other.arrays_.empty()) {
    arrays = {sequences_joined(a[0], n, b[0], m), sequences_joined(a[1], n, b[1], m)};
  }
  padding_.extend(other.padding_, n, offset_, m, other.offset_);
  if (arrays.empty() && padding_.is_even()) padding_ = Padding(std::vector<int>(static_cast<std::size_t>(n + m), 0));
  arrays_ = std::move(arrays);
  offset_ = std::max(offset_, other.offset_);
}

std::unique_ptr<RecurrentCache> RecurrentCache::extract(int sequence) const {
  check_sequences("extract", {sequence}, batch_size());
  auto one = std::make_unique<RecurrentCache>(shape_);
  one->offset_ = padding_.offset_of(sequence, offset_);
  if (one->offset_ == 0) return one;
  for (const auto& a : arrays_) {
    one->arrays_.push_back(a ? std::optional(compact(sequences_of(*a, {sequence}))) : std::nullopt);
  }
  return one;
}

void RecurrentCache::capture_at(const std::vector<int>& offsets) {
  if (!captures_.empty()) refuse("capture_at", "the snapshots asked for before have not been taken");
  int before = offset_ - 1;
  for (const int offset : offsets) {
    if (offset <= before) {
      refuse("capture_at", "offset " + std::to_string(offset) + " follows " + std::to_string(before) +
                               ", expected ascending ones, none before the present " + std::to_string(offset_));
    }
    before = offset;
  }
  for (const int offset : offsets) captures_.push_back({offset, nullptr});
  capture(offset_, arrays_);
}

bool RecurrentCache::wants_replay(int n_tokens, std::size_t input_bytes) const {
  if (!transaction_ || n_tokens < 2) return false;
  if (transaction_->inside != InsideStates::kCheaper) return transaction_->inside == InsideStates::kReplayed;
  return is_replay_cheaper(n_tokens, bytes_of(arrays_), input_bytes);
}

std::vector<int> RecurrentCache::capture_steps(int n_tokens, bool has_replay) const {
  std::vector<int> steps;
  if (transaction_ && !has_replay) {
    for (int step = 1; step < n_tokens; ++step) steps.push_back(step);
    return steps;
  }
  for (const Capture& capture : captures_) {
    const int step = capture.offset - offset_;
    if (step > 0 && step < n_tokens && !capture.snapshot) steps.push_back(step);
  }
  return steps;
}

void RecurrentCache::capture(int offset, const StateArrays& arrays) {
  if (offset == 0 || arrays.empty()) return;
  int from = 0;
  for (Capture& capture : captures_) {
    if (capture.offset == offset && !capture.snapshot) {
      capture.snapshot = std::make_unique<StateSnapshot>(kind(), from, offset, arrays, numbers_of(padding_));
    }
    from = capture.offset;
  }
}

std::vector<std::unique_ptr<Snapshot>> RecurrentCache::take_captured() {
  std::vector<std::unique_ptr<Snapshot>> result;
  for (Capture& capture : captures_) result.push_back(std::move(capture.snapshot));
  captures_.clear();
  return result;
}

std::vector<mx::array> RecurrentCache::state() const {
  return is_empty() ? std::vector<mx::array>{} : present(arrays_);
}

std::vector<std::string> RecurrentCache::meta_state() const {
  return {std::to_string(offset_)};
}

void RecurrentCache::set_state(const std::vector<mx::array>& state, const std::vector<std::string>& meta) {
  int offset = -1;
  if (meta.size() == 1) {
    const char* end = meta[0].data() + meta[0].size();
    const auto [stop, error] = std::from_chars(meta[0].data(), end, offset);
    if (error != std::errc() || stop != end) offset = -1;
  }
  check_no_transaction("set_state");
  if (offset < 0 || offset > Layout::kMaxRows) refuse("set_state", "expected one number, the offset, from 0 to 2^30");
  StateArrays arrays(2);
  std::size_t i = 0;
  if (shape_.tail_tokens > 0 && i < state.size()) arrays[0] = state[i++];
  if (!shape_.state.empty() && i < state.size()) arrays[1] = state[i++];
  const bool is_none = state.empty() && offset == 0;
  if (!is_none && (i != state.size() || offset == 0 || !fits(arrays))) {
    refuse("set_state", std::to_string(state.size()) + " arrays at offset " + meta[0] +
                            ": expected the tail and the state of this layer's shape, or none at 0");
  }
  if (is_none) arrays.clear();
  arrays_ = std::move(arrays);
  padding_ = {};
  offset_ = offset;
}

void RecurrentCache::materialize() const {
  mx::eval(present(arrays_));
}

void RecurrentCache::free() {
  arrays_.clear();
  captures_.clear();
  points_.reset();
  padding_ = {};
  transaction_.reset();
  offset_ = 0;
}

std::unique_ptr<LayerCache> RecurrentCache::copy() const {
  auto other = std::make_unique<RecurrentCache>(shape_);
  other->arrays_ = arrays_;
  other->padding_ = padding_;
  other->offset_ = offset_;
  return other;
}

std::unique_ptr<Snapshot> RecurrentCache::snapshot(int from) const {
  const int begin = std::max(0, from);
  if (begin >= offset_) return nullptr;
  return std::make_unique<StateSnapshot>(kind(), begin, offset_, arrays_, numbers_of(padding_));
}

bool RecurrentCache::can_rewind(int target) const {
  return target == offset_ || (transaction_ && target >= transaction_->begin && target < offset_);
}

// Of the open transaction: the states at target.
StateArrays RecurrentCache::arrays_at(int target) const {
  const auto behind = std::ranges::upper_bound(*points_, target, {}, &Point::offset);
  const Point& point = *std::prev(behind);
  if (point.offset == target) return point.arrays;
  const RecurrentState states = point.replay({point.arrays[0], point.arrays[1]}, target - point.offset);
  return checked(states, "replay");
}

// To an offset of the open transaction. A snapshot asked for behind it is of tokens that are gone.
void RecurrentCache::take_back_to(int target) {
  arrays_ = arrays_at(target);
  if (target == 0) arrays_.clear();
  offset_ = target;
  for (Capture& capture : captures_) {
    if (capture.offset > target) capture.snapshot.reset();
  }
}

void RecurrentCache::begun(const OpenTransaction& transaction) {
  points_ = std::make_shared<std::vector<Point>>();
  points_->reserve(2);  // of one pass without captures
  points_->push_back({transaction.begin, arrays_, {}});
}

LayerCache::Held RecurrentCache::keep_first(int n) {
  const int target = transaction_->begin + n;
  if (target != offset_ || n == 0) {
    take_back_to(target);
    // A state from inside a forward pass may be a part of its buffer. That at the begin is as it was.
    for (auto& a : arrays_) {
      if (n > 0 && a) a = compact(*a);
    }
  }
  return std::move(points_);
}

bool RecurrentCache::restore(const Snapshot* snapshot, int target) {
  if (!snapshot) {
    if (!can_rewind(target)) return false;
    if (target == offset_) return true;
    take_back_to(target);
    while (points_->back().offset > target) points_->pop_back();
    if (points_->back().offset < target) points_->push_back({target, arrays_, {}});
    return true;
  }
  check_no_transaction("restore");
  const StateSnapshot& states = checked_state(*snapshot, kind(), "restore");
  if (!fits(states.arrays())) refuse("restore", "the snapshot is of a layer of other shapes");
  if (target != states.to()) return false;
  arrays_ = states.arrays();
  const std::vector<std::vector<int>>& numbers = states.numbers();
  if (numbers.size() == 3) {
    padding_.set(numbers[0], numbers[1], numbers[2]);
  } else {
    padding_ = {};  // of a state that was read from elsewhere: sequences without padding
  }
  offset_ = target;
  return true;
}

std::unique_ptr<Snapshot> RecurrentCache::merge(std::unique_ptr<Snapshot> parent,
                                                std::unique_ptr<Snapshot> child) const {
  return merge_states(std::move(parent), std::move(child), kind());
}

SnapshotPair RecurrentCache::split(std::unique_ptr<Snapshot> snapshot, int at) const {
  return split_states(std::move(snapshot), at, kind());
}

int RecurrentCache::trim(int n_tokens) {
  if (n_tokens < 0) refuse("trim", "n_tokens is " + std::to_string(n_tokens) + ", expected at least 0");
  return 0;
}

}  // namespace memoir::cache
