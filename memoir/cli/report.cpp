#include "memoir/cli/report.h"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <new>
#include <system_error>

#include "memoir/base/error.h"
#include "memoir/base/printable.h"

namespace memoir::cli {
namespace {

// Whether the system had no thread to give, which is all that std::thread says of it.
bool is_of_threads(const std::exception& error) {
  const auto* failure = dynamic_cast<const std::system_error*>(&error);
  return failure && failure->code() == std::errc::resource_unavailable_try_again;
}

}  // namespace

std::string_view reason(std::string_view message) {
  const std::size_t end = message.find("] ");
  if (!message.starts_with('[') || end == std::string_view::npos) return message;
  const auto is_of_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  const std::string_view name = message.substr(1, end - 1);
  return std::all_of(name.begin(), name.end(), is_of_name) ? message.substr(end + 2) : message;
}

void report(std::string_view text) {
  constexpr std::size_t kMaxCharacters = 8000;  // room for the paths that some messages list
  std::cerr << "memoir: " << printable(text, kMaxCharacters) << '\n';
}

void report(const std::exception& error) {
  if (is_of_threads(error)) {
    return report("can't start a thread, for which memory or the number of them is too small: " +
                  std::string(error.what()));
  }
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const bool names_a_file = dynamic_cast<const InputError*>(&error) != nullptr;  // which may be called anything
  report(is_memory ? "out of memory" : names_a_file ? error.what() : reason(error.what()));
}

}  // namespace memoir::cli
