#include "memoir/cache/arrays.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

#include "memoir/cache/layout.h"
#include "memoir/cache/sequences.h"
#include "memoir/kernels/shape.h"

namespace mx = mlx::core;

namespace memoir::cache {
namespace {

using kernels::dtype_text;
using kernels::shape_text;

[[noreturn]] void refuse(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("[cache.") + function + "] " + what);
}

mx::array none() {
  return mx::zeros({0}, mx::float32);
}

bool is_none(const mx::array& a) {
  return a.ndim() == 1 && a.size() == 0;
}

mx::array as_array(const std::vector<int>& numbers) {
  return numbers.empty() ? none() : mx::array(numbers.data(), {static_cast<int>(numbers.size())}, mx::int32);
}

std::vector<int> as_numbers(const mx::array& a, const char* name) {
  if (is_none(a)) return {};
  if (a.ndim() != 1 || a.dtype() != mx::int32) {
    refuse("set_state",
           std::string(name) + " has shape " + shape_text(a) + " " + dtype_text(a.dtype()) + ", expected (B) int32");
  }
  const mx::array row = mx::contiguous(a);
  mx::eval(row);
  return {row.data<int>(), row.data<int>() + row.size()};
}

bool is_alike(const mx::array& a, const mx::array& b) {
  return a.dtype() == b.dtype() && a.ndim() == b.ndim() &&
         std::equal(a.shape().begin() + 1, a.shape().end(), b.shape().begin() + 1);
}

}  // namespace

ArraysCache::ArraysCache(int n_slots, std::vector<int> left_padding) : padding_(std::move(left_padding)) {
  if (n_slots < 1) refuse("ArraysCache", "n_slots is " + std::to_string(n_slots) + ", expected at least 1");
  slots_.resize(static_cast<std::size_t>(n_slots));
}

std::size_t ArraysCache::checked(int index, const char* function) const {
  if (index < 0 || index >= n_slots()) {
    refuse(function, "slot " + std::to_string(index) + " of " + std::to_string(n_slots()));
  }
  return static_cast<std::size_t>(index);
}

const std::optional<mx::array>& ArraysCache::slot(int index) const {
  return slots_[checked(index, "slot")];
}

int ArraysCache::n_sequences_but_of(std::size_t index) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (i != index && slots_[i]) return slots_[i]->shape(0);
  }
  return padding_.n_sequences();
}

void ArraysCache::set_slot(int index, const mx::array& a) {
  const std::size_t at = checked(index, "set_slot");
  if (a.ndim() < 1 || a.shape(0) < 1) refuse("set_slot", "a has shape " + shape_text(a) + ", expected (B,...)");
  const int n_others = n_sequences_but_of(at);
  if (n_others != 0 && n_others != a.shape(0)) {
    refuse("set_slot", "a has shape " + shape_text(a) + ", expected the " + std::to_string(n_others) +
                           " sequences of the other slots and the padding");
  }
  slots_[at] = compact(a);
}

void ArraysCache::advance(int n_tokens) {
  if (n_tokens < 1) refuse("advance", "n_tokens is " + std::to_string(n_tokens) + ", expected at least 1");
  if (n_tokens > Layout::kMaxRows - offset_) refuse("advance", "the offset would pass 2^30");
  check_room("advance", n_tokens);
  padding_.advance(n_tokens, offset_);
  offset_ += n_tokens;
}

int ArraysCache::batch_size() const {
  for (const auto& slot : slots_) {
    if (slot) return slot->shape(0);
  }
  return std::max(1, padding_.n_sequences());
}

void ArraysCache::pad_left(std::vector<int> left_padding) {
  if (!is_empty()) refuse("pad_left", "the cache has taken in tokens, expected an empty one");
  Padding padding(std::move(left_padding));
  if (has_slots() && padding.n_sequences() != 0 && padding.n_sequences() != batch_size()) {
    refuse("pad_left",
           std::to_string(padding.n_sequences()) + " paddings for " + std::to_string(batch_size()) + " sequences");
  }
  padding_ = std::move(padding);
}

bool ArraysCache::has_slots() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.has_value(); });
}

void ArraysCache::prepare(std::vector<int> lengths) {
  const bool has_batch = padding_.n_sequences() > 0 || has_slots();
  padding_.prepare(std::move(lengths), has_batch ? batch_size() : 0);
}

