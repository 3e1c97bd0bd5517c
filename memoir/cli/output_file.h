#pragma once

// A file that a command writes: whole or not at all.

// Threads: one at a time.

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace memoir::cli {

/// Throws UsageError if `path`, given to `option`, can't name a file: it is empty, ends in a slash or is a directory;
/// FileError if its folder does not exist or can't be written to, its symbolic links lead in a circle, or it is a
/// descriptor or a device that is not open for writing. For use before long work; makes nothing.
void check_output_path(const std::string& option, const std::string& path);

/// The same for what is always written aside and renamed (ReplacedFile): devices, pipes and descriptors are
/// UsageErrors.
void check_replaced_path(const std::string& option, const std::string& path);

/// An open file that goes front to back, so that it may be a pipe.
class OutputFile {
 public:
  /// Throws FileError naming the path, with the system's reason, if a write fails.
  void write(std::string_view bytes);
  void flush();

 private:
  friend void write_file(const std::string& path, const std::function<void(OutputFile&)>& write);
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  /// `file` may be null, errno then says why. `path`: what messages name.
  OutputFile(std::FILE* file, std::string path);
  void close();

  std::unique_ptr<std::FILE, CloseFile> file_;
  std::string path_;
};

/// Calls `write` with an open file:
///   - /dev/stdout, /dev/fd/N, /proc/self/fd/N and links to them: the open descriptor itself, as a shell's redirection
///     left it; what is in its file stays;
///   - a device, a FIFO or the like: that;
///   - else one beside `path`, renamed to it when `write` is done and removed when anything fails or a signal ends the
///     process; a symbolic link stays, what it points to is replaced. One at a time.
/// Throws FileError naming `path` if it can't be written, and what `write` throws.
void write_file(const std::string& path, const std::function<void(OutputFile& file)>& write);

}  // namespace memoir::cli
