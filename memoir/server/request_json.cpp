#include "memoir/server/request_json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "memoir/base/json_text.h"

namespace memoir::server {
namespace {

constexpr std::uint64_t kMaxKeyWork = 50'000'000;

// What must be known before the parser is let at it.
void check_shape(std::string_view body) {
  std::vector<std::uint64_t> n_keys;  // of the open objects and lists
  std::uint64_t work = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') n_keys.push_back(0);
    if (n_keys.size() > static_cast<std::size_t>(kMaxJsonDepth)) {
      throw ApiError(400, "the JSON nests deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    if ((c == '}' || c == ']') && !n_keys.empty()) n_keys.pop_back();
    if (c == ':' && !n_keys.empty()) work += n_keys.back()++;
    if (work > kMaxKeyWork) throw ApiError(400, "an object of the JSON has too many keys");
  }
}

// The parser's message, which says where, without what it has read last: that may be a piece of a prompt, which no log
// is to have.
std::string reason_of(const Json::exception& error) {
  const std::string text = json_reason(error);
  return text.substr(0, std::min<std::size_t>(text.find("; last read: "), 200));
}

}  // namespace

Json parse_body(std::string_view body) {
  if (body.empty()) throw ApiError(400, "the body is empty: expected a JSON object");
  check_shape(body);
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::exception& error) {
    throw ApiError(400, "the body is not JSON: " + reason_of(error));
  }
  if (!json.is_object()) throw ApiError(400, "the body is no JSON object");
  return json;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (std::nearbyint(number) != number || std::abs(number) >= 9e15) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

Fields::Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
  if (!object_.is_object()) throw bad_field(place_, "is not an object");
}

const Json* Fields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string Fields::name_of(const char* name) const {
  return place_.empty() ? name : place_ + "." + name;
}

std::optional<double> Fields::number(const char* name, double low, double high) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number >= low && number <= high) return number;
  throw bad_field(name_of(name), "is no number from " + Json(low).dump() + " to " + Json(high).dump());
}

std::optional<std::int64_t> Fields::integer(const char* name, std::int64_t low, std::int64_t high) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  const auto fail = [&] {
    return bad_field(name_of(name), "is no whole number from " + std::to_string(low) + " to " + std::to_string(high));
  };
  const std::optional<std::int64_t> number = whole_number(*value);
  if (!number || *number < low || *number > high) throw fail();
  return number;
}

std::optional<bool> Fields::flag(const char* name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) throw bad_field(name_of(name), "is neither true nor false");
  return value->get<bool>();
}

std::optional<std::string> Fields::text(const char* name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) throw bad_field(name_of(name), "is not a string");
  return value->get<std::string>();
}

std::string Fields::need_text(const char* name) const {
  std::optional<std::string> value = text(name);
  if (!value) throw bad_field(name_of(name), "is missing");
  return std::move(*value);
}

const Json* Fields::list(const char* name) const {
  const Json* value = find(name);
  if (value && !value->is_array()) throw bad_field(name_of(name), "is not a list");
  return value;
}

const Json* Fields::object(const char* name) const {
  const Json* value = find(name);
  if (value && !value->is_object()) throw bad_field(name_of(name), "is not an object");
  return value;
}

std::vector<std::string> Fields::texts(const char* name, std::size_t max_count) const {
  const Json* value = find(name);
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) throw bad_field(name_of(name), "is neither a string nor a list of strings");
  if (value->size() > max_count)
    throw bad_field(name_of(name), "has more than " + std::to_string(max_count) + " members");
  std::vector<std::string> texts;
  for (const Json& one : *value) {
    if (!one.is_string()) throw bad_field(name_of(name), "is neither a string nor a list of strings");
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

void Fields::refuse(const char* name, const Json& harmless, const char* why) const {
  const Json* value = find(name);
  if (value && *value != harmless) throw unsupported_field(name_of(name), why);
}

}  // namespace memoir::server
