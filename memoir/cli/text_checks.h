#pragma once

// Checks of texts on the command line.

#include <CLI/CLI.hpp>
#include <regex>
#include <string>

namespace memoir::cli {

/// A text that is not empty, for options whose absence means something else: --prefix-cache-dir "$DIR" with DIR unset
/// is a slip. For Option::check.
inline CLI::Validator not_empty() {
  return CLI::Validator([](const std::string& text) { return text.empty() ? "the text is empty" : std::string(); }, "");
}

/// Where pages come from, as browsers write it in Origin: scheme://host or scheme://host:port, without a path; or * for
/// all. For Option::check.
inline CLI::Validator page_origin() {
  return CLI::Validator(
      [](const std::string& text) {
        static const std::regex form(
            R"([a-z][a-z0-9+.-]{0,31}://([a-z0-9._-]{1,255}|\[[0-9a-f:.]{2,64}\])(:[0-9]{1,5})?)");
        const bool is_origin = text == "*" || (text.size() < 400 && std::regex_match(text, form));
        return is_origin ? std::string() : "expected * or scheme://host[:port] in small letters, without a path";
      },
      "");
}

}  // namespace memoir::cli
