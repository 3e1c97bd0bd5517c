#include <algorithm>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_operations.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

constexpr std::int64_t kMaxItems = 10'000'000;

class ItemIterator : public Iterator {
 public:
  explicit ItemIterator(Value sequence) : sequence_(std::move(sequence)) {}
  bool next(Value& item) override {
    spend(1);
    if (at_ >= sequence_.items().size()) return false;
    item = sequence_.items()[at_++];
    return true;
  }
  std::string type_name() const override { return "list_iterator"; }
  int depth() const override { return sequence_.depth() + 1; }

 private:
  Value sequence_;
  std::size_t at_ = 0;
};

class CharacterIterator : public Iterator {
 public:
  explicit CharacterIterator(Value text) : text_(std::move(text)) {}
  bool next(Value& item) override {
    spend(1);
    const std::string& bytes = text_.str();
    if (at_ >= bytes.size()) return false;
    const std::size_t n_bytes = character_at(bytes, at_).n_bytes;
    item = Value::string(bytes.substr(at_, n_bytes));
    at_ += n_bytes;
    return true;
  }

 private:
  Value text_;
  std::size_t at_ = 0;
};

class ViewIterator : public Iterator {
 public:
  explicit ViewIterator(DictView view) : view_(std::move(view)) {}
  bool next(Value& item) override {
    spend(1);
    if (at_ >= view_.size()) return false;
    item = view_.at(at_++);
    return true;
  }
  int depth() const override { return view_.depth() + 1; }

 private:
  DictView view_;
  std::size_t at_ = 0;
};

class RangeIterator : public Iterator {
 public:
  explicit RangeIterator(Range range) : range_(std::move(range)) {}
  bool next(Value& item) override {
    spend(1);
    if (at_ >= range_.length()) return false;
    item = Value::integer(range_.at(at_++));
    return true;
  }

 private:
  Range range_;
  std::int64_t at_ = 0;
};

std::string described(const Value& object) {
  return object.is_none() ? "None" : object.type_name() + " object";
}

Value no_attribute(const Value& object, const std::string& name) {
  return Value::undefined("'" + described(object) + "' has no attribute '" + name + "'");
}

Value unsafe_attribute(const Value& object, const std::string& name) {
  return Value::undefined("access to attribute '" + name + "' of '" + object.type_name() + "' object is unsafe.");
}

bool is_special_name(const std::string& name) {
  return name.size() > 4 && name.compare(0, 2, "__") == 0 && name.compare(name.size() - 2, 2, "__") == 0;
}

// The item of a key, or nullopt where indexing would raise TypeError or LookupError.
std::optional<Value> own_item(const Value& object, const Value& key) {
  if (object.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return std::nullopt;
    const Value* found = object.as_dict().find(key);
    return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
  }
  if (!key.is_integral()) return std::nullopt;
  const auto* range = object.as<Range>();
  if (!object.is_string() && !object.is_sequence() && range == nullptr) return std::nullopt;
  const std::int64_t n = *length_of(object);
  const std::int64_t index = key.as_int() < 0 ? key.as_int() + n : key.as_int();
  if (index < 0 || index >= n) return std::nullopt;
  if (object.is_string()) {
    return Value::string(characters_between(object.text(), index, index + 1), object.text().markup);
  }
  if (range != nullptr) return Value::integer(range->at(index));
  return object.items()[static_cast<std::size_t>(index)];
}

// The pairs of groupby are named tuples.
std::optional<Value> group_attribute(const Value& object, const std::string& name) {
  const auto& items = object.items();
  if (items.size() != 2 || !items[1].is(Kind::kList)) return std::nullopt;
  if (name == "grouper") return items[0];
  if (name == "list") return items[1];
  return std::nullopt;
}

std::int64_t clamp_index(std::int64_t index, std::int64_t n, std::int64_t lowest, std::int64_t highest) {
  if (index < 0) index = index < -n ? -1 : index + n;
  return std::clamp(index, lowest, highest);
}

std::int64_t slice_bound(const Value& bound, std::int64_t missing, std::int64_t n, bool forward) {
  if (bound.is_none()) return missing;
  bound.require_defined();
  if (!bound.is_integral()) fail("slice indices must be integers or None");
  return forward ? clamp_index(bound.as_int(), n, 0, n) : clamp_index(bound.as_int(), n, -1, n - 1);
}

Value slice_text(const Value& object, std::int64_t start, std::int64_t stop, std::int64_t step, std::int64_t n_taken) {
  const Text& text = object.text();
  if (step == 1) return Value::string(characters_between(text, start, stop), text.markup);
  spend_text(text.bytes.size());
  const auto offsets = text.ascii ? std::vector<std::size_t>() : character_offsets(text.bytes);
  std::string out;
  for (std::int64_t i = 0; i < n_taken; ++i) {
    const auto index = static_cast<std::size_t>(start + i * step);
    if (text.ascii) {
      out += text.bytes[index];
    } else {
      out.append(text.bytes, offsets[index], offsets[index + 1] - offsets[index]);
    }
  }
  return Value::string(std::move(out), text.markup);
}

}  // namespace

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return true;
    case Kind::kObject:
      return value.as<Range>() != nullptr || value.as<DictView>() != nullptr || value.as<Iterator>() != nullptr;
    default:
      return false;
  }
}

