#pragma once

// Values as text: Python's number formats, printf-style and str.format formatting, and JSON as json.dumps writes it.
// Threads: any.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {

/// The shortest decimal that reads back as the same double, as Python prints it ("1.0", "1e+16", "nan").
std::string format_float(double value);

/// A number as C's printf writes it with `conversion` e, f, g (or upper case) and so many digits, in the C locale.
/// Throws Error for more than 1,000 digits.
std::string format_float(double value, char conversion, int n_digits);

/// What float(text) of Python reads, white space around it included; nullopt where it would raise.
std::optional<double> parse_float(std::string_view text);

/// What int(text, base) of Python reads; nullopt where it would raise. Throws Error (kUnsupported) above 2^63 - 1.
std::optional<std::int64_t> parse_int(std::string_view text, int base);

/// `format % argument`: a tuple gives several arguments, a dict named ones. Throws Error.
std::string format_percent(std::string_view format, const Value& argument);

/// `format.format(...)`. attribute and item look up "{0.name}" and "{0[name]}". Throws Error.
struct FieldLookup {
  std::function<Value(const Value&, const std::string&)> attribute;
  std::function<Value(const Value&, const Value&)> item;
};
std::string format_fields(std::string_view format, const Arguments& arguments, const FieldLookup& lookup);

/// format(value, spec) of Python for str, int and float ("{:>10.2f}"). Throws Error.
std::string format_spec(const Value& value, std::string_view spec);

struct JsonOptions {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // what one level is indented by
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// json.dumps(value, ...). Throws Error for what JSON has no form for (undefined, ranges, functions).
std::string to_json(const Value& value, const JsonOptions& options);

}  // namespace memoir::text::jinja
