#pragma once

// Requests' JSON, read with a message that names the field at fault.
//
// All readers treat null as absent, as clients send it for what they leave open. Errors are ApiError 400.
// Values refer to the document, which must outlive them. Any thread.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/server/api_error.h"

namespace memoir::server {

/// Keeps the order of keys, which templates see and schemas mean.
using Json = nlohmann::ordered_json;

/// Parses a body. Refuses what is not JSON in UTF-8, is no object, nests deeper than 100, or has objects with so many
/// keys that reading them, in time that grows with the square of their number, would take long.
Json parse_body(std::string_view body);

/// A whole number of 64 bits, also one written as 16.0, as some clients do.
std::optional<std::int64_t> whole_number(const Json& value);

/// Text of a value; bytes that are not UTF-8 become U+FFFD.
std::string dump(const Json& value);

/// An object's fields. place: where it stands in the request, "" for the request itself.
class Fields {
 public:
  explicit Fields(const Json& object, std::string place = {});

  /// The field, or null where it is absent or null.
  const Json* find(const char* name) const;
  /// "place.name"
  std::string name_of(const char* name) const;

  std::optional<double> number(const char* name, double low, double high) const;
  std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) const;
  std::optional<bool> flag(const char* name) const;
  std::optional<std::string> text(const char* name) const;
  /// The same, and absent is an error.
  std::string need_text(const char* name) const;
  const Json* list(const char* name) const;
  const Json* object(const char* name) const;
  /// One string or a list of strings; empty if absent.
  std::vector<std::string> texts(const char* name, std::size_t max_count) const;

  /// 400 "unsupported" where the field is there with another value than `harmless`.
  void refuse(const char* name, const Json& harmless, const char* why = "not supported") const;

 private:
  const Json& object_;
  std::string place_;
};

}  // namespace memoir::server
