#include "memoir/text/jinja_text_methods.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "memoir/text/jinja_arguments.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_operations.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

Value no_arguments(const char* name, const Arguments& arguments, const Value& self,
                   std::string (*change)(std::string_view)) {
  const BoundArguments bound(name, arguments, {});
  return text_like(self, change(self.str()));
}

Value upper(Interpreter&, const Value& self, Arguments& arguments) {
  return no_arguments("upper", arguments, self, to_upper);
}
Value lower(Interpreter&, const Value& self, Arguments& arguments) {
  return no_arguments("lower", arguments, self, to_lower);
}
Value capitalized(Interpreter&, const Value& self, Arguments& arguments) {
  return no_arguments("capitalize", arguments, self, capitalize);
}
Value titled(Interpreter&, const Value& self, Arguments& arguments) {
  return no_arguments("title", arguments, self, title_words);
}
Value case_swapped(Interpreter&, const Value& self, Arguments& arguments) {
  return no_arguments("swapcase", arguments, self, swap_case);
}

// ---- strip ----

Value stripped(const char* name, const Value& self, const Arguments& arguments, bool left, bool right) {
  const BoundArguments bound(name, arguments, {"chars"});
  if (bound[0].is_none()) return text_like(self, std::string(strip(self.str(), nullptr, left, right)));
  const std::string_view characters = bound.string(0);
  spend(1 + self.str().size() / Budget::kBytesPerUnit * (characters.size() / 8 + 1));
  return text_like(self, std::string(strip(self.str(), &characters, left, right)));
}

Value strip_both(Interpreter&, const Value& self, Arguments& arguments) {
  return stripped("strip", self, arguments, true, true);
}
Value strip_left(Interpreter&, const Value& self, Arguments& arguments) {
  return stripped("lstrip", self, arguments, true, false);
}
Value strip_right(Interpreter&, const Value& self, Arguments& arguments) {
  return stripped("rstrip", self, arguments, false, true);
}

Value remove_prefix(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("removeprefix", arguments, {"prefix"}, 1);
  const std::string& prefix = bound.string(0);
  const bool has = self.str().compare(0, prefix.size(), prefix) == 0;
  return has ? text_like(self, self.str().substr(prefix.size())) : self;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

Value remove_suffix(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("removesuffix", arguments, {"suffix"}, 1);
  const std::string& suffix = bound.string(0);
  return ends_with(self.str(), suffix) ? text_like(self, self.str().substr(0, self.str().size() - suffix.size()))
                                       : self;
}

// ---- split and join ----

// A search from the right has no linear form here, so a long needle is charged for the worst case.
void spend_search(std::string_view text, std::string_view needle) {
  spend_text(text.size());
  if (needle.size() > 64) spend(text.size() / Budget::kBytesPerUnit * needle.size());
}

Value texts_like(const Value& self, const std::vector<std::string_view>& parts) {
  spend(parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(text_like(self, std::string(part)));
  return Value::list(std::move(items));
}

bool space_at(std::string_view text, std::size_t at) {
  return is_space(character_at(text, at).code);
}

std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = strip(text, nullptr, true, false);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<std::int64_t>(parts.size()) >= max_splits) {
      parts.push_back(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && !space_at(text, end)) end += character_at(text, end).n_bytes;
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), nullptr, true, false);
  }
  return parts;
}

