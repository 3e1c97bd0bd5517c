#pragma once

// Typed access to the keys of a JSON object, with errors that name file and key. null counts as absent.
// Holds references: the object and the path must outlive it.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace memoir::model {

struct ModelConfig;

class ConfigFields {
 public:
  /// prefix: put before keys in messages ("rope_scaling."). outer: where to look for a key that `object` has not, may
  /// be null. Throws FormatError if `object` is not an object.
  ConfigFields(const nlohmann::json& object, const std::string& path, std::string prefix = "",
               const ConfigFields* outer = nullptr);

  /// nullptr where absent or null.
  const nlohmann::json* find(std::string_view key) const;

  /// nullopt where absent. Throws FormatError on another type, a value outside [min, max], or a number not finite.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<double> positive(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  std::optional<std::vector<double>> positives(std::string_view key) const;
  std::optional<std::vector<std::string>> strings(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key, std::int64_t min, std::int64_t max) const;

  /// The same for keys that must be there; a FormatError names one that is not.
  bool required_boolean(std::string_view key) const;
  double required_number(std::string_view key) const;

  /// A size that must be there: 1 to max.
  int size(std::string_view key, std::int64_t max) const;

  /// Throws FormatError / UnsupportedError about a key, or about the object itself where the key is empty.
  [[noreturn]] void fail(std::string_view key, const std::string& reason) const;
  [[noreturn]] void refuse(std::string_view key, const std::string& reason) const;

  const std::string& path() const { return path_; }

 private:
  std::string full_name(std::string_view key) const;

  const nlohmann::json& object_;
  const std::string& path_;
  std::string prefix_;
  const ConfigFields* outer_;
};

/// The keys of a family (ModelConfig::family_keys). `config` must outlive them.
ConfigFields family_fields(const ModelConfig& config);

}  // namespace memoir::model
