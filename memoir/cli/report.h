#pragma once

// What the program says on stderr: lines that begin with its name, one for each thing, fit for a terminal whatever is
// in them. Threads: one at a time.

#include <exception>
#include <string_view>

namespace memoir::cli {

/// Writes "memoir: <text>" as one line, control characters written out (base/printable.h), cut where it is endless.
void report(std::string_view text);

/// The same for what an exception says.
void report(const std::exception& error);

}  // namespace memoir::cli