void ArraysCache::set_offsets(const std::vector<int>& offsets) {
  if (static_cast<int>(offsets.size()) != batch_size()) {
    refuse("set_offsets",
           std::to_string(offsets.size()) + " offsets for " + std::to_string(batch_size()) + " sequences");
  }
  if (*std::max_element(offsets.begin(), offsets.end()) > offset_) {
    refuse("set_offsets", "a sequence has more tokens than the " + std::to_string(offset_) + " columns");
  }
  padding_.set(left_padding(), lengths(), offsets);
}

std::optional<mx::array> ArraysCache::mask(int n_tokens) const {
  const std::vector<kernels::TokenSpan> real = spans(n_tokens);
  if (real.empty()) return std::nullopt;
  std::vector<int> begins;
  std::vector<int> ends;
  for (const kernels::TokenSpan& span : real) {
    begins.push_back(span.begin);
    ends.push_back(span.end);
  }
  const mx::array columns = mx::arange(0, n_tokens, mx::int32);
  return mx::logical_and(mx::greater_equal(columns, mx::expand_dims(as_array(begins), 1)),
                         mx::less(columns, mx::expand_dims(as_array(ends), 1)));
}

void ArraysCache::filter(const std::vector<int>& sequences) {
  check_no_transaction("filter");
  check_sequences("filter", sequences, batch_size());
  offset_ = padding_.filter(sequences, offset_);
  for (auto& slot : slots_) {
    if (slot) slot = compact(sequences_of(*slot, sequences));
  }
}

void ArraysCache::extend(const ArraysCache& other) {
  check_no_transaction("extend");
  if (other.n_slots() != n_slots()) {
    refuse("extend",
           "the other has " + std::to_string(other.n_slots()) + " slots, expected " + std::to_string(n_slots()));
  }
  const int n = batch_size();
  const int m = other.batch_size();
  StateArrays slots(slots_.size());
  bool is_set = false;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::optional<mx::array>& a = slots_[i];
    const std::optional<mx::array>& b = other.slots_[i];
    if (!a && !b) continue;
    if (a && b && !is_alike(*a, *b)) {
      refuse("extend", "slot " + std::to_string(i) + " has shape " + shape_text(*a) + " " + dtype_text(a->dtype()) +
                           ", the other's " + shape_text(*b) + " " + dtype_text(b->dtype()) +
                           ", expected them to differ in the batch alone");
    }
    slots[i] = sequences_joined(a, n, b, m);
    is_set = true;
  }
  padding_.extend(other.padding_, n, offset_, m, other.offset_);
  if (!is_set && padding_.is_even()) padding_ = Padding(std::vector<int>(static_cast<std::size_t>(n) + m, 0));
  slots_ = std::move(slots);
  offset_ = std::max(offset_, other.offset_);
}

std::unique_ptr<ArraysCache> ArraysCache::extract(int sequence) const {
  check_sequences("extract", {sequence}, batch_size());
  auto one = make(n_slots());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i]) one->slots_[i] = compact(sequences_of(*slots_[i], {sequence}));
  }
  one->offset_ = padding_.offset_of(sequence, offset_);
  return one;
}

std::vector<mx::array> ArraysCache::state() const {
  if (!has_slots() && offset_ == 0 && padding_.is_even()) return {};
  std::vector<mx::array> result;
  for (const auto& slot : slots_) result.push_back(slot ? *slot : none());
  result.push_back(as_array(left_padding()));
  result.push_back(as_array(lengths()));
  return result;
}

std::vector<std::string> ArraysCache::meta_state() const {
  return {std::to_string(offset_)};
}

