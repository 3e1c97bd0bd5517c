#include <string_view>
#include <unordered_map>

#include "memoir/text/jinja_arguments.h"
#include "memoir/text/jinja_builtins.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_objects.h"
#include "memoir/text/jinja_operations.h"
#include "memoir/text/jinja_text_methods.h"

namespace memoir::text::jinja {
namespace {

// A test without arguments.
template <bool (*Holds)(const Value&)>
bool plain(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("test", arguments, {});
  return Holds(input);
}

// A test with one argument.
template <bool (*Holds)(const Value&, const Value&)>
bool with_argument(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("test", arguments, {"other"}, 1);
  return Holds(input, bound[0]);
}

bool leaves(const Value& value, const Value& divisor, std::int64_t rest) {
  return equal(binary("%", value, divisor), Value::integer(rest));
}

bool is_odd(const Value& value) {
  return leaves(value, Value::integer(2), 1);
}
bool is_even(const Value& value) {
  return leaves(value, Value::integer(2), 0);
}
bool is_divisible(const Value& value, const Value& divisor) {
  return leaves(value, divisor, 0);
}
bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_boolean(const Value& value) {
  return value.is(Kind::kBool);
}
bool is_true(const Value& value) {
  return value.is(Kind::kBool) && value.as_bool();
}
bool is_false(const Value& value) {
  return value.is(Kind::kBool) && !value.as_bool();
}
bool is_integer(const Value& value) {
  return value.is(Kind::kInt);
}
bool is_float(const Value& value) {
  return value.is(Kind::kFloat);
}
bool is_number(const Value& value) {
  return value.is_number();
}
bool is_string(const Value& value) {
  return value.is_string();
}
bool is_mapping(const Value& value) {
  return value.is(Kind::kDict);
}
bool is_lower(const Value& value) {
  return is_lower_text(to_text(value));
}
bool is_upper(const Value& value) {
  return is_upper_text(to_text(value));
}
bool is_escaped(const Value& value) {
  return value.is_string() && value.text().markup;
}

bool is_callable(const Value& value) {
  if (value.is_undefined() || value.is(Kind::kLoop)) return true;  // both Python classes can be called
  return value.is(Kind::kObject) && value.object_ref()->callable();
}

// It has a length and can be subscripted; an undefined value has both.
bool is_sequence(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is(Kind::kDict) ||
         value.as<Range>() != nullptr;
}

bool is_equal(const Value& value, const Value& other) {
  return equal(value, other);
}
bool is_unequal(const Value& value, const Value& other) {
  return !equal(value, other);
}
bool is_greater(const Value& value, const Value& other) {
  return compare(value, other, ">") == 1;
}
bool is_less(const Value& value, const Value& other) {
  return compare(value, other, "<") == -1;
}
bool is_at_least(const Value& value, const Value& other) {
  const int order = compare(value, other, ">=");
  return order == 0 || order == 1;
}
bool is_at_most(const Value& value, const Value& other) {
  const int order = compare(value, other, "<=");
  return order == 0 || order == -1;
}
bool is_in(const Value& value, const Value& container) {
  return contains(container, value);
}
bool is_same(const Value& value, const Value& other) {
  return value.same_as(other);
}

bool is_filter(const Value& value) {
  hash(value);  // the names are the keys of a dict: a list is an error
  return value.is_string() && (find_filter(value.str()) != nullptr || is_unsupported_filter(value.str()));
}
bool is_test(const Value& value) {
  hash(value);
  return value.is_string() && find_test(value.str()) != nullptr;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, TestFunction> kTests = {
      {"odd", plain<is_odd>},
      {"even", plain<is_even>},
      {"divisibleby", with_argument<is_divisible>},
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"filter", plain<is_filter>},
      {"test", plain<is_test>},
      {"none", plain<is_none>},
      {"boolean", plain<is_boolean>},
      {"false", plain<is_false>},
      {"true", plain<is_true>},
      {"integer", plain<is_integer>},
      {"float", plain<is_float>},
      {"lower", plain<is_lower>},
      {"upper", plain<is_upper>},
      {"string", plain<is_string>},
      {"mapping", plain<is_mapping>},
      {"number", plain<is_number>},
      {"sequence", plain<is_sequence>},
      {"iterable", plain<is_iterable>},
      {"callable", plain<is_callable>},
      {"escaped", plain<is_escaped>},
      {"sameas", with_argument<is_same>},
      {"in", with_argument<is_in>},
      {"==", with_argument<is_equal>},
      {"eq", with_argument<is_equal>},
      {"equalto", with_argument<is_equal>},
      {"!=", with_argument<is_unequal>},
      {"ne", with_argument<is_unequal>},
      {">", with_argument<is_greater>},
      {"gt", with_argument<is_greater>},
      {"greaterthan", with_argument<is_greater>},
      {">=", with_argument<is_at_least>},
      {"ge", with_argument<is_at_least>},
      {"<", with_argument<is_less>},
      {"lt", with_argument<is_less>},
      {"lessthan", with_argument<is_less>},
      {"<=", with_argument<is_at_most>},
      {"le", with_argument<is_at_most>},
  };
  const auto found = kTests.find(name);
  return found != kTests.end() ? found->second : nullptr;
}

}  // namespace memoir::text::jinja
