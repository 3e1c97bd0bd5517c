#pragma once

// A value of a JSON file that knows where it stands, so that a wrong type is reported with path and key.
// Internal to text/. A node refers to the parsed document, which must outlive it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "memoir/base/error.h"

namespace memoir::text {

class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& path, std::string key)
      : value_(&value), path_(&path), key_(std::move(key)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return *path_; }
  const std::string& key() const { return key_; }

  [[noreturn]] void fail(const std::string& reason) const { throw FormatError(*path_, key_, reason); }
  [[noreturn]] void unsupported(const std::string& reason) const { throw UnsupportedError(*path_, key_, reason); }

  /// The member of an object; nullopt where it is absent or null. FormatError if this is no object.
  std::optional<JsonNode> find(std::string_view name) const {
    if (!value_->is_object()) fail("is not an object");
    const auto found = value_->find(name);
    if (found == value_->end() || found->is_null()) return std::nullopt;
    return JsonNode(*found, *path_, key_.empty() ? std::string(name) : key_ + "." + std::string(name));
  }

  JsonNode at(std::string_view name) const {
    std::optional<JsonNode> member = find(name);
    if (!member) fail("lacks \"" + std::string(name) + "\"");
    return *member;
  }

  /// An element of an array.
  JsonNode element(std::size_t index) const {
    return JsonNode((*value_)[index], *path_, key_ + "[" + std::to_string(index) + "]");
  }

  std::size_t n_elements() const {
    if (!value_->is_array()) fail("is not an array");
    return value_->size();
  }

  const std::string& text() const {
    if (!value_->is_string()) fail("is not a string");
    return value_->get_ref<const std::string&>();
  }

  bool boolean() const {
    if (!value_->is_boolean()) fail("is not true or false");
    return value_->get<bool>();
  }

  std::int64_t integer() const {
    if (!value_->is_number_integer()) fail("is not an integer");
    if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX) fail("is too large");
    return value_->get<std::int64_t>();
  }

  bool flag(std::string_view name, bool otherwise) const {
    const std::optional<JsonNode> member = find(name);
    return member ? member->boolean() : otherwise;
  }

 private:
  const nlohmann::json* value_;
  const std::string* path_;
  std::string key_;
};

}  // namespace memoir::text
