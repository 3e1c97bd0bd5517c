#include "memoir/text/jinja_objects.h"

#include <algorithm>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_operations.h"

namespace memoir::text::jinja {
namespace {

constexpr int kMaxIteratorChain = 50;  // each is a native call deeper

int checked_depth(const Value& source) {
  if (source.depth() >= kMaxDepth) fail_unsupported("a value is nested too deeply");
  return source.depth() + 1;
}

// The number of steps from start to stop, without leaving 64 bits.
std::int64_t count_steps(std::int64_t start, std::int64_t stop, std::int64_t step) {
  const bool up = step > 0;
  if (up ? start >= stop : start <= stop) return 0;
  const std::uint64_t span = up ? static_cast<std::uint64_t>(stop) - static_cast<std::uint64_t>(start)
                                : static_cast<std::uint64_t>(start) - static_cast<std::uint64_t>(stop);
  const std::uint64_t stride = up ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
  return static_cast<std::int64_t>(std::min<std::uint64_t>((span - 1) / stride + 1, INT64_MAX));
}

}  // namespace

Range::Range(std::int64_t start, std::int64_t stop, std::int64_t step)
    : start_(start), stop_(stop), step_(step), length_(count_steps(start, stop, step)) {}

bool Range::equals(const Object& other) const {
  const auto* range = dynamic_cast<const Range*>(&other);
  if (range == nullptr || range->length_ != length_) return false;
  return length_ == 0 || (range->start_ == start_ && (length_ == 1 || range->step_ == step_));
}

bool Range::contains(std::int64_t value) const {
  if (length_ == 0) return false;
  const std::int64_t last = at(length_ - 1);
  if (value < std::min(start_, last) || value > std::max(start_, last)) return false;
  const auto from = static_cast<std::uint64_t>(step_ > 0 ? start_ : value);
  const auto to = static_cast<std::uint64_t>(step_ > 0 ? value : start_);
  const std::uint64_t stride = step_ > 0 ? static_cast<std::uint64_t>(step_) : 0 - static_cast<std::uint64_t>(step_);
  return (to - from) % stride == 0;
}

std::string Range::repr() const {
  const std::string bounds = "range(" + std::to_string(start_) + ", " + std::to_string(stop_);
  return step_ == 1 ? bounds + ")" : bounds + ", " + std::to_string(step_) + ")";
}

std::string DictView::type_name() const {
  switch (part_) {
    case Part::kKeys:
      return "dict_keys";
    case Part::kValues:
      return "dict_values";
    default:
      return "dict_items";
  }
}

Value DictView::at(std::size_t index) const {
  const auto& [key, value] = dict_->entries()[index];
  switch (part_) {
    case Part::kKeys:
      return key;
    case Part::kValues:
      return value;
    default:
      return Value::tuple({key, value});
  }
}

std::string DictView::repr() const {
  std::vector<Value> items;
  for (std::size_t i = 0; i < size(); ++i) items.push_back(at(i));
  return type_name() + "(" + to_repr(Value::list(std::move(items))) + ")";
}

StepIterator::StepIterator(Step step, const Value& source)
    : step_(std::move(step)), depth_(checked_depth(source)), n_chained_(1) {
  if (const auto* inner = source.as<StepIterator>()) n_chained_ = inner->n_chained_ + 1;
  if (n_chained_ > kMaxIteratorChain) {
    fail_unsupported("more than " + std::to_string(kMaxIteratorChain) + " filters chained on one sequence");
  }
}

bool StepIterator::next(Value& item) {
  spend(1);
  return step_(item);
}

BoundMethod::BoundMethod(Value self, std::string name, MethodFunction function)
    : self_(std::move(self)), name_(std::move(name)), function_(function) {
  checked_depth(self_);
}

LoopState::LoopState(const Stmt& stmt, std::shared_ptr<Frame> outer, Value iterable, std::shared_ptr<Iterator> iterator,
                     int depth0)
    : stmt_(stmt), outer_(outer), iterable_(std::move(iterable)), iterator_(std::move(iterator)), depth0_(depth0) {}

bool LoopState::next(Value& item) {
  if (after_) {
    item = std::move(*after_);
    after_.reset();
  } else if (iterator_ == nullptr || !iterator_->next(item)) {
    return false;
  }
  ++index0_;
  before_ = std::move(current_);
  current_ = item;
  return true;
}

void LoopState::finish() {
  iterable_ = Value();
  iterator_ = nullptr;
  after_.reset();
  current_.reset();
  before_.reset();
  last_changed_.reset();
}

bool LoopState::peek() {
  if (after_) return true;
  Value item;
  if (iterator_ == nullptr || !iterator_->next(item)) return false;
  after_ = std::move(item);
  return true;
}

// Of a generator only by going through what is left of it.
std::int64_t LoopState::length() {
  if (length_) return *length_;
  length_ = length_of(iterable_);
  if (!length_ && iterator_ != nullptr) {
    std::vector<Value> rest;
    for (Value item; iterator_->next(item);) rest.push_back(item);
    length_ = static_cast<std::int64_t>(rest.size()) + index0_ + 1 + (after_ ? 1 : 0);
    iterator_ = iterate(Value::list(std::move(rest)));
  }
  return length_.value_or(0);
}

std::optional<Value> LoopState::attribute(std::string_view name) {
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return Value::integer(length());
  if (name == "revindex") return Value::integer(length() - index0_);
  if (name == "revindex0") return Value::integer(length() - index0_ - 1);
  if (name == "depth") return Value::integer(depth0_ + 1);
  if (name == "depth0") return Value::integer(depth0_);
  if (name == "previtem") {
    if (index0_ == 0 || !before_) return Value::undefined("there is no previous item");
    return *before_;
  }
  if (name == "nextitem") {
    if (!peek()) return Value::undefined("there is no next item");
    return *after_;
  }
  return std::nullopt;
}

bool LoopState::changed(Value values) {
  if (last_changed_ && equal(*last_changed_, values)) return false;
  last_changed_ = std::move(values);
  return true;
}

}  // namespace memoir::text::jinja
