#include <string_view>
#include <unordered_map>
#include <utility>

#include "memoir/text/jinja_arguments.h"
#include "memoir/text/jinja_builtins.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_objects.h"
#include "memoir/text/jinja_operations.h"
#include "memoir/text/jinja_text_methods.h"

namespace memoir::text::jinja {
namespace {

// ---- dict ----

Value dict_get(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("get", arguments, {"key", "default"}, 1);
  const Value* found = self.as_dict().find(bound[0]);
  return found != nullptr ? *found : bound[1];
}

template <DictView::Part Part>
Value dict_view(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("dict view", arguments, {});
  return Value::object(std::make_shared<DictView>(self.dict_ref(), Part));
}

Value same(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("copy", arguments, {});
  return self;
}

// ---- list and tuple ----

Value sequence_count(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("count", arguments, {"value"}, 1);
  std::int64_t n = 0;
  for (const Value& item : self.items()) n += equal(item, bound[0]) ? 1 : 0;
  return Value::integer(n);
}

Value sequence_index(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("index", arguments, {"value", "start", "stop"}, 1);
  const auto n = static_cast<std::int64_t>(self.items().size());
  const auto from_end = [n](std::int64_t index) { return index < 0 ? std::max<std::int64_t>(0, index + n) : index; };
  const std::int64_t stop = std::min(n, from_end(bound.integer(2, n)));
  for (std::int64_t i = from_end(bound.integer(1, 0)); i < stop; ++i) {
    if (equal(self.items()[static_cast<std::size_t>(i)], bound[0])) return Value::integer(i);
  }
  fail(to_repr(bound[0]) + " is not in " + self.type_name());
}

// ---- loop, cycler ----

Value loop_cycle(Interpreter&, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) fail("no items for cycling given");
  const auto n = static_cast<std::int64_t>(arguments.positional.size());
  return arguments.positional[static_cast<std::size_t>(self.as_loop()->index0() % n)];
}

Value loop_changed(Interpreter&, const Value& self, Arguments& arguments) {
  return Value::boolean(self.as_loop()->changed(Value::tuple(arguments.positional)));
}

Value cycler_next(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("next", arguments, {});
  auto* cycler = self.as<Cycler>();
  Value current = cycler->current();
  cycler->advance();
  return current;
}

Value cycler_reset(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("reset", arguments, {});
  self.as<Cycler>()->reset();
  return Value();
}

constexpr Method callable(MethodFunction function) {
  return {Method::Access::kCallable, function};
}
constexpr Method kForbidden = {Method::Access::kForbidden, nullptr};
constexpr Method kUnsupported = {Method::Access::kUnsupported, nullptr};

using Table = std::unordered_map<std::string_view, Method>;

const Table& dict_methods() {
  static const Table kTable = {
      {"get", callable(dict_get)},
      {"items", callable(dict_view<DictView::Part::kItems>)},
      {"keys", callable(dict_view<DictView::Part::kKeys>)},
      {"values", callable(dict_view<DictView::Part::kValues>)},
      {"copy", callable(same)},
      {"fromkeys", kUnsupported},
      {"clear", kForbidden},
      {"pop", kForbidden},
      {"popitem", kForbidden},
      {"setdefault", kForbidden},
      {"update", kForbidden},
  };
  return kTable;
}

const Table& list_methods() {
  static const Table kTable = {
      {"count", callable(sequence_count)},
      {"index", callable(sequence_index)},
      {"copy", callable(same)},
      {"append", kForbidden},
      {"clear", kForbidden},
      {"extend", kForbidden},
      {"insert", kForbidden},
      {"pop", kForbidden},
      {"remove", kForbidden},
      {"reverse", kForbidden},
      {"sort", kForbidden},
  };
  return kTable;
}

const Table& tuple_methods() {
  static const Table kTable = {{"count", callable(sequence_count)}, {"index", callable(sequence_index)}};
  return kTable;
}

const Table& number_methods() {
  static const Table kTable = {
      {"as_integer_ratio", kUnsupported},
      {"bit_count", kUnsupported},
      {"bit_length", kUnsupported},
      {"conjugate", kUnsupported},
      {"denominator", kUnsupported},
      {"from_bytes", kUnsupported},
      {"imag", kUnsupported},
      {"numerator", kUnsupported},
      {"real", kUnsupported},
      {"to_bytes", kUnsupported},
  };
  return kTable;
}

const Table& float_methods() {
  static const Table kTable = {
      {"as_integer_ratio", kUnsupported},
      {"conjugate", kUnsupported},
      {"fromhex", kUnsupported},
      {"hex", kUnsupported},
      {"imag", kUnsupported},
      {"is_integer", kUnsupported},
      {"real", kUnsupported},
  };
  return kTable;
}

Method look_up(const Table& table, std::string_view name) {
  const auto found = table.find(name);
  return found != table.end() ? found->second : Method();
}

Method find_object_method(const Value& value, std::string_view name) {
  if (value.as<Cycler>() == nullptr) return {};
  if (name == "next") return callable(cycler_next);
  return name == "reset" ? callable(cycler_reset) : Method();
}

}  // namespace

Method find_method(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kString:
      return find_text_method(name);
    case Kind::kDict:
      return look_up(dict_methods(), name);
    case Kind::kList:
      return look_up(list_methods(), name);
    case Kind::kTuple:
      return look_up(tuple_methods(), name);
    case Kind::kBool:
    case Kind::kInt:
      return look_up(number_methods(), name);
    case Kind::kFloat:
      return look_up(float_methods(), name);
    case Kind::kLoop:
      if (name == "cycle") return callable(loop_cycle);
      return name == "changed" ? callable(loop_changed) : Method();
    case Kind::kObject:
      return find_object_method(value, name);
    default:
      return {};
  }
}

}  // namespace memoir::text::jinja
