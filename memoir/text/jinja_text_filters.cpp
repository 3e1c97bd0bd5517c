#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "memoir/text/jinja_arguments.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_filters.h"
#include "memoir/text/jinja_format.h"
#include "memoir/text/jinja_operations.h"
#include "memoir/text/jinja_text.h"

namespace memoir::text::jinja {
namespace {

template <std::string (*Change)(std::string_view)>
Value changed(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("filter", arguments, {});
  const Value text = soft_text(input);
  return text_like(text, Change(text.str()));
}

// Not title case: the first letter is in upper case and the rest in lower case, each for itself.
std::string title_word(std::string_view word) {
  const std::size_t n_first = character_at(word, 0).n_bytes;
  return to_upper(word.substr(0, n_first)) + to_lower(word.substr(n_first));
}

// A word begins after white space, a dash or an opening bracket.
std::string title_filter(std::string_view text) {
  std::string out;
  std::size_t begin = 0;
  bool in_word = false;
  const auto is_break = [](std::int32_t code) {
    return is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
  };
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const bool breaks = is_break(character.code);
    if (breaks == in_word) {  // a word or a gap ends here
      out += in_word ? title_word(text.substr(begin, at - begin)) : std::string(text.substr(begin, at - begin));
      begin = at;
      in_word = !breaks;
    }
    at += character.n_bytes;
  }
  return out += in_word ? title_word(text.substr(begin)) : std::string(text.substr(begin));
}

Value trim(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  const Value text = soft_text(input);
  if (bound[0].is_none()) return text_like(text, std::string(strip(text.str(), nullptr, true, true)));
  const std::string_view characters = bound.string(0);
  spend(1 + text.str().size() / Budget::kBytesPerUnit * (characters.size() / 8 + 1));
  return text_like(text, std::string(strip(text.str(), &characters, true, true)));
}

Value replace(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"}, 2);
  const std::int64_t max_count = bound[2].is_none() ? -1 : bound.integer(2);
  return Value::string(replaced(to_text(input), to_text(bound[0]), to_text(bound[1]), max_count));
}

Value center(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("center", arguments, {"width"});
  const Value text = soft_text(input);
  return text_like(text, centered(text.str(), std::max<std::int64_t>(0, bound.integer(0, 80)), " "));
}

void require_text(const char* filter, const Value& input) {
  input.require_defined();
  if (!input.is_string()) fail(std::string("the filter ") + filter + " wants a str, not " + input.type_name());
}

Value indent(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  require_text("indent", input);
  const std::string by = bound[0].is_string() ? bound.string(0) : padded("", bound.integer(0, 4), 0, " ");
  const std::string text = input.str() + "\n";
  const auto lines = split_lines(text, false);
  spend_text(text.size() + by.size() * lines.size());
  std::string out = bound.flag(1) ? by : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out += (bound.flag(2) || !lines[i].empty()) ? "\n" + by : "\n";
    out += lines[i];
  }
  return text_like(input, std::move(out));
}

Value truncate(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  static const std::string kDots = "...";
  const std::int64_t length = bound.integer(0, 255);
  const std::string& end = bound.string(2, kDots);
  const std::int64_t leeway = bound[3].is_none() ? 5 : bound.integer(3);
  const auto n_end = static_cast<std::int64_t>(n_characters(end));
  if (length < n_end || leeway < 0) fail("truncate: expected length >= " + std::to_string(n_end) + " and leeway >= 0");
  const auto n = length_of(input);
  if (n && *n - leeway <= length) return input;  // of any type
  require_text("truncate", input);
  std::string kept = characters_between(input.text(), 0, length - n_end);
  if (!bound.flag(1)) kept.resize(std::min(kept.rfind(' '), kept.size()));
  return text_like(input, kept + end);
}

Value count_words(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("wordcount", arguments, {});
  const std::string text = to_text(input);
  std::int64_t n = 0;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const bool word = is_word(character.code);
    if (word && !in_word) ++n;
    in_word = word;
    at += character.n_bytes;
  }
  return Value::integer(n);
}

Value string(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("string", arguments, {});
  return soft_text(input);
}

Value mark_safe(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("safe", arguments, {});
  return Value::string(to_text(input), true);
}

Value escape(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("escape", arguments, {});
  if (input.is_string() && input.text().markup) return input;
  return Value::string(escape_html(to_text(input)), true);
}

Value force_escape(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("forceescape", arguments, {});
  return Value::string(escape_html(to_text(input)), true);
}

Value format(Interpreter&, const Value& input, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keyword.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  const Value text = soft_text(input);
  if (text.text().markup) fail_unsupported("the filter format on a text marked as safe");
  if (arguments.keyword.empty()) return Value::string(format_percent(text.str(), Value::tuple(arguments.positional)));
  Dict named;
  for (const auto& [name, value] : arguments.keyword) named.set(name, value);
  return Value::string(format_percent(text.str(), Value::dict(std::move(named))));
}

std::string url_quoted(std::string_view text, bool for_query) {
  std::string out;
  for (const char byte : text) {
    const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
                       std::string_view("_.-~").find(byte) != std::string_view::npos;
    if (plain || (byte == '/' && !for_query)) {
      out += byte;
    } else if (byte == ' ' && for_query) {
      out += '+';
    } else {
      char buffer[4];
      std::snprintf(buffer, sizeof buffer, "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(byte)));
      out += buffer;
    }
  }
  return out;
}

Value url_encode(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("urlencode", arguments, {});
  if (input.is_string() || !is_iterable(input)) return Value::string(url_quoted(to_text(input), false));
  std::string out;
  const auto append = [&out](const Value& key, const Value& value) {
    if (!out.empty()) out += "&";
    out += url_quoted(to_text(key), true) + "=" + url_quoted(to_text(value), true);
  };
  if (input.is(Kind::kDict)) {
    for (const auto& [key, value] : input.as_dict().entries()) append(key, value);
    return Value::string(std::move(out));
  }
  for (const Value& pair : collect(input)) {
    const auto both = collect(pair);
    if (both.size() != 2) fail("urlencode wants pairs");
    append(both[0], both[1]);
  }
  return Value::string(std::move(out));
}

Value xml_attributes(Interpreter&, const Value& input, Arguments& arguments) {
  const BoundArguments bound("xmlattr", arguments, {"autospace"});
  if (!input.is(Kind::kDict)) fail("the filter xmlattr wants a dict, not " + input.type_name());
  std::string out;
  for (const auto& [key, value] : input.as_dict().entries()) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!key.is_string()) fail("an attribute's name must be a str");
    if (key.str().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      fail("Invalid character in attribute name: " + to_repr(key));
    }
    const bool escaped = value.is_string() && value.text().markup;
    if (!out.empty()) out += " ";
    out += escape_html(key.str()) + "=\"" + (escaped ? value.str() : escape_html(to_text(value))) + "\"";
  }
  return Value::string(bound.flag(0, true) && !out.empty() ? " " + out : out);
}

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"capitalize", changed<capitalize>},
      {"center", center},
      {"e", escape},
      {"escape", escape},
      {"forceescape", force_escape},
      {"format", format},
      {"indent", indent},
      {"lower", changed<to_lower>},
      {"replace", replace},
      {"safe", mark_safe},
      {"string", string},
      {"title", changed<title_filter>},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", changed<to_upper>},
      {"urlencode", url_encode},
      {"wordcount", count_words},
      {"xmlattr", xml_attributes},
  };
  const auto found = kFilters.find(name);
  return found != kFilters.end() ? found->second : nullptr;
}

}  // namespace memoir::text::jinja
