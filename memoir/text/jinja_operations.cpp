#include "memoir/text/jinja_operations.h"

#include <algorithm>
#include <cmath>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

constexpr std::int64_t kMaxItems = 10'000'000;

[[noreturn]] void fail_overflow() {
  fail_unsupported("an integer above 2^63 - 1");
}

[[noreturn]] void fail_operands(const std::string& op, const Value& left, const Value& right) {
  fail("unsupported operand type(s) for " + op + ": '" + left.type_name() + "' and '" + right.type_name() + "'");
}

double to_double(const Value& value) {
  return value.is(Kind::kFloat) ? value.as_float() : static_cast<double>(value.as_int());
}

bool add_overflows(std::int64_t a, std::int64_t b) {
  return b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b;
}

bool multiply_overflows(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return false;
  if (a == -1) return b == INT64_MIN;
  if (b == -1) return a == INT64_MIN;
  const bool same_sign = (a > 0) == (b > 0);
  if (same_sign) return a > 0 ? a > INT64_MAX / b : a < INT64_MAX / b;
  return a > 0 ? b < INT64_MIN / a : a < INT64_MIN / b;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (a == INT64_MIN && b == -1) fail_overflow();
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value power_of_integers(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) {  // at most 63 rounds before it overflows
    if (multiply_overflows(result, base)) fail_overflow();
    result *= base;
  }
  return Value::integer(result);
}

