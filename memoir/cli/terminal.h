#pragma once

// Standard streams: results on stdout, everything else on stderr.
// Threads: one at a time.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "memoir/base/error.h"

namespace memoir::cli {

/// stdout takes no more: nothing that follows can succeed.
class OutputError : public FileError {
 public:
  using FileError::FileError;
};

/// Writes to stdout and flushes. Throws OutputError if that fails: a full disk, a closed pipe.
void write_out(std::string_view text);

bool stdin_is_terminal();
bool stderr_is_terminal();

/// Makes what can be wrong with a standard stream an error of the read or write: a pipe that nobody reads
/// and a file that grows beyond the limit would kill the process, and a stream that is closed would become the next
/// file that is opened.
void prepare_standard_streams();

/// While it lives, the terminal on stdin, if there is one, does not show what is typed. It is kept for the next read.
class EchoOff {
 public:
  EchoOff();
  ~EchoOff();
  EchoOff(const EchoOff&) = delete;
  EchoOff& operator=(const EchoOff&) = delete;

 private:
  struct State;
  std::unique_ptr<State> before_;  // null where stdin is no terminal
};

/// The next line of stdin without its end; nullopt at the end of input, and where an InterruptFlag ended the wait.
/// on_continued: as wait_for_input() calls it.
/// Throws FileError if stdin can't be read.
std::optional<std::string> read_line(const std::function<void()>& on_continued = {});

/// The rest of a stream, which is called `name` in messages. Throws FileError if it can't be read, FormatError if it
/// has more than max_bytes.
std::string read_stream(std::FILE* stream, const std::string& name, std::uint64_t max_bytes);

/// A line on stderr that is written over: prompt progress. Does nothing where stderr is no terminal.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label) : label_(std::move(label)) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(int n_done, int n_total);
  void clear();

 private:
  std::string label_;
  bool is_shown_ = false;
};

}  // namespace memoir::cli
