#pragma once

// JSON as model files hold it: what python's json module writes, from people one doesn't know.
//
// Beyond the standard it takes the bare tokens Infinity, -Infinity and NaN, and turns the object
// {"__float__": "Infinity"} (or "-Infinity", "NaN"), which newer files have instead, into the same number.
// Of a key that is there twice the last one counts, as in python.
// What a person writes or memoir itself prints is plain JSON: parse_ordered_json and json_text.
// parse_ordered_model_json and model_json_text are for a model's file that is to be written again.
// No state, any thread.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace memoir {

/// Levels of objects and lists parse_json accepts, so that whoever walks the result may recurse.
inline constexpr int kMaxJsonDepth = 100;

/// Parses `text`; `path` is named in messages. Throws FormatError where it is not JSON (saying at which line and
/// column), not UTF-8, nested deeper than kMaxJsonDepth, or holds a number that no double can.
nlohmann::json parse_json(std::string_view text, const std::string& path);

/// The same, keeping the order of keys.
nlohmann::ordered_json parse_ordered_model_json(std::string_view text, const std::string& path);

/// `value` as python's json.dumps(indent=2) has it, with Infinity, -Infinity and NaN as bare tokens, which python and
/// parse_json read. Bytes that are no UTF-8 become U+FFFD. `value`: nested no deeper than kMaxJsonDepth.
std::string model_json_text(const nlohmann::ordered_json& value);

/// As parse_json, for JSON as the standard has it, keeping the order of keys.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& path);

/// The parser's message without its own numbering, "[json.exception.parse_error.101] ". It quotes what was read last.
std::string json_reason(const nlohmann::json::exception& error);

/// `value` on one line; bytes that are no UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace memoir
