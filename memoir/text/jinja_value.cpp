#include "memoir/text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

constexpr std::size_t kIndexFromEntries = 8;  // below, a linear search is faster than a table

int checked_depth(int child_depth) {
  if (child_depth >= kMaxDepth) {
    fail_unsupported("a value is nested deeper than the limit of " + std::to_string(kMaxDepth));
  }
  return child_depth + 1;
}

int depth_above(const std::vector<Value>& values) {
  int deepest = 0;
  for (const Value& value : values) deepest = std::max(deepest, value.depth());
  return checked_depth(deepest);
}

double to_double(const Value& value) {
  return value.is(Kind::kFloat) ? value.as_float() : static_cast<double>(value.as_int());
}

// Compares exactly, also where the integer is above 2^53 and has no double of its own.
int compare_int_float(std::int64_t left, double right) {
  if (std::isnan(right)) return 2;
  if (right >= 9223372036854775808.0) return -1;
  if (right < -9223372036854775808.0) return 1;
  const double floor = std::floor(right);
  const auto whole = static_cast<std::int64_t>(floor);
  if (left != whole) return left < whole ? -1 : 1;
  return floor < right ? -1 : 0;
}

int compare_numbers(const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) {
    return left.as_int() < right.as_int() ? -1 : (left.as_int() > right.as_int() ? 1 : 0);
  }
  if (left.is_integral()) return compare_int_float(left.as_int(), right.as_float());
  if (right.is_integral()) {
    const int reversed = compare_int_float(right.as_int(), left.as_float());
    return reversed == 2 ? 2 : -reversed;
  }
  const double a = to_double(left);
  const double b = to_double(right);
  if (std::isnan(a) || std::isnan(b)) return 2;
  return a < b ? -1 : (a > b ? 1 : 0);
}

bool equal_dicts(const Dict& left, const Dict& right) {
  if (left.size() != right.size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key);
    if (other == nullptr || !equal(value, *other)) return false;
  }
  return true;
}

int compare_items(const std::vector<Value>& left, const std::vector<Value>& right, const char* operation) {
  const std::size_t n = std::min(left.size(), right.size());
  for (std::size_t i = 0; i < n; ++i) {
    if (!equal(left[i], right[i])) return compare(left[i], right[i], operation);
  }
  return left.size() < right.size() ? -1 : (left.size() > right.size() ? 1 : 0);
}

std::size_t hash_number(const Value& value) {
  if (value.is_integral()) return std::hash<std::int64_t>{}(value.as_int());
  const double number = value.as_float();
  const bool whole = std::floor(number) == number && std::fabs(number) < 9.0e18;
  return whole ? std::hash<std::int64_t>{}(static_cast<std::int64_t>(number)) : std::hash<double>{}(number);
}

Value from_json_at(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxDepth) {
    fail_unsupported("the input is nested deeper than the limit of " + std::to_string(kMaxDepth));
  }
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value::integer(json.get<std::int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > 9223372036854775807ULL) {
        fail_unsupported("the integer " + json.dump() + " of the input is above 2^63 - 1");
      }
      return Value::integer(json.get<std::int64_t>());
    case nlohmann::json::value_t::number_float:
      return Value::real(json.get<double>());
    case nlohmann::json::value_t::string:
      return Value::string(json.get_ref<const std::string&>());
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json_at(item, depth + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.set(key, from_json_at(item, depth + 1));
      return Value::dict(std::move(dict));
    }
    default:
      return Value();
  }
}

}  // namespace

Text::Text(std::string text, bool markup_text)
    : bytes(std::move(text)), ascii(is_ascii(bytes)), markup(markup_text), held(bytes.size() + sizeof(Text)) {}

Items::Items(std::vector<Value> list)
    : values(std::move(list)), depth(depth_above(values)), held(values.size() * sizeof(Value)) {}

Value Value::undefined(std::string message) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(message))}));
}

Value Value::string(std::string text, bool markup) {
  return Value(Data(std::make_shared<const Text>(std::move(text), markup)));
}

Value Value::list(std::vector<Value> items) {
  return Value(Data(ListRef{std::make_shared<const Items>(std::move(items))}));
}

Value Value::tuple(std::vector<Value> items) {
  return Value(Data(TupleRef{std::make_shared<const Items>(std::move(items))}));
}

Value Value::dict(Dict dict) {
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

const std::vector<Value>& Value::items() const {
  if (is(Kind::kTuple)) return std::get<TupleRef>(data_).items->values;
  return std::get<ListRef>(data_).items->values;
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kList:
      return std::get<ListRef>(data_).items->depth;
    case Kind::kTuple:
      return std::get<TupleRef>(data_).items->depth;
    case Kind::kDict:
      return as_dict().depth();
    case Kind::kObject:
      return object_ref()->depth();
    default:
      return 0;
  }
}

