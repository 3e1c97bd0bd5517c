#pragma once

// The values a template computes with: Python's, as far as chat templates can tell.
//
// Invariants:
//   - strings, lists, tuples and dicts never change once a Value holds them (the reference's sandbox is immutable
//     too), so copying a Value is cheap and containers can't hold themselves;
//   - every value knows its nesting depth and none is deeper than kMaxDepth, which bounds every recursion over values,
//     their destructors included;
//   - namespaces and loop states do change; the interpreter owns them and values point to them, so no cycle owns
//     itself.
// Text is UTF-8; a byte that is not part of a valid sequence counts as one character and is passed through.
// Threads: values of one render stay on its thread; constants of a template are shared and read only.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "memoir/text/jinja_budget.h"

namespace memoir::text::jinja {

class Value;
class Dict;
class Object;
class Namespace;
class LoopState;

inline constexpr int kMaxDepth = 500;

/// In the order of Value's alternatives.
enum class Kind { kNone, kUndefined, kBool, kInt, kFloat, kString, kList, kTuple, kDict, kObject, kNamespace, kLoop };

struct Text {
  Text(std::string text, bool markup_text);

  const std::string bytes;
  const bool ascii;   // characters are bytes then
  const bool markup;  // marked by |safe or |escape: what is added to it gets escaped
  const HeldBytes held;
};

struct Items;

/// A missing variable, key or attribute. Prints nothing, is false, and fails with `message` when used otherwise.
struct Undefined {
  std::shared_ptr<const std::string> message;
};
struct ListRef {
  std::shared_ptr<const Items> items;
};
struct TupleRef {
  std::shared_ptr<const Items> items;
};

class Value {
 public:
  Value() = default;  // None
  static Value undefined(std::string message);
  static Value boolean(bool value) { return Value(Data(std::in_place_type<bool>, value)); }
  static Value integer(std::int64_t value) { return Value(Data(std::in_place_type<std::int64_t>, value)); }
  static Value real(double value) { return Value(Data(std::in_place_type<double>, value)); }
  static Value string(std::string text, bool markup = false);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(Dict dict);
  static Value dict(std::shared_ptr<const Dict> dict) { return Value(Data(std::move(dict))); }
  static Value object(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }
  static Value of(Namespace* value) { return Value(Data(value)); }
  static Value of(LoopState* value) { return Value(Data(value)); }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind wanted) const { return kind() == wanted; }
  bool is_none() const { return is(Kind::kNone); }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_string() const { return is(Kind::kString); }
  bool is_sequence() const { return is(Kind::kList) || is(Kind::kTuple); }
  /// int or bool, as Python's isinstance(x, int).
  bool is_integral() const { return is(Kind::kInt) || is(Kind::kBool); }
  bool is_number() const { return is_integral() || is(Kind::kFloat); }

  // Each takes a value of its own kind only.
  bool as_bool() const { return std::get<bool>(data_); }
  double as_float() const { return std::get<double>(data_); }
  /// int or bool.
  std::int64_t as_int() const { return is(Kind::kBool) ? as_bool() : std::get<std::int64_t>(data_); }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& str() const { return text().bytes; }
  /// list or tuple.
  const std::vector<Value>& items() const;
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const std::shared_ptr<const Dict>& dict_ref() const { return std::get<std::shared_ptr<const Dict>>(data_); }
  const std::shared_ptr<Object>& object_ref() const { return std::get<std::shared_ptr<Object>>(data_); }
  Namespace* as_namespace() const { return std::get<Namespace*>(data_); }
  LoopState* as_loop() const { return std::get<LoopState*>(data_); }
  /// The object if it is of class T, else nullptr.
  template <class T>
  T* as() const;

  int depth() const;
  /// The name of the Python type ("str", "NoneType", ...), for messages.
  std::string type_name() const;
  /// Throws the undefined value's error if this is one.
  void require_defined() const;
  /// Whether both are the same object (Python's `is`); equal numbers count as the same.
  bool same_as(const Value& other) const;

 private:
  using Data = std::variant<std::monostate, Undefined, bool, std::int64_t, double, std::shared_ptr<const Text>, ListRef,
                            TupleRef, std::shared_ptr<const Dict>, std::shared_ptr<Object>, Namespace*, LoopState*>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

struct Items {
  explicit Items(std::vector<Value> values);

  const std::vector<Value> values;
  const int depth;
  const HeldBytes held;
};

/// Insertion-ordered, as Python's. Filled by set(), then given to Value::dict.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  /// Replaces the value of an equal key or appends. Throws Error for a key that can't be hashed (a list).
  void set(Value key, Value value);
  void set(std::string_view key, Value value) { set(Value::string(std::string(key)), std::move(value)); }

  /// nullptr where absent. Throws Error for a key that can't be hashed.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;

  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

 private:
  template <class Matches>
  const Value* find_entry(std::size_t hash, const Matches& matches) const;

  std::vector<Entry> entries_;
  std::unordered_multimap<std::size_t, std::size_t> index_;  // hash -> entry, once there are more than a few
  int depth_ = 1;
  std::shared_ptr<HeldBytes> held_;
};

/// What namespace() makes: attributes that {% set ns.name = ... %} may change.
class Namespace {
 public:
  /// Throws Error for a name that begins with an underscore.
  void set(const std::string& name, Value value);
  const Value* find(const std::string& name) const;
  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, Value>> entries_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// Everything else: ranges, iterators, functions, macros, ...
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual bool callable() const { return false; }
  virtual bool truthy() const { return true; }
  virtual bool equals(const Object& other) const { return this == &other; }
  virtual std::string repr() const { return "<" + type_name() + " object>"; }
  virtual int depth() const { return 1; }
};

template <class T>
T* Value::as() const {
  return is(Kind::kObject) ? dynamic_cast<T*>(object_ref().get()) : nullptr;
}

/// Python's bool(): empty, zero, None and undefined are false.
bool truthy(const Value& value);
/// Python's ==.
bool equal(const Value& left, const Value& right);
/// Negative, zero, positive; 2 where a NaN is involved (every comparison is false then). Throws Error for values
/// that have no order.
int compare(const Value& left, const Value& right, const char* operation);
/// Equal values have equal hashes. Throws Error for a list or dict.
std::size_t hash(const Value& value);

/// Python's str() and repr().
std::string to_text(const Value& value);
std::string to_repr(const Value& value);

/// Throws Error for nesting above kMaxDepth or an integer above 2^63 - 1.
Value from_json(const nlohmann::ordered_json& json);

/// What a call passes.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

}  // namespace memoir::text::jinja
