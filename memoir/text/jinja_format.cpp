#include "memoir/text/jinja_format.h"

#include <algorithm>
#include <cmath>

#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 1'000'000;

struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=' or 0
  char sign = '-';
  bool alternative = false;
  char group = 0;
  std::int64_t width = 0;
  int precision = -1;
  char type = 0;
};

std::int64_t read_number(std::string_view text, std::size_t& at) {
  std::int64_t number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    number = number * 10 + (text[at++] - '0');
    if (number > kMaxWidth) fail_unsupported("a format width above 1000000");
  }
  return number;
}

std::string pad(const std::string& body, const Spec& spec, char default_align) {
  const auto n = static_cast<std::int64_t>(n_characters(body));
  if (n >= spec.width) return body;
  const auto n_missing = static_cast<std::size_t>(spec.width - n);
  const char align = spec.align != 0 ? spec.align : default_align;
  std::size_t n_left = n_missing;
  if (align == '<') n_left = 0;
  if (align == '^') n_left = n_missing / 2;
  std::size_t n_sign = 0;
  if (align == '=' && !body.empty() && (body[0] == '-' || body[0] == '+' || body[0] == ' ')) n_sign = 1;
  spend_text(n_missing * spec.fill.size());
  std::string out = body.substr(0, n_sign);
  for (std::size_t i = 0; i < n_left; ++i) out += spec.fill;
  out += body.substr(n_sign);
  for (std::size_t i = n_left; i < n_missing; ++i) out += spec.fill;
  return out;
}

std::string group_digits(const std::string& number, char separator, std::size_t every) {
  const std::size_t n_whole = std::min(number.find_first_not_of("0123456789abcdefABCDEF"), number.size());
  std::string out;
  for (std::size_t i = 0; i < n_whole; ++i) {
    if (i != 0 && (n_whole - i) % every == 0) out += separator;
    out += number[i];
  }
  return out + number.substr(n_whole);
}