std::string Value::type_name() const {
  switch (kind()) {
    case Kind::kNone:
      return "NoneType";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return text().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return object_ref()->type_name();
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "";
}

void Value::require_defined() const {
  if (is_undefined()) fail(*std::get<Undefined>(data_).message);
}

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kNone:
      return true;
    case Kind::kUndefined:
      return std::get<Undefined>(data_).message == std::get<Undefined>(other.data_).message;
    case Kind::kString:
      return &text() == &other.text();
    case Kind::kList:
    case Kind::kTuple:
      return &items() == &other.items();
    case Kind::kDict:
      return &as_dict() == &other.as_dict();
    default:
      return equal(*this, other);
  }
}

void Dict::set(Value key, Value value) {
  spend(1);
  const std::size_t hash_of_key = hash(key);
  depth_ = std::max(depth_, checked_depth(std::max(key.depth(), value.depth())));
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() == kIndexFromEntries) {
    for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(hash(entries_[i].first), i);
  } else if (entries_.size() > kIndexFromEntries) {
    index_.emplace(hash_of_key, entries_.size() - 1);
  }
  if (entries_.size() >= 1024 && (entries_.size() & (entries_.size() - 1)) == 0) {
    held_.reset();  // counted each time the size doubles
    held_ = std::make_shared<HeldBytes>(entries_.size() * 2 * (sizeof(Entry) + 32));
  }
}

template <class Matches>
const Value* Dict::find_entry(std::size_t hash_of_key, const Matches& matches) const {
  if (entries_.size() < kIndexFromEntries) {
    for (const auto& [key, value] : entries_) {
      if (matches(key)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(hash_of_key);
  for (auto at = begin; at != end; ++at) {
    if (matches(entries_[at->second].first)) return &entries_[at->second].second;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  return find_entry(hash(key), [&key](const Value& other) { return equal(key, other); });
}

const Value* Dict::find(std::string_view key) const {
  return find_entry(std::hash<std::string_view>{}(key),
                    [key](const Value& other) { return other.is_string() && other.str() == key; });
}

void Namespace::set(const std::string& name, Value value) {
  if (!name.empty() && name[0] == '_') {
    fail("a namespace can't store the attribute '" + name + "', which begins with an underscore");
  }
  const auto [at, added] = index_.emplace(name, entries_.size());
  if (added) {
    entries_.emplace_back(name, std::move(value));
  } else {
    entries_[at->second].second = std::move(value);
  }
}

const Value* Namespace::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0.0;
    case Kind::kString:
      return !value.str().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return value.as_dict().size() != 0;
    case Kind::kObject:
      return value.object_ref()->truthy();
    default:
      return true;
  }
}

bool equal(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return compare_numbers(left, right) == 0;
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      spend(1 + std::min(left.str().size(), right.str().size()) / Budget::kBytesPerUnit);
      return left.str() == right.str();
    case Kind::kList:
    case Kind::kTuple:
      if (&left.items() == &right.items()) return true;
      spend(1 + left.items().size());
      return std::equal(left.items().begin(), left.items().end(), right.items().begin(), right.items().end(), equal);
    case Kind::kDict:
      spend(1 + left.as_dict().size());
      return &left.as_dict() == &right.as_dict() || equal_dicts(left.as_dict(), right.as_dict());
    case Kind::kObject:
      return left.object_ref()->equals(*right.object_ref());
    case Kind::kNamespace:
      return left.as_namespace() == right.as_namespace();
    case Kind::kLoop:
      return left.as_loop() == right.as_loop();
    default:
      return false;
  }
}

int compare(const Value& left, const Value& right, const char* operation) {
  left.require_defined();
  right.require_defined();
  if (left.is_number() && right.is_number()) return compare_numbers(left, right);
  if (left.is_string() && right.is_string()) {
    const int order = left.str().compare(right.str());  // UTF-8 sorts as its code points do
    return order < 0 ? -1 : (order > 0 ? 1 : 0);
  }
  if (left.is_sequence() && left.kind() == right.kind()) {
    spend(1 + left.items().size());
    return compare_items(left.items(), right.items(), operation);
  }
  fail("'" + std::string(operation) + "' not supported between instances of '" + left.type_name() + "' and '" +
       right.type_name() + "'");
}

std::size_t hash(const Value& value) {
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return hash_number(value);
    case Kind::kString:
      return std::hash<std::string_view>{}(value.str());
    case Kind::kTuple: {
      std::size_t combined = 7;
      for (const Value& item : value.items()) combined = combined * 1000003 + hash(item);
      return combined;
    }
    case Kind::kList:
    case Kind::kDict:
      fail("unhashable type: '" + value.type_name() + "'");
    default:
      return static_cast<std::size_t>(value.kind());
  }
}

Value from_json(const nlohmann::ordered_json& json) {
  return from_json_at(json, 1);
}

}  // namespace memoir::text::jinja
