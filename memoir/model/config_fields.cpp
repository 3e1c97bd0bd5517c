#include "memoir/model/config_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/model/config.h"
#include "memoir/model/config_limits.h"

namespace memoir::model {
namespace {

using nlohmann::json;

// The number as text, nullopt where it is no integer. uint64 above 2^63 - 1 gives the largest int64: every caller has a
// smaller bound.
std::optional<std::int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return static_cast<std::int64_t>(std::min(value.get<std::uint64_t>(), kMax));
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

std::string described(const json& value) {
  return std::string("is a value of type ") + value.type_name();
}

}  // namespace

ConfigFields::ConfigFields(const json& object, const std::string& path, std::string prefix, const ConfigFields* outer)
    : object_(object), path_(path), prefix_(std::move(prefix)), outer_(outer) {
  if (!object.is_object()) fail("", described(object) + ", expected an object");
}

const json* ConfigFields::find(std::string_view key) const {
  const auto found = object_.find(key);
  if (found != object_.end() && !found->is_null()) return &*found;
  return outer_ == nullptr ? nullptr : outer_->find(key);
}

std::optional<std::int64_t> ConfigFields::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number) fail(key, described(*value) + ", expected a whole number");
  if (*number < min || *number > max) {
    fail(key, "is " + value->dump() + ", expected " + std::to_string(min) + " to " + std::to_string(max));
  }
  return number;
}

std::optional<double> ConfigFields::number(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail(key, described(*value) + ", expected a number");
  const auto number = value->get<double>();
  if (!std::isfinite(number)) fail(key, "is not a finite number");
  return number;
}

std::optional<double> ConfigFields::positive(std::string_view key) const {
  const auto value = number(key);
  if (value && !is_positive_float(*value)) {
    fail(key, "is " + std::to_string(*value) + ", expected a number above 0 that float32 can hold");
  }
  return value;
}

std::optional<bool> ConfigFields::boolean(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(key, described(*value) + ", expected true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigFields::string(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, described(*value) + ", expected a string");
  return value->get<std::string>();
}

std::optional<std::vector<double>> ConfigFields::positives(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail(key, described(*value) + ", expected a list of numbers");
  std::vector<double> numbers;
  for (const json& element : *value) {
    if (!element.is_number()) fail(key, "holds " + std::string(element.type_name()) + ", expected numbers");
    numbers.push_back(element.get<double>());
    if (!std::isfinite(numbers.back()) || numbers.back() <= 0) fail(key, "holds a number that is not above 0");
  }
  return numbers;
}

std::optional<std::vector<std::string>> ConfigFields::strings(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail(key, described(*value) + ", expected a list of strings");
  std::vector<std::string> texts;
  for (const json& element : *value) {
    if (!element.is_string()) fail(key, "holds " + std::string(element.type_name()) + ", expected strings");
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

std::optional<std::vector<std::int64_t>> ConfigFields::integers(std::string_view key, std::int64_t min,
                                                                std::int64_t max) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail(key, described(*value) + ", expected a list of whole numbers");
  std::vector<std::int64_t> numbers;
  for (const json& element : *value) {
    const auto number = as_integer(element);
    if (!number || *number < min || *number > max) {
      fail(key, "holds something else than a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

bool ConfigFields::required_boolean(std::string_view key) const {
  const auto value = boolean(key);
  if (!value) fail(key, "is missing");
  return *value;
}

double ConfigFields::required_number(std::string_view key) const {
  const auto value = number(key);
  if (!value) fail(key, "is missing");
  return *value;
}

int ConfigFields::size(std::string_view key, std::int64_t max) const {
  const auto value = integer(key, 1, max);
  if (!value) fail(key, "is missing");
  return static_cast<int>(*value);
}

std::string ConfigFields::full_name(std::string_view key) const {
  if (key.empty()) return prefix_.substr(0, prefix_.size() - (prefix_.ends_with('.') ? 1 : 0));
  return prefix_ + std::string(key);
}

void ConfigFields::fail(std::string_view key, const std::string& reason) const {
  throw FormatError(path_, full_name(key), reason);
}

void ConfigFields::refuse(std::string_view key, const std::string& reason) const {
  throw UnsupportedError(path_, full_name(key), reason);
}

ConfigFields family_fields(const ModelConfig& config) {
  return ConfigFields(config.family_keys, config.path, config.is_text_part ? "text_config." : "");
}

}  // namespace memoir::model