Value integer_operation(const std::string& op, std::int64_t a, std::int64_t b) {
  switch (op[0]) {
    case '+':
      if (add_overflows(a, b)) fail_overflow();
      return Value::integer(a + b);
    case '-':
      if (b == INT64_MIN ? a >= 0 : add_overflows(a, -b)) fail_overflow();
      return Value::integer(a - b);
    case '%': {
      if (b == 0) fail("integer modulo by zero");
      if (b == -1) return Value::integer(0);
      const std::int64_t rest = a % b;
      return Value::integer(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    }
    case '/':
      if (op == "//") return Value::integer(floor_divide(a, b));
      if (b == 0) fail("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    default:
      if (op == "**") return power_of_integers(a, b);
      if (multiply_overflows(a, b)) fail_overflow();
      return Value::integer(a * b);
  }
}

double float_modulo(double a, double b) {
  if (b == 0) fail("float modulo");
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

double float_floor_divide(double a, double b) {
  if (b == 0) fail("float floor division by zero");
  const double quotient = (a - float_modulo(a, b)) / b;
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

double float_power(double a, double b) {
  if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::floor(b) != b && std::isfinite(b)) fail_unsupported("a complex number");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("Numerical result out of range");
  return result;
}

Value float_operation(const std::string& op, double a, double b) {
  if (op == "+") return Value::real(a + b);
  if (op == "-") return Value::real(a - b);
  if (op == "*") return Value::real(a * b);
  if (op == "//") return Value::real(float_floor_divide(a, b));
  if (op == "%") return Value::real(float_modulo(a, b));
  if (op == "**") return Value::real(float_power(a, b));
  if (b == 0) fail("float division by zero");
  return Value::real(a / b);
}

Value add_strings(const Text& left, const Text& right) {
  const bool markup = left.markup || right.markup;
  spend_text(left.bytes.size() + right.bytes.size());
  std::string out = markup && !left.markup ? escape_html(left.bytes) : left.bytes;
  out += markup && !right.markup ? escape_html(right.bytes) : right.bytes;
  return Value::string(std::move(out), markup);
}

Value add_sequences(const Value& left, const Value& right) {
  std::vector<Value> items = left.items();
  spend(items.size() + right.items().size());
  items.insert(items.end(), right.items().begin(), right.items().end());
  return left.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value repeat(const Value& value, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  if (value.is_string()) {
    const std::string& text = value.str();
    if (text.empty()) times = 0;
    if (times > 0 && text.size() > Budget::kMaxLiveBytes / static_cast<std::uint64_t>(times)) {
      spend_text(Budget::kMaxLiveBytes + 1);
    }
    spend_text(text.size() * static_cast<std::size_t>(times));
    std::string out;
    out.reserve(text.size() * static_cast<std::size_t>(times));
    for (std::int64_t i = 0; i < times; ++i) out += text;
    return Value::string(std::move(out), value.text().markup);
  }
  const auto& items = value.items();
  if (items.empty()) times = 0;
  if (times > 0 && static_cast<std::int64_t>(items.size()) > kMaxItems / times) {
    fail_unsupported("a list of more than " + std::to_string(kMaxItems) + " items");
  }
  spend(items.size() * static_cast<std::size_t>(times));
  std::vector<Value> out;
  for (std::int64_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  return value.is(Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

bool is_repeatable(const Value& value) {
  return value.is_string() || value.is_sequence();
}

bool text_contains(const Value& container, const Value& item) {
  if (!item.is_string()) fail("'in <string>' requires string as left operand, not " + item.type_name());
  if (item.str().size() > container.str().size()) return false;
  spend_text(container.str().size());
  return TextFinder(item.str()).find(container.str()) != std::string::npos;
}

bool range_contains(const Range& range, const Value& item) {
  if (item.is_integral()) return range.contains(item.as_int());
  if (!item.is(Kind::kFloat) || std::floor(item.as_float()) != item.as_float()) return false;
  return std::fabs(item.as_float()) < 9.0e18 && range.contains(static_cast<std::int64_t>(item.as_float()));
}

}  // namespace

Value binary(const std::string& op, const Value& left, const Value& right) {
  if (op == "%" && left.is_string()) {
    if (left.text().markup) fail_unsupported("the % operator on a text marked as safe");
    return Value::string(format_percent(left.str(), right));
  }
  left.require_defined();
  right.require_defined();
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) return integer_operation(op, left.as_int(), right.as_int());
    return float_operation(op, to_double(left), to_double(right));
  }
  if (op == "+") {
    if (left.is_string() && right.is_string()) return add_strings(left.text(), right.text());
    if (left.is_sequence() && left.kind() == right.kind()) return add_sequences(left, right);
    if (left.is_string()) fail("can only concatenate str (not \"" + right.type_name() + "\") to str");
  }
  if (op == "*") {
    if (is_repeatable(left) && right.is_integral()) return repeat(left, right.as_int());
    if (left.is_integral() && is_repeatable(right)) return repeat(right, left.as_int());
  }
  fail_operands(op, left, right);
}

Value negative(const Value& value) {
  value.require_defined();
  if (value.is(Kind::kFloat)) return Value::real(-value.as_float());
  if (!value.is_integral()) fail("bad operand type for unary -: '" + value.type_name() + "'");
  if (value.as_int() == INT64_MIN) fail_overflow();
  return Value::integer(-value.as_int());
}

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      return text_contains(container, item);
    case Kind::kDict:
      return container.as_dict().find(item) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
      spend(1 + container.items().size());
      return std::any_of(container.items().begin(), container.items().end(),
                         [&item](const Value& other) { return item.same_as(other) || equal(item, other); });
    default:
      break;
  }
  if (const auto* range = container.as<Range>()) return range_contains(*range, item);
  if (!is_iterable(container)) fail("argument of type '" + container.type_name() + "' is not iterable");
  const auto items = iterate(container);
  for (Value other; items->next(other);) {
    if (equal(item, other)) return true;
  }
  return false;
}

std::optional<std::int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      if (value.text().ascii) return static_cast<std::int64_t>(value.str().size());
      spend_text(value.str().size());
      return static_cast<std::int64_t>(n_characters(value.str()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<std::int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<std::int64_t>(value.as_dict().size());
    case Kind::kLoop:
      return value.as_loop()->attribute("length")->as_int();
    default:
      break;
  }
  if (const auto* range = value.as<Range>()) return range->length();
  if (const auto* view = value.as<DictView>()) return static_cast<std::int64_t>(view->size());
  return std::nullopt;
}

std::string characters_between(const Text& text, std::int64_t start, std::int64_t stop) {
  if (start >= stop) return "";
  if (text.ascii) return text.bytes.substr(static_cast<std::size_t>(start), static_cast<std::size_t>(stop - start));
  spend_text(text.bytes.size());
  const std::size_t begin = byte_of_character(text.bytes, static_cast<std::size_t>(start));
  const std::string_view rest = std::string_view(text.bytes).substr(begin);
  return std::string(rest.substr(0, byte_of_character(rest, static_cast<std::size_t>(stop - start))));
}

}  // namespace memoir::text::jinja