std::vector<std::string_view> split_at_space_from_right(std::string_view text, std::int64_t max_splits) {
  if (max_splits < 0) return split_at_space(text, -1);
  std::vector<std::string_view> parts;
  text = strip(text, nullptr, false, true);
  // The words' beginnings, left to right; the last ones are wanted.
  std::vector<std::size_t> begins;
  bool after_space = true;
  for (std::size_t at = 0; at < text.size(); at += character_at(text, at).n_bytes) {
    const bool space = space_at(text, at);
    if (!space && after_space) begins.push_back(at);
    after_space = space;
  }
  while (!begins.empty() && static_cast<std::int64_t>(parts.size()) < max_splits) {
    parts.push_back(text.substr(begins.back()));
    text = strip(text.substr(0, begins.back()), nullptr, false, true);
    begins.pop_back();
  }
  if (!text.empty()) parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  const TextFinder finder(separator);
  std::size_t at = 0;
  while (max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits) {
    const std::size_t found = finder.find(text, at);
    if (found == text.npos) break;
    parts.push_back(text.substr(at, found - at));
    at = found + separator.size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<std::string_view> split_at_from_right(std::string_view text, std::string_view separator,
                                                  std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  while (max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits) {
    const std::size_t found = text.rfind(separator);
    if (found == text.npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split_with(const char* name, const Value& self, const Arguments& arguments, bool from_right) {
  const BoundArguments bound(name, arguments, {"sep", "maxsplit"});
  const std::int64_t max_splits = bound.integer(1, -1);
  spend_text(self.str().size());
  if (from_right && bound[0].is_string()) spend_search(self.str(), bound[0].str());
  if (bound[0].is_none()) {
    return texts_like(
        self, from_right ? split_at_space_from_right(self.str(), max_splits) : split_at_space(self.str(), max_splits));
  }
  const std::string& separator = bound.string(0);
  if (separator.empty()) fail("empty separator");
  return texts_like(self, from_right ? split_at_from_right(self.str(), separator, max_splits)
                                     : split_at(self.str(), separator, max_splits));
}

Value split(Interpreter&, const Value& self, Arguments& arguments) {
  return split_with("split", self, arguments, false);
}
Value split_from_right(Interpreter&, const Value& self, Arguments& arguments) {
  return split_with("rsplit", self, arguments, true);
}

Value lines(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("splitlines", arguments, {"keepends"});
  return texts_like(self, split_lines(self.str(), bound.flag(0)));
}

Value partition_with(const char* name, const Value& self, const Arguments& arguments, bool from_right) {
  const BoundArguments bound(name, arguments, {"sep"}, 1);
  const std::string& separator = bound.string(0);
  if (separator.empty()) fail("empty separator");
  if (from_right) spend_search(self.str(), separator);
  const std::size_t found = from_right ? self.str().rfind(separator) : TextFinder(separator).find(self.str());
  const Value empty = text_like(self, "");
  if (found == std::string::npos) {
    return from_right ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
  }
  return Value::tuple({text_like(self, self.str().substr(0, found)), text_like(self, separator),
                       text_like(self, self.str().substr(found + separator.size()))});
}

Value partition(Interpreter&, const Value& self, Arguments& arguments) {
  return partition_with("partition", self, arguments, false);
}
Value partition_from_right(Interpreter&, const Value& self, Arguments& arguments) {
  return partition_with("rpartition", self, arguments, true);
}

Value join(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"iterable"}, 1);
  const bool markup = self.text().markup;
  std::string out;
  bool first = true;
  const auto items = iterate(bound[0]);
  for (Value item; items->next(item);) {
    if (!item.is_string()) fail("sequence item: expected str instance, " + item.type_name() + " found");
    if (!first) out += self.str();
    first = false;
    out += markup && !item.text().markup ? escape_html(item.str()) : item.str();
    if (out.size() > Budget::kMaxLiveBytes) spend_text(out.size());
  }
  return text_like(self, std::move(out));
}

// ---- search ----

// start and end of find, count, ...: the part searched, and how many characters stand before it.
struct Part {
  std::string text;
  std::int64_t n_before;
};

// nullopt where the start is beyond the end: nothing is found there, not even the empty text.
std::optional<Part> part_of(const Value& self, const BoundArguments& bound) {
  if (!bound.has(1) && !bound.has(2)) return Part{self.str(), 0};
  const std::int64_t n = *length_of(self);
  std::int64_t start = bound[1].is_none() ? 0 : bound.integer(1);
  if (start < 0) start = std::max<std::int64_t>(0, start + n);
  if (start > n) return std::nullopt;
  return Part{slice_of(self, bound[1], bound[2], Value()).str(), start};
}

std::int64_t find_in(const char* name, const Value& self, const Arguments& arguments, bool from_right) {
  const BoundArguments bound(name, arguments, {"sub", "start", "end"}, 1);
  const std::string& sub = bound.string(0);
  const auto part = part_of(self, bound);
  if (!part) return -1;
  spend_text(part->text.size());
  if (from_right) spend_search(part->text, sub);
  const std::size_t found = from_right ? part->text.rfind(sub) : TextFinder(sub).find(part->text);
  if (found == std::string::npos) return -1;
  return part->n_before + static_cast<std::int64_t>(n_characters(std::string_view(part->text).substr(0, found)));
}

Value find(Interpreter&, const Value& self, Arguments& arguments) {
  return Value::integer(find_in("find", self, arguments, false));
}
Value find_from_right(Interpreter&, const Value& self, Arguments& arguments) {
  return Value::integer(find_in("rfind", self, arguments, true));
}
Value index(Interpreter&, const Value& self, Arguments& arguments) {
  const std::int64_t found = find_in("index", self, arguments, false);
  if (found < 0) fail("substring not found");
  return Value::integer(found);
}
Value index_from_right(Interpreter&, const Value& self, Arguments& arguments) {
  const std::int64_t found = find_in("rindex", self, arguments, true);
  if (found < 0) fail("substring not found");
  return Value::integer(found);
}

Value count(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("count", arguments, {"sub", "start", "end"}, 1);
  spend_text(self.str().size());
  const std::string& sub = bound.string(0);
  const auto part = part_of(self, bound);
  if (!part) return Value::integer(0);
  if (sub.empty()) return Value::integer(static_cast<std::int64_t>(n_characters(part->text)) + 1);
  const TextFinder finder(sub);
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = finder.find(part->text, at)) != std::string::npos; at += sub.size()) ++n;
  return Value::integer(n);
}

bool matches_any(const char* name, const Value& self, const Arguments& arguments, bool at_end) {
  const BoundArguments bound(name, arguments, {"affix", "start", "end"}, 1);
  const auto part = part_of(self, bound);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) fail(std::string(name) + "() wants a str or a tuple of str, not " + affix.type_name());
    if (!part) return false;
    return at_end ? ends_with(part->text, affix.str()) : part->text.compare(0, affix.str().size(), affix.str()) == 0;
  };
  if (!bound[0].is(Kind::kTuple)) return matches(bound[0]);
  spend(bound[0].items().size());
  return std::any_of(bound[0].items().begin(), bound[0].items().end(), matches);
}

