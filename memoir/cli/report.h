#pragma once

// What the program says on stderr: lines that begin with its name, one for each thing, fit for a terminal whatever is
// in them. Threads: one at a time.

#include <exception>
#include <string_view>

namespace memoir::cli {

/// A message without the function that it begins with: "[cache.update] keys has ..." names what no user calls.
std::string_view reason(std::string_view message);

/// Writes "memoir: <text>" as one line, control characters written out (base/printable.h), cut where it is endless.
void report(std::string_view text);

/// The same for what an exception says.
void report(const std::exception& error);

}  // namespace memoir::cli
