#pragma once

// The inside of a JSON string, byte by byte: characters in UTF-8, escapes, surrogates in pairs. No state, any thread.

#include <cstdint>

namespace memoir::engine {

/// Where in a string a text stands. kHexN: N hexadecimal digits of \u are missing.
enum class JsonStringState {
  kPlain,
  kEscape,
  kHex4,
  kHex3,
  kHex2,
  kHex1,
  kAfterD,  // \ud: a surrogate, or a Hangul syllable
  kHigh2,   // of a first surrogate two digits are missing
  kHigh1,
  kWantEscape,  // a first surrogate was read: the second must follow
  kWantU,
  kWantD,
  kWantLow,
  kTail1,  // UTF-8: so many bytes are missing
  kTail2,
  kTail3,
  kAfterE0,
  kAfterEd,
  kAfterF0,
  kAfterF4,
  kBad,
};

/// The state behind `byte`, kBad if it can't stand there. A quote in kPlain, which ends the string, is the caller's
/// affair: here it is a character like others.
JsonStringState step_json_string(JsonStringState state, std::uint8_t byte);

}  // namespace memoir::engine