Value starts_with(Interpreter&, const Value& self, Arguments& arguments) {
  return Value::boolean(matches_any("startswith", self, arguments, false));
}
Value ends_with_any(Interpreter&, const Value& self, Arguments& arguments) {
  return Value::boolean(matches_any("endswith", self, arguments, true));
}

Value replace(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"}, 2);
  const bool escape = self.text().markup && bound[1].is_string() && !bound[1].text().markup;
  const std::string to = escape ? escape_html(bound.string(1)) : bound.string(1);
  return text_like(self, replaced(self.str(), bound.string(0), to, bound.integer(2, -1)));
}

// ---- padding ----

const std::string& fill_of(const BoundArguments& bound, std::size_t i) {
  static const std::string kSpace = " ";
  const std::string& fill = bound.string(i, kSpace);
  if (n_characters(fill) != 1) fail("The fill character must be exactly one character long");
  return fill;
}

Value pad_left_and_right(const char* name, const Value& self, const Arguments& arguments, bool left) {
  const BoundArguments bound(name, arguments, {"width", "fillchar"}, 1);
  const std::int64_t n_missing = std::max<std::int64_t>(0, bound.integer(0)) - *length_of(self);
  return text_like(self, padded(self.str(), left ? n_missing : 0, left ? 0 : n_missing, fill_of(bound, 1)));
}

Value justify_left(Interpreter&, const Value& self, Arguments& arguments) {
  return pad_left_and_right("ljust", self, arguments, false);
}
Value justify_right(Interpreter&, const Value& self, Arguments& arguments) {
  return pad_left_and_right("rjust", self, arguments, true);
}
Value center(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("center", arguments, {"width", "fillchar"}, 1);
  return text_like(self, centered(self.str(), std::max<std::int64_t>(0, bound.integer(0)), fill_of(bound, 1)));
}

Value fill_zeros(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("zfill", arguments, {"width"}, 1);
  const std::int64_t n_missing = std::max<std::int64_t>(0, bound.integer(0)) - *length_of(self);
  const std::string& text = self.str();
  const std::size_t n_sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return text_like(self, text.substr(0, n_sign) + padded(text.substr(n_sign), n_missing, 0, "0"));
}

Value expand_tabs(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("expandtabs", arguments, {"tabsize"});
  const std::int64_t size = bound.integer(0, 8);
  std::string out;
  std::int64_t column = 0;
  for (const char byte : self.str()) {
    if (byte == '\t') {
      const std::int64_t n = size > 0 ? size - column % size : 0;
      out += padded("", n, 0, " ");
      column += n;
      continue;
    }
    out += byte;
    if (byte == '\n' || byte == '\r') {
      column = 0;
    } else if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) {
      ++column;
    }
  }
  return text_like(self, std::move(out));
}

// ---- questions ----

template <bool (*Holds)(std::int32_t)>
Value all_are(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("is...", arguments, {});
  const std::string& text = self.str();
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (!Holds(character.code)) return Value::boolean(false);
    at += character.n_bytes;
  }
  return Value::boolean(!text.empty());
}

