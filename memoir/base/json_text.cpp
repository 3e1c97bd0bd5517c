#include "memoir/base/json_text.h"

#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "memoir/base/error.h"

namespace memoir {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 3> kBareTokens = {"-Infinity", "Infinity", "NaN"};
constexpr const char* kTag = "__float__";

std::optional<double> special_number(std::string_view name) {
  if (name == "Infinity") return std::numeric_limits<double>::infinity();
  if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

// The bare token that begins at `at`, or empty.
std::string_view bare_token(std::string_view text, std::size_t at) {
  if (text[at] != '-' && text[at] != 'I' && text[at] != 'N') return {};
  for (const auto token : kBareTokens) {
    if (text.substr(at, token.size()) == token) return token;
  }
  return {};
}

// Throws FormatError where the text nests too deep: here, and not in a callback of the parser, which then looks for
// discarded elements after each object of a list, so that the time grows with their number squared. Also where it has
// a NUL, which the parser would take for its end.
void check_text(std::string_view text, const std::string& path) {
  bool in_string = false;
  int depth = 0;
  int line = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') throw FormatError(path, "", "is not JSON: a NUL byte at line " + std::to_string(line));
    if (c == '\n') ++line;
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\' && i + 1 < text.size() && text[i + 1] != '\0') ++i;
    if (in_string) continue;
    if ((c == '[' || c == '{') && ++depth > kMaxJsonDepth) {
      throw FormatError(path, "", "JSON nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    if (c == ']' || c == '}') --depth;
  }
}

// The text with bare tokens outside strings replaced by tagged objects.
std::string tag_bare_tokens(std::string_view text) {
  std::string tagged;
  tagged.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view token = in_string ? std::string_view() : bare_token(text, i);
    if (!token.empty()) {
      tagged.append("{\"").append(kTag).append("\":\"").append(token).append("\"}");
      i += token.size() - 1;
      continue;
    }
    tagged += text[i];
    if (text[i] == '"') {
      in_string = !in_string;
    } else if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      tagged += text[++i];
    }
  }
  return tagged;
}

// Turns tagged objects into numbers. The depth of the recursion is bounded by kMaxJsonDepth.
template <typename Json>
void untag(Json& value) {
  if (value.is_object() && value.size() == 1 && value.begin().key() == kTag && value.begin()->is_string()) {
    if (const auto number = special_number(value.begin()->template get_ref<const std::string&>())) {
      value = *number;
      return;
    }
  }
  if (!value.is_structured()) return;
  for (auto& element : value) untag(element);
}

// It quotes what was read last, which may be long.
std::string reason_of(const json::exception& error) {
  return json_reason(error).substr(0, 200);
}

template <typename Json>
Json parse_checked(std::string_view text, const std::string& path) {
  try {
    return Json::parse(text);
  } catch (const json::parse_error& error) {
    throw FormatError(path, "", "is not JSON: " + reason_of(error));
  } catch (const json::exception& error) {
    throw FormatError(path, "", reason_of(error));  // a number that no double holds
  }
}

template <typename Json>
Json parse_model(std::string_view text, const std::string& path) {
  check_text(text, path);
  Json value = parse_checked<Json>(tag_bare_tokens(text), path);
  untag(value);
  return value;
}

// Appends a value that stands behind `indent` blanks. The depth of the recursion is that of the value.
void append_text(const nlohmann::ordered_json& value, std::size_t indent, std::string& text) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    text += std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
    return;
  }
  if (!value.is_structured() || value.empty()) {
    text += json_text(value);
    return;
  }
  const std::string line = "\n" + std::string(indent + 2, ' ');
  text += value.is_object() ? "{" : "[";
  bool is_first = true;
  for (const auto& [key, member] : value.items()) {
    text += (is_first ? "" : ",") + line;
    is_first = false;
    if (value.is_object()) text += json_text(key) + ": ";
    append_text(member, indent + 2, text);
  }
  text += "\n" + std::string(indent, ' ') + (value.is_object() ? "}" : "]");
}

}  // namespace

json parse_json(std::string_view text, const std::string& path) {
  return parse_model<json>(text, path);
}

nlohmann::ordered_json parse_ordered_model_json(std::string_view text, const std::string& path) {
  return parse_model<nlohmann::ordered_json>(text, path);
}

std::string model_json_text(const nlohmann::ordered_json& value) {
  std::string text;
  append_text(value, 0, text);
  return text;
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& path) {
  check_text(text, path);
  return parse_checked<nlohmann::ordered_json>(text, path);
}

std::string json_reason(const json::exception& error) {
  const std::string text = error.what();
  const std::size_t bracket = text.find("] ");
  return text.substr(bracket == std::string::npos ? 0 : bracket + 2);
}

std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace memoir