std::shared_ptr<Iterator> iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::make_shared<ItemIterator>(Value::list({}));
    case Kind::kString:
      return std::make_shared<CharacterIterator>(value);
    case Kind::kList:
    case Kind::kTuple:
      return std::make_shared<ItemIterator>(value);
    case Kind::kDict:
      return std::make_shared<ViewIterator>(DictView(value.dict_ref(), DictView::Part::kKeys));
    default:
      break;
  }
  if (const auto* range = value.as<Range>()) return std::make_shared<RangeIterator>(*range);
  if (const auto* view = value.as<DictView>()) return std::make_shared<ViewIterator>(*view);
  if (value.as<Iterator>() != nullptr) return std::static_pointer_cast<Iterator>(value.object_ref());
  fail("'" + value.type_name() + "' object is not iterable");
}

std::vector<Value> collect(const Value& value) {
  if (value.is_sequence()) {
    spend(value.items().size());
    return value.items();
  }
  std::vector<Value> items;
  const auto iterator = iterate(value);
  for (Value item; iterator->next(item);) {
    if (static_cast<std::int64_t>(items.size()) >= kMaxItems) fail_unsupported("a list of more than 10000000 items");
    items.push_back(std::move(item));
  }
  return items;
}

std::optional<Value> own_attribute(const Value& object, const std::string& name) {
  object.require_defined();
  if (is_special_name(name))
    return object.is(Kind::kNamespace) ? std::optional<Value>() : unsafe_attribute(object, name);
  if (object.is(Kind::kNamespace)) {
    const Value* found = object.as_namespace()->find(name);
    return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
  }
  if (object.is(Kind::kLoop)) {
    if (auto value = object.as_loop()->attribute(name)) return value;
  }
  if (object.is(Kind::kTuple)) {
    if (auto value = group_attribute(object, name)) return value;
  }
  if (const auto* macro = object.as<Macro>(); macro != nullptr && name == "name") {
    return Value::string(macro->node().name);
  }
  if (const auto* cycler = object.as<Cycler>(); cycler != nullptr && name == "current") return cycler->current();
  const Method method = find_method(object, name);
  switch (method.access) {
    case Method::Access::kCallable:
      return Value::object(std::make_shared<BoundMethod>(object, name, method.function));
    case Method::Access::kForbidden:
      return unsafe_attribute(object, name);
    case Method::Access::kUnsupported:
      fail_unsupported("the attribute '" + name + "' of '" + object.type_name() + "' is not supported");
    default:
      return std::nullopt;
  }
}

Value attribute_of(const Value& object, const std::string& name) {
  if (auto value = own_attribute(object, name)) return *std::move(value);
  if (object.is(Kind::kDict)) {
    if (const Value* found = object.as_dict().find(name)) return *found;
  }
  return no_attribute(object, name);
}

Value item_of(const Value& object, const Value& key) {
  object.require_defined();
  if (auto value = own_item(object, key)) return *std::move(value);
  if (!key.is_string()) return Value::undefined(described(object) + " has no element " + to_repr(key));
  if (auto value = own_attribute(object, key.str())) return *std::move(value);
  return no_attribute(object, key.str());
}

Value slice_of(const Value& object, const Value& start, const Value& stop, const Value& step) {
  object.require_defined();
  const auto* range = object.as<Range>();
  if (!object.is_string() && !object.is_sequence() && range == nullptr) {
    fail("'" + object.type_name() + "' object can't be sliced");
  }
  const std::int64_t n = *length_of(object);
  step.require_defined();
  if (!step.is_none() && !step.is_integral()) fail("slice indices must be integers or None");
  // A step beyond the length takes one item, whatever its size; the cap keeps the products below in 64 bits.
  const std::int64_t stride = step.is_none() ? 1 : std::clamp<std::int64_t>(step.as_int(), -n - 1, n + 1);
  if (!step.is_none() && step.as_int() == 0) fail("slice step cannot be zero");
  const bool forward = stride > 0;
  const std::int64_t first = slice_bound(start, forward ? 0 : n - 1, n, forward);
  const std::int64_t end = slice_bound(stop, forward ? n : -1, n, forward);
  std::int64_t n_taken = 0;
  if (forward && first < end) n_taken = (end - first - 1) / stride + 1;
  if (!forward && first > end) n_taken = (first - end - 1) / -stride + 1;
  if (object.is_string()) return slice_text(object, first, end, stride, n_taken);
  if (range != nullptr) {
    const Value by = binary("*", Value::integer(range->step()), Value::integer(stride));
    return Value::object(std::make_shared<Range>(range->at(first), range->at(end), by.as_int()));
  }
  spend(static_cast<std::uint64_t>(n_taken));
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(n_taken));
  for (std::int64_t i = 0; i < n_taken; ++i) {
    items.push_back(object.items()[static_cast<std::size_t>(first + i * stride)]);
  }
  return object.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace memoir::text::jinja
