#pragma once

// A file that a command writes: whole or not at all.

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

namespace memoir::cli {

/// Throws UsageError if `path`, given to `option`, can't name a file: it is empty, ends in a slash or is a directory;
/// FileError if its folder does not exist. For use before long work.
void check_output_path(const std::string& option, const std::string& path);

/// Calls `write` with an open file. Where `path` names a device, a FIFO or the like, that is the file itself. Else it
/// is one beside it, renamed to `path` when `write` is done and removed when anything fails or a signal ends the
/// process; a symbolic link stays, what it points to is replaced. One at a time.
/// Throws FileError naming `path` if a write failed, and what `write` throws.
void write_file(const std::string& path, const std::function<void(std::FILE* file)>& write);

}  // namespace memoir::cli