std::string in_base(std::uint64_t value, unsigned base) {
  std::string out;
  do {
    out += "0123456789abcdef"[value % base];
    value /= base;
  } while (value != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string signed_text(const std::string& magnitude, bool negative, char sign) {
  if (negative) return "-" + magnitude;
  return sign == '-' ? magnitude : std::string(1, sign) + magnitude;
}

std::uint64_t magnitude_of(std::int64_t value) {
  return value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
}

std::string integer_body(std::int64_t value, const Spec& spec) {
  const std::uint64_t magnitude = magnitude_of(value);
  std::string digits;
  switch (spec.type) {
    case 'x':
      digits = in_base(magnitude, 16);
      break;
    case 'X':
      digits = to_upper(in_base(magnitude, 16));
      break;
    case 'o':
      digits = in_base(magnitude, 8);
      break;
    case 'b':
      digits = in_base(magnitude, 2);
      break;
    default:
      digits = std::to_string(magnitude);
  }
  const bool decimal = spec.type == 0 || spec.type == 'd' || spec.type == 'n';
  if (spec.group != 0) digits = group_digits(digits, spec.group, decimal ? 3 : 4);
  if (spec.alternative && !decimal) digits = std::string("0") + spec.type + digits;
  return signed_text(digits, value < 0, spec.sign);
}

std::string float_body(double value, const Spec& spec) {
  const double magnitude = std::fabs(value);
  const bool negative = std::signbit(value) && !std::isnan(value);
  std::string digits;
  if (spec.type == 0 && spec.precision < 0) {
    digits = format_float(magnitude);
  } else if (spec.type == '%') {
    digits = format_float(magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision) + "%";
  } else {
    const char type = spec.type == 0 || spec.type == 'n' ? 'g' : spec.type;
    digits = format_float(magnitude, type, spec.precision < 0 ? 6 : spec.precision);
  }
  if (spec.group != 0) digits = group_digits(digits, spec.group, 3);
  return signed_text(digits, negative, spec.sign);
}

bool is_align(char byte) {
  return byte == '<' || byte == '>' || byte == '^' || byte == '=';
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  std::size_t at = 0;
  const auto next_is = [&](std::string_view any) { return at < text.size() && any.find(text[at]) != any.npos; };
  if (!text.empty()) {
    const std::size_t n_fill = character_at(text, 0).n_bytes;
    if (n_fill < text.size() && is_align(text[n_fill])) {
      spec.fill = text.substr(0, n_fill);
      at = n_fill;
    }
  }
  if (next_is("<>^=")) spec.align = text[at++];
  if (next_is("+- ")) spec.sign = text[at++];
  if (next_is("#")) {
    spec.alternative = true;
    ++at;
  }
  if (next_is("0")) {
    ++at;
    if (spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
  }
  spec.width = read_number(text, at);
  if (next_is(",_")) spec.group = text[at++];
  if (next_is(".")) {
    ++at;
    if (!next_is("0123456789")) fail("Format specifier missing precision");
    spec.precision = static_cast<int>(read_number(text, at));
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) fail("Invalid format specifier '" + std::string(text) + "'");
  return spec;
}

[[noreturn]] void fail_code(char type, const Value& value) {
  fail("Unknown format code '" + std::string(1, type) + "' for object of type '" + value.type_name() + "'");
}

// ---- the % operator ----

class PercentFormatter {
 public:
  PercentFormatter(std::string_view format, const Value& argument) : format_(format), argument_(argument) {}

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', at_), format_.size());
      out.append(format_, at_, percent - at_);
      at_ = percent + 1;
      if (percent < format_.size()) out += conversion();
      spend_text(0);
    }
    // Python takes whatever can be subscripted for a mapping, whose items need not all be used.
    const bool mapping = argument_.is(Kind::kDict) || argument_.is(Kind::kList) || argument_.is_undefined();
    const std::size_t n_given = argument_.is(Kind::kTuple) ? argument_.items().size() : 1;
    if (!mapping && n_used_ < n_given) fail("not all arguments converted during string formatting");
    return out;
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) fail("incomplete format");
    return format_[at_];
  }

  const Value& next_argument() {
    if (argument_.is(Kind::kTuple) && n_used_ < argument_.items().size()) return argument_.items()[n_used_++];
    if (argument_.is(Kind::kTuple) || n_used_ > 0) fail("not enough arguments for format string");
    ++n_used_;
    return argument_;
  }

  const Value& named_argument() {
    const std::size_t close = format_.find(')', at_);
    if (close == format_.npos) fail("incomplete format key");
    const std::string_view name = format_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    if (!argument_.is(Kind::kDict)) fail("format requires a mapping");
    const Value* found = argument_.as_dict().find(name);
    if (found == nullptr) fail("the format key '" + std::string(name) + "' is missing");
    return *found;
  }

  std::int64_t star_or_number() {
    if (peek() != '*') return read_number(format_, at_);
    ++at_;
    const Value& value = next_argument();
    if (!value.is_integral() || value.as_int() > kMaxWidth || value.as_int() < -kMaxWidth) fail("* wants int");
    return value.as_int();
  }

  std::string conversion() {
    const Value* named = peek() == '(' ? &named_argument() : nullptr;
    Spec spec;
    for (; std::string_view("-+ #0").find(peek()) != std::string_view::npos; ++at_) flag(format_[at_], spec);
    spec.width = star_or_number();
    if (spec.width < 0) {
      spec.width = -spec.width;
      spec.align = '<';
    }
    if (peek() == '.') {
      ++at_;
      spec.precision = static_cast<int>(std::max<std::int64_t>(0, star_or_number()));
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    spec.type = peek();
    ++at_;
    if (spec.type == '%') return "%";
    return convert(named != nullptr ? *named : next_argument(), spec);
  }

  static void flag(char byte, Spec& spec) {
    if (byte == '-') spec.align = '<';
    if (byte == '+') spec.sign = '+';
    if (byte == ' ' && spec.sign == '-') spec.sign = ' ';
    if (byte == '#') spec.alternative = true;
    if (byte == '0') spec.fill = "0";
  }

  static std::string convert(const Value& value, Spec spec) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a':
        spec.fill = " ";
        return pad(clipped(spec.type == 's' ? to_text(value) : to_repr(value), spec.precision), spec, '>');
      case 'c':
        spec.fill = " ";
        return pad(one_character(value), spec, '>');
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return convert_integer(value, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return convert_float(value, spec);
      default:
        fail("unsupported format character '" + std::string(1, spec.type) + "'");
    }
  }

  static std::string clipped(std::string text, int precision) {
    if (precision >= 0) text.resize(byte_of_character(text, static_cast<std::size_t>(precision)));
    return text;
  }

  static std::string one_character(const Value& value) {
    if (value.is_string() && n_characters(value.str()) == 1) return value.str();
    if (!value.is_integral() || value.as_int() < 0 || value.as_int() > 0x10FFFF) fail("%c requires int or char");
    std::string out;
    append_character(out, static_cast<std::int32_t>(value.as_int()));
    return out;
  }

  static std::string padded_number(const std::string& body, Spec spec) {
    if (spec.align == '<') spec.fill = " ";
    return pad(body, spec, spec.fill == "0" ? '=' : '>');
  }

  static std::string convert_integer(const Value& value, Spec spec) {
    value.require_defined();
    if (!value.is_number()) fail("%d format: a real number is required, not " + value.type_name());
    std::int64_t number = 0;
    if (value.is(Kind::kFloat)) {
      if (spec.type != 'd' && spec.type != 'i' && spec.type != 'u') fail("%x format: an integer is required");
      if (!(std::fabs(value.as_float()) < 9.2e18)) fail_unsupported("an integer above 2^63 - 1");
      number = static_cast<std::int64_t>(value.as_float());
    } else {
      number = value.as_int();
    }
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    std::string body = integer_body(number, spec);
    const std::size_t n_sign = body[0] == '-' || body[0] == '+' || body[0] == ' ' ? 1 : 0;
    if (spec.precision > 0 && body.size() - n_sign < static_cast<std::size_t>(spec.precision)) {
      body.insert(n_sign, static_cast<std::size_t>(spec.precision) - (body.size() - n_sign), '0');
    }
    return padded_number(body, spec);
  }

  static std::string convert_float(const Value& value, const Spec& spec) {
    value.require_defined();
    if (!value.is_number()) fail("must be real number, not " + value.type_name());
    const double number = value.is(Kind::kFloat) ? value.as_float() : static_cast<double>(value.as_int());
    return padded_number(float_body(number, spec), spec);
  }

  std::string_view format_;
  const Value& argument_;
  std::size_t at_ = 0;
  std::size_t n_used_ = 0;
};