bool is_digit(std::int32_t code) {
  const bool raised =
      code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 || (code >= 0x2074 && code <= 0x2079);
  return is_decimal(code) || raised || (code >= 0x2080 && code <= 0x2089);
}
bool is_letter_or_number(std::int32_t code) {
  return is_alpha(code) || is_numeric(code);
}

Value all_ascii(Interpreter&, const Value& self, Arguments&) {
  return Value::boolean(self.text().ascii);
}

Value all_printable(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return self.str().empty() ? Value::boolean(true) : all_are<is_printable>(interpreter, self, arguments);
}

Value identifier(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const bool starts_well = !self.str().empty() && !is_numeric(character_at(self.str(), 0).code);
  return starts_well ? all_are<is_word>(interpreter, self, arguments) : Value::boolean(false);
}

Value all_upper(Interpreter&, const Value& self, Arguments&) {
  return Value::boolean(is_upper_text(self.str()));
}
Value all_lower(Interpreter&, const Value& self, Arguments&) {
  return Value::boolean(is_lower_text(self.str()));
}

Value all_titled(Interpreter&, const Value& self, Arguments&) {
  const std::string& text = self.str();
  bool any = false;
  bool after_letter = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    at += character.n_bytes;
    const bool large = is_upper(character.code);
    const bool small = is_lower(character.code);
    if ((large && after_letter) || (small && !after_letter)) return Value::boolean(false);
    after_letter = large || small;
    any = any || after_letter;
  }
  return Value::boolean(any);
}

// ---- format ----

const FieldLookup kLookup = {attribute_of, item_of};

Value format(Interpreter&, const Value& self, Arguments& arguments) {
  if (self.text().markup) fail_unsupported("format() of a text marked as safe");
  return Value::string(format_fields(self.str(), arguments, kLookup));
}

Value format_map(Interpreter&, const Value& self, Arguments& arguments) {
  const BoundArguments bound("format_map", arguments, {"mapping"}, 1);
  if (self.text().markup) fail_unsupported("format_map() of a text marked as safe");
  if (!bound[0].is(Kind::kDict)) fail("format_map() wants a dict");
  Arguments named;
  for (const auto& [key, value] : bound[0].as_dict().entries()) {
    if (key.is_string()) named.keyword.emplace_back(key.str(), value);
  }
  return Value::string(format_fields(self.str(), named, kLookup));
}

}  // namespace

bool is_upper_text(std::string_view text) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (is_lower(character.code)) return false;
    any = any || is_upper(character.code);
    at += character.n_bytes;
  }
  return any;
}

bool is_lower_text(std::string_view text) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (is_upper(character.code)) return false;
    any = any || is_lower(character.code);
    at += character.n_bytes;
  }
  return any;
}

Method find_text_method(std::string_view name) {
  static const std::unordered_map<std::string_view, MethodFunction> kMethods = {
      {"capitalize", capitalized},
      {"casefold", lower},
      {"center", center},
      {"count", count},
      {"encode", nullptr},
      {"endswith", ends_with_any},
      {"expandtabs", expand_tabs},
      {"find", find},
      {"format", format},
      {"format_map", format_map},
      {"index", index},
      {"isalnum", all_are<is_letter_or_number>},
      {"isalpha", all_are<is_alpha>},
      {"isascii", all_ascii},
      {"isdecimal", all_are<is_decimal>},
      {"isdigit", all_are<is_digit>},
      {"isidentifier", identifier},
      {"islower", all_lower},
      {"isnumeric", all_are<is_numeric>},
      {"isprintable", all_printable},
      {"isspace", all_are<is_space>},
      {"istitle", all_titled},
      {"isupper", all_upper},
      {"join", join},
      {"ljust", justify_left},
      {"lower", lower},
      {"lstrip", strip_left},
      {"maketrans", nullptr},
      {"partition", partition},
      {"removeprefix", remove_prefix},
      {"removesuffix", remove_suffix},
      {"replace", replace},
      {"rfind", find_from_right},
      {"rindex", index_from_right},
      {"rjust", justify_right},
      {"rpartition", partition_from_right},
      {"rsplit", split_from_right},
      {"rstrip", strip_right},
      {"split", split},
      {"splitlines", lines},
      {"startswith", starts_with},
      {"strip", strip_both},
      {"swapcase", case_swapped},
      {"title", titled},
      {"translate", nullptr},
      {"upper", upper},
      {"zfill", fill_zeros},
  };
  const auto found = kMethods.find(name);
  if (found == kMethods.end()) return {};
  if (found->second == nullptr) return {Method::Access::kUnsupported, nullptr};
  return {Method::Access::kCallable, found->second};
}

}  // namespace memoir::text::jinja