void ArraysCache::set_state(const std::vector<mx::array>& state, const std::vector<std::string>& meta) {
  check_no_transaction("set_state");
  int offset = -1;
  if (meta.size() == 1) {
    const char* end = meta[0].data() + meta[0].size();
    const auto [stop, error] = std::from_chars(meta[0].data(), end, offset);
    if (error != std::errc() || stop != end) offset = -1;
  }
  if (offset < 0 || offset > Layout::kMaxRows) refuse("set_state", "expected one number, the offset, from 0 to 2^30");
  if (!(state.empty() && offset == 0) && state.size() != slots_.size() + 2) {
    refuse("set_state", std::to_string(state.size()) + " arrays, expected " + std::to_string(slots_.size() + 2) +
                            ": slots, left padding and lengths");
  }
  auto other = make(n_slots());
  if (!state.empty()) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!is_none(state[i])) other->set_slot(static_cast<int>(i), state[i]);
    }
    other->padding_.set(as_numbers(state[slots_.size()], "left_padding"), as_numbers(state.back(), "lengths"), {});
  }
  const int n = other->batch_size();
  if (other->padding_.n_sequences() != 0 && other->padding_.n_sequences() != n) {
    refuse("set_state", "padding or lengths are not of the slots' batch");
  }
  slots_ = std::move(other->slots_);
  padding_ = std::move(other->padding_);
  offset_ = offset;
}

void ArraysCache::materialize() const {
  std::vector<mx::array> arrays;
  for (const auto& slot : slots_) {
    if (slot) arrays.push_back(*slot);
  }
  mx::eval(arrays);
}

void ArraysCache::free() {
  slots_.assign(slots_.size(), std::nullopt);
  padding_ = {};
  before_.reset();
  transaction_.reset();
  offset_ = 0;
}

std::unique_ptr<LayerCache> ArraysCache::copy() const {
  auto other = make(n_slots());
  other->slots_ = slots_;
  other->padding_ = padding_;
  other->offset_ = offset_;
  return other;
}

std::unique_ptr<Snapshot> ArraysCache::snapshot(int from) const {
  const int begin = std::max(0, from);
  if (begin >= offset_) return nullptr;
  return std::make_unique<StateSnapshot>(kind(), begin, offset_, slots_,
                                         std::vector<std::vector<int>>{left_padding(), lengths(), padding_.offsets()});
}

bool ArraysCache::restore(const Snapshot* snapshot, int target) {
  if (!snapshot) {
    if (!can_rewind(target)) return false;
    if (target != offset_) go_back_to_begin();
    return true;
  }
  check_no_transaction("restore");
  const StateSnapshot& states = checked_state(*snapshot, kind(), "restore");
  if (states.arrays().size() != slots_.size()) {
    refuse("restore", "the snapshot has " + std::to_string(states.arrays().size()) + " slots, expected " +
                          std::to_string(slots_.size()));
  }
  if (target != states.to()) return false;
  slots_ = states.arrays();
  const std::vector<std::vector<int>>& numbers = states.numbers();
  if (numbers.size() == 3) {
    padding_.set(numbers[0], numbers[1], numbers[2]);
  } else {
    padding_ = {};  // of slots that were read from elsewhere: sequences without padding
  }
  offset_ = target;
  return true;
}

void ArraysCache::begun(const OpenTransaction&) {
  before_ = std::make_shared<Before>(Before{slots_, padding_});
}

void ArraysCache::go_back_to_begin() {
  slots_ = before_->slots;
  padding_ = before_->padding;
  offset_ = transaction_->begin;
}

LayerCache::Held ArraysCache::keep_first(int n) {
  if (n == 0) go_back_to_begin();
  return std::move(before_);
}

std::unique_ptr<Snapshot> ArraysCache::merge(std::unique_ptr<Snapshot> parent, std::unique_ptr<Snapshot> child) const {
  return merge_states(std::move(parent), std::move(child), kind());
}

SnapshotPair ArraysCache::split(std::unique_ptr<Snapshot> snapshot, int at) const {
  return split_states(std::move(snapshot), at, kind());
}

int ArraysCache::trim(int n_tokens) {
  if (n_tokens < 0) refuse("trim", "n_tokens is " + std::to_string(n_tokens) + ", expected at least 0");
  return 0;
}

std::unique_ptr<ArraysCache> make_batch(const std::vector<const ArraysCache*>& caches) {
  if (caches.empty() || std::find(caches.begin(), caches.end(), nullptr) != caches.end()) {
    refuse("make_batch", "expected at least one cache, and no null");
  }
  auto batch = std::unique_ptr<ArraysCache>(dynamic_cast<ArraysCache*>(caches.front()->copy().release()));
  for (std::size_t i = 1; i < caches.size(); ++i) batch->extend(*caches[i]);
  return batch;
}

}  // namespace memoir::cache
