#include "memoir/base/json_text.h"

#include <array>
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
  for (const auto token : kBareTokens) {
    if (text.substr(at, token.size()) == token) return token;
  }
  return {};
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
void untag(json& value) {
  if (value.is_object() && value.size() == 1 && value.begin().key() == kTag && value.begin()->is_string()) {
    if (const auto number = special_number(value.begin()->get_ref<const std::string&>())) {
      value = *number;
      return;
    }
  }
  if (!value.is_structured()) return;
  for (auto& element : value) untag(element);
}

}  // namespace

json parse_json(std::string_view text, const std::string& path) {
  const auto check_depth = [&path](int depth, json::parse_event_t event, const json& /*parsed*/) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= kMaxJsonDepth) {
      throw FormatError(path, "", "JSON nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    return true;
  };
  try {
    json value = json::parse(tag_bare_tokens(text), check_depth);
    untag(value);
    return value;
  } catch (const json::exception& error) {
    // The message quotes what was read last, which may be long.
    throw FormatError(path, "", "is not JSON: " + std::string(error.what()).substr(0, 200));
  }
}

}  // namespace memoir
