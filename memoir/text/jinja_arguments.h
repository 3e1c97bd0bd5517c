#pragma once

// The arguments of a builtin, matched to its parameter names as Python matches them.

#include <initializer_list>
#include <string>
#include <vector>

#include "memoir/text/jinja_value.h"

namespace memoir::text::jinja {

class BoundArguments {
 public:
  /// function: its name, for messages. The first n_required parameters must be given. Throws Error for a missing, an
  /// unknown or a doubly given argument.
  BoundArguments(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
                 std::size_t n_required = 0);

  bool has(std::size_t i) const { return values_[i] != nullptr; }
  /// None where it was not given.
  const Value& operator[](std::size_t i) const { return values_[i] != nullptr ? *values_[i] : kNone; }

  // The argument as ..., or `missing` where it was not given. Throw Error for another type.
  std::int64_t integer(std::size_t i, std::int64_t missing = 0) const;
  const std::string& string(std::size_t i, const std::string& missing = kEmpty) const;
  bool flag(std::size_t i, bool missing = false) const { return has(i) ? truthy(*values_[i]) : missing; }

 private:
  static const Value kNone;
  static const std::string kEmpty;

  const char* function_;
  std::vector<const Value*> values_;
};

/// str(value), of markup the markup itself.
Value soft_text(const Value& value);

/// `text` as a string that is markup if `original` is.
Value text_like(const Value& original, std::string text);

/// `text` with n_left and n_right times `fill` around it. Throws Error (kUnsupported) above the memory limit.
std::string padded(const std::string& text, std::int64_t n_left, std::int64_t n_right, const std::string& fill);

/// str.center(width, fill).
std::string centered(const std::string& text, std::int64_t width, const std::string& fill);

/// str.replace, within the memory limit.
std::string replaced(const std::string& text, const std::string& from, const std::string& to, std::int64_t max_count);

}  // namespace memoir::text::jinja
