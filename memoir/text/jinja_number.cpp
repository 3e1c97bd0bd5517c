#include <charconv>
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

constexpr int kMaxDigits = 1000;

std::string non_finite(double value) {
  if (std::isnan(value)) return "nan";
  return value < 0 ? "-inf" : "inf";
}

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

// Appends the digits at `at` without their single underscores; false where there is none or one is misplaced.
bool take_digits(std::string_view text, std::size_t& at, std::string& out) {
  const std::size_t start = out.size();
  while (at < text.size()) {
    const bool between = text[at] == '_' && out.size() > start && at + 1 < text.size();
    if (between && is_digit(text[at + 1])) ++at;
    if (!is_digit(text[at])) break;
    out += text[at++];
  }
  return out.size() > start;
}

// Plain decimal notation of a float's text, or nothing.
std::optional<std::string> plain_float(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) out += text[at++];
  bool any = take_digits(text, at, out);
  if (at < text.size() && text[at] == '.') {
    out += text[at++];
    any = take_digits(text, at, out) || any;
  }
  if (!any) return std::nullopt;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    out += text[at++];
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) out += text[at++];
    if (!take_digits(text, at, out)) return std::nullopt;
  }
  if (at != text.size()) return std::nullopt;
  return out;
}

std::optional<double> special_float(std::string_view text) {
  std::string word = to_lower(text);
  double sign = 1;
  if (!word.empty() && (word[0] == '-' || word[0] == '+')) {
    sign = word[0] == '-' ? -1 : 1;
    word.erase(0, 1);
  }
  if (word == "inf" || word == "infinity") return sign * std::numeric_limits<double>::infinity();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

int digit_value(char byte) {
  if (is_digit(byte)) return byte - '0';
  if (byte >= 'a' && byte <= 'z') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'Z') return byte - 'A' + 10;
  return 99;
}

int prefix_base(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 0;
  switch (digits[1]) {
    case 'x':
    case 'X':
      return 16;
    case 'o':
    case 'O':
      return 8;
    case 'b':
    case 'B':
      return 2;
    default:
      return 0;
  }
}

}  // namespace

std::string format_float(double value) {
  if (!std::isfinite(value)) return non_finite(value);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  const bool negative = text[0] == '-';
  std::string digits;
  for (const char byte : text.substr(0, e)) {
    if (is_digit(byte)) digits += byte;
  }
  const std::string sign = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto n_whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= n_whole) return sign + digits + std::string(n_whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, n_whole) + "." + digits.substr(n_whole);
}

std::string format_float(double value, char conversion, int n_digits) {
  if (n_digits > kMaxDigits) fail_unsupported("a number with more than 1000 digits");
  const bool upper = conversion >= 'A' && conversion <= 'Z';
  std::string out;
  if (!std::isfinite(value)) {
    out = non_finite(value);
  } else {
    std::chars_format form = std::chars_format::general;
    if (conversion == 'f' || conversion == 'F') form = std::chars_format::fixed;
    if (conversion == 'e' || conversion == 'E') form = std::chars_format::scientific;
    char buffer[400 + kMaxDigits];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, form, n_digits).ptr;
    out.assign(buffer, end);
  }
  return upper ? to_upper(out) : out;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text, nullptr, true, true);
  if (const auto special = special_float(text)) return special;
  const auto plain = plain_float(text);
  if (!plain) return std::nullopt;
  std::istringstream in(*plain);  // not strtod, which reads the decimal point of the process's locale
  in.imbue(std::locale::classic());
  double value = 0;
  in >> value;
  if (in.fail()) return std::copysign(std::fabs(value) > 1 ? std::numeric_limits<double>::infinity() : 0.0, value);
  return value;
}

std::optional<std::int64_t> parse_int(std::string_view text, int base) {
  text = strip(text, nullptr, true, true);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const int prefix = prefix_base(text);
  if (prefix != 0 && (base == prefix || base == 0)) {
    text.remove_prefix(text.size() > 2 && text[2] == '_' ? 3 : 2);
    base = prefix;
  } else if (base == 0) {
    base = 10;
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos) {
      return std::nullopt;
    }
  }
  if (text.empty() || base < 2 || base > 36) return std::nullopt;
  std::uint64_t value = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '_' && at > 0 && text[at - 1] != '_' && at + 1 < text.size()) continue;
    const int digit = digit_value(text[at]);
    if (digit >= base) return std::nullopt;
    const std::uint64_t limit = 9223372036854775807ULL;
    if (value > (limit - static_cast<std::uint64_t>(digit)) / static_cast<std::uint64_t>(base)) {
      fail_unsupported("an integer above 2^63 - 1");
    }
    value = value * static_cast<std::uint64_t>(base) + static_cast<std::uint64_t>(digit);
  }
  const auto number = static_cast<std::int64_t>(value);
  return negative ? -number : number;
}

}  // namespace memoir::text::jinja