// ---- str.format ----

class FieldFormatter {
 public:
  FieldFormatter(std::string_view format, const Arguments& arguments, const FieldLookup& lookup)
      : format_(format), arguments_(arguments), lookup_(lookup) {}

  std::string run() {
    std::string out;
    for (std::size_t at = 0; at < format_.size();) {
      const char byte = format_[at];
      if (byte != '{' && byte != '}') {
        out += byte;
        ++at;
        continue;
      }
      if (at + 1 < format_.size() && format_[at + 1] == byte) {
        out += byte;
        at += 2;
        continue;
      }
      if (byte == '}') fail("Single '}' encountered in format string");
      const std::size_t close = format_.find('}', at);
      if (close == format_.npos) fail("expected '}' before end of string");
      out += field(format_.substr(at + 1, close - at - 1));
      spend_text(out.size() / Budget::kBytesPerUnit);
      at = close + 1;
    }
    return out;
  }

 private:
  std::string field(std::string_view text) {
    if (text.find('{') != text.npos) fail_unsupported("a replacement field inside a format specification");
    const std::size_t name_end = std::min(text.find_first_of("!:"), text.size());
    Value value = look_up(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) fail("expected ':' after conversion specifier");
      if (rest[1] != 's' && rest[1] != 'r') fail("Unknown conversion specifier");
      value = Value::string(rest[1] == 's' ? to_text(value) : to_repr(value));
      rest = rest.substr(2);
    }
    return format_spec(value, rest.empty() ? rest : rest.substr(1));
  }

  Value look_up(std::string_view path) {
    const std::size_t first_end = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, first_end));
    for (std::size_t at = first_end; at < path.size();) {
      const bool item = path[at] == '[';
      const std::size_t end = item ? path.find(']', at) : std::min(path.find_first_of(".[", at + 1), path.size());
      if (end == path.npos) fail("Missing ']' in format string");
      const std::string key(path.substr(at + 1, end - at - 1));
      if (key.empty()) fail("Empty attribute in format string");
      if (!item) {
        value = lookup_.attribute(value, key);
      } else {
        const auto number = parse_int(key, 10);
        value = lookup_.item(value, number ? Value::integer(*number) : Value::string(key));
      }
      at = item ? end + 1 : end;
    }
    return value;
  }

  Value first(std::string_view name) {
    const bool numbered = name.empty() || name.find_first_not_of("0123456789") == name.npos;
    if (!numbered) {
      for (const auto& [key, value] : arguments_.keyword) {
        if (key == name) return value;
      }
      fail("the format key '" + std::string(name) + "' is missing");
    }
    if (name.empty() ? counting_ < 0 : counting_ > 0) {
      fail("cannot switch between automatic and manual field numbering");
    }
    counting_ = name.empty() ? counting_ + 1 : -1;
    std::size_t at = 0;
    const std::int64_t index = name.empty() ? counting_ - 1 : read_number(name, at);
    if (index >= static_cast<std::int64_t>(arguments_.positional.size())) {
      fail("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
    }
    return arguments_.positional[static_cast<std::size_t>(index)];
  }

  std::string_view format_;
  const Arguments& arguments_;
  const FieldLookup& lookup_;
  std::int64_t counting_ = 0;  // fields numbered automatically so far, or -1 after a number was given
};

}  // namespace

