#include <cmath>
#include <unordered_map>

#include "memoir/text/jinja_arguments.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_filters.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_operations.h"

namespace memoir::text::jinja {
namespace {

Value default_value(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(bound.flag(1) && !truthy(input))) return input;
  return bound.has(0) ? bound[0] : Value::string("");
}

Value absolute(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("abs", arguments, {});
  input.require_defined();
  if (input.is(Kind::kFloat)) return Value::real(std::fabs(input.as_float()));
  if (!input.is_integral()) fail("bad operand type for abs(): '" + input.type_name() + "'");
  return input.as_int() < 0 ? negative(input) : Value::integer(input.as_int());
}

std::optional<Value> whole_of(double number) {
  if (std::isnan(number)) return std::nullopt;
  if (!(std::fabs(number) < 9223372036854775807.0)) fail_unsupported("an integer above 2^63 - 1");
  return Value::integer(static_cast<std::int64_t>(number));
}

Value to_integer(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("int", arguments, {"default", "base"});
  input.require_defined();
  const Value missing = bound.has(0) ? bound[0] : Value::integer(0);
  if (input.is_integral()) return Value::integer(input.as_int());
  if (input.is(Kind::kFloat)) return whole_of(input.as_float()).value_or(missing);
  if (!input.is_string()) return missing;
  if (const auto number = parse_int(input.str(), static_cast<int>(bound.integer(1, 10))))
    return Value::integer(*number);
  const auto number = parse_float(input.str());
  if (!number || std::isinf(*number)) return missing;
  return whole_of(*number).value_or(missing);
}

Value to_float(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("float", arguments, {"default"});
  input.require_defined();
  const Value missing = bound.has(0) ? bound[0] : Value::real(0.0);
  if (input.is(Kind::kFloat)) return input;
  if (input.is_integral()) return Value::real(static_cast<double>(input.as_int()));
  if (!input.is_string()) return missing;
  const auto number = parse_float(input.str());
  return number ? Value::real(*number) : missing;
}

double rounded_to_digits(double number, std::int64_t n_digits) {
  if (!std::isfinite(number) || n_digits > 300) return number;
  if (n_digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-n_digits));
    if (!std::isfinite(scale)) return std::copysign(0.0, number);
    return std::nearbyint(number / scale) * scale;  // half to even, in the default rounding mode
  }
  // The decimal text of the number is exact, so a tie is a tie there and not after a multiplication.
  return parse_float(format_float(number, 'f', static_cast<int>(n_digits))).value_or(number);
}

Value round_number(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  static const std::string kCommon = "common";
  const std::string& method = bound.string(1, kCommon);
  const std::int64_t precision = bound.integer(0, 0);
  if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  input.require_defined();
  if (!input.is_number()) fail("type " + input.type_name() + " doesn't define __round__ method");
  if (method == "common") {
    if (input.is(Kind::kFloat)) return Value::real(rounded_to_digits(input.as_float(), precision));
    if (precision >= 0) return Value::integer(input.as_int());
    fail_unsupported("rounding an integer to tens");
  }
  const Value scale = binary("**", Value::integer(10), Value::integer(precision));
  const Value scaled = binary("*", input, scale);
  const double number = scaled.is(Kind::kFloat) ? scaled.as_float() : static_cast<double>(scaled.as_int());
  const auto whole = whole_of(method == "ceil" ? std::ceil(number) : std::floor(number));
  if (!whole) fail("cannot convert float NaN to integer");
  return binary("/", *whole, scale);
}

Value attribute(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("attr", arguments, {"name"}, 1);
  const std::string& name = bound.string(0);
  if (auto value = own_attribute(input, name)) return *std::move(value);
  return Value::undefined("'" + input.type_name() + " object' has no attribute '" + name + "'");
}

std::string indent_of(const Value& indent, const BoundArguments& bound, std::size_t i) {
  if (indent.is_string()) return indent.str();
  return padded("", bound.integer(i), 0, " ");
}

Value to_json_text(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonOptions options;
  options.ensure_ascii = bound.flag(0);
  options.sort_keys = bound.flag(3);
  if (!bound[1].is_none()) {
    options.indent = indent_of(bound[1], bound, 1);
    options.item_separator = ",";
  }
  if (!bound[2].is_none()) {
    const auto separators = collect(bound[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      fail("tojson: separators wants two strings");
    }
    options.item_separator = separators[0].str();
    options.key_separator = separators[1].str();
  }
  return Value::string(to_json(input, options));
}

// "13 kB", with decimal or binary prefixes.
Value file_size(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const BoundArguments bound("filesizeformat", arguments, {"binary"});
  static constexpr const char* kPrefixes = "kMGTPEZY";
  const bool binary_prefixes = bound.flag(0);
  Arguments none;
  const Value number = to_float(interpreter, input, none);
  if (input.is_string() && !parse_float(input.str())) fail("could not convert string to float: " + to_repr(input));
  if (!input.is_string() && !input.is_number()) fail("float() argument must be a string or a real number");
  const double bytes = number.as_float();
  const double base = binary_prefixes ? 1024 : 1000;
  if (bytes == 1) return Value::string("1 Byte");
  if (bytes < base) return Value::string(to_text(whole_of(bytes).value_or(Value::integer(0))) + " Bytes");
  double unit = base;
  int i = 0;
  do {
    unit *= base;
  } while (bytes >= unit && ++i < 8);
  if (i == 8) i = 7;
  const std::string suffix =
      std::string(1, binary_prefixes && i == 0 ? 'K' : kPrefixes[i]) + (binary_prefixes ? "iB" : "B");
  return Value::string(format_float(base * bytes / unit, 'f', 1) + " " + suffix);
}

}  // namespace

FilterFunction find_value_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"abs", absolute},          {"attr", attribute},           {"d", default_value},
      {"default", default_value}, {"filesizeformat", file_size}, {"float", to_float},
      {"int", to_integer},        {"round", round_number},       {"tojson", to_json_text},
  };
  const auto found = kFilters.find(name);
  return found != kFilters.end() ? found->second : nullptr;
}

FilterFunction find_filter(std::string_view name) {
  if (const FilterFunction filter = find_value_filter(name)) return filter;
  if (const FilterFunction filter = find_sequence_filter(name)) return filter;
  return find_text_filter(name);
}

bool is_unsupported_filter(std::string_view name) {
  static constexpr std::string_view kNames[] = {"pprint", "random", "striptags", "urlize", "wordwrap"};
  for (const std::string_view known : kNames) {
    if (known == name) return true;
  }
  return false;
}

}  // namespace memoir::text::jinja
