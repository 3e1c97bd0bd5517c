#include "memoir/cli/number_checks.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

namespace memoir::cli {
namespace {

std::string refusal(const std::string& text, const std::string& expected) {
  return "'" + text + "' is not " + expected;
}

template <typename T>
std::optional<T> parse_whole(const std::string& text) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || next != end) return std::nullopt;
  return value;
}

// What whole_number() puts in the text's place; nullopt if it is none in the range.
std::optional<std::string> normalized(const std::string& text, std::int64_t low, std::uint64_t high) {
  if (text.starts_with('-')) {
    const auto value = parse_whole<std::int64_t>(text);
    const bool fits = value && *value >= low && (*value < 0 || static_cast<std::uint64_t>(*value) <= high);
    return fits ? std::optional(std::to_string(*value)) : std::nullopt;
  }
  const auto value = parse_whole<std::uint64_t>(text);
  const bool fits = value && *value <= high && (low < 0 || *value >= static_cast<std::uint64_t>(low));
  return fits ? std::optional(std::to_string(*value)) : std::nullopt;
}

// Not std::from_chars, which some standard libraries lack for double. nullopt for what is no finite decimal number.
std::optional<double> parse_finite(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string plain(double value) {
  std::ostringstream text;
  text.precision(15);
  text << value;
  return text.str();
}

CLI::Validator check(std::function<std::string(std::string&)> function) {
  return CLI::Validator(std::move(function), /* description: most ranges only catch slips */ "");
}

}  // namespace

CLI::Validator whole_number(std::int64_t low, std::uint64_t high) {
  return check([low, high](std::string& text) {
    const std::optional<std::string> number = normalized(text, low, high);
    if (!number) return refusal(text, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    text = *number;
    return std::string();
  });
}

CLI::Validator number(double low, double high) {
  return check([low, high](std::string& text) {
    const std::optional<double> value = parse_finite(text);
    if (value && *value >= low && *value <= high) return std::string();
    return refusal(text, "a number from " + plain(low) + " to " + plain(high));
  });
}

CLI::Validator number_above(double low, double high) {
  return check([low, high](std::string& text) {
    const std::optional<double> value = parse_finite(text);
    if (value && *value > low && *value <= high) return std::string();
    return refusal(text, "a number above " + plain(low) + " and at most " + plain(high));
  });
}

}  // namespace memoir::cli
