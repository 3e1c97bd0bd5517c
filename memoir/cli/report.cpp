#include "memoir/cli/report.h"

#include <iostream>
#include <new>

#include "memoir/base/printable.h"

namespace memoir::cli {

void report(std::string_view text) {
  constexpr std::size_t kMaxCharacters = 8000;  // room for the paths that some messages list
  std::cerr << "memoir: " << printable(text, kMaxCharacters) << '\n';
}

void report(const std::exception& error) {
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  report(std::string_view(is_memory ? "out of memory" : error.what()));
}

}  // namespace memoir::cli