std::string format_spec(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  const Spec spec = parse_spec(text);
  if (value.is_string()) {
    if (spec.type != 0 && spec.type != 's') fail_code(spec.type, value);
    if (spec.align == '=' && spec.fill != "0") fail("'=' alignment not allowed in string format specifier");
    Spec text_spec = spec;
    if (text_spec.align == '=') text_spec.align = '<';
    std::string body = value.str();
    if (spec.precision >= 0) body.resize(byte_of_character(body, static_cast<std::size_t>(spec.precision)));
    return pad(body, text_spec, '<');
  }
  if (!value.is_number()) {
    fail("unsupported format string passed to " + value.type_name() + ".__format__");
  }
  const bool as_float = spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (value.is(Kind::kFloat) || as_float) {
    if (!as_float && spec.type != 0 && spec.type != 'n') fail_code(spec.type, value);
    return pad(float_body(value.is(Kind::kFloat) ? value.as_float() : static_cast<double>(value.as_int()), spec), spec,
               '>');
  }
  if (spec.precision >= 0) fail("Precision not allowed in integer format specifier");
  if (spec.type != 0 && std::string_view("dxXobn").find(spec.type) == std::string_view::npos) {
    fail_code(spec.type, value);
  }
  return pad(integer_body(value.as_int(), spec), spec, '>');
}

std::string format_percent(std::string_view format, const Value& argument) {
  return PercentFormatter(format, argument).run();
}

std::string format_fields(std::string_view format, const Arguments& arguments, const FieldLookup& lookup) {
  return FieldFormatter(format, arguments, lookup).run();
}

}  // namespace memoir::text::jinja
