#pragma once

// Standard streams: results on stdout, everything else on stderr, and what to do when someone presses Ctrl-C.

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace memoir::cli {

/// Writes to stdout and flushes. Throws FileError if that fails: a full disk, a closed pipe.
void write_out(std::string_view text);

bool stdin_is_terminal();
bool stderr_is_terminal();

/// Makes a closed pipe an error of the write, not a signal that kills the process.
void ignore_broken_pipes();

/// While it lives, Ctrl-C sets a flag instead of ending the process. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  /// True once Ctrl-C was pressed, until clear().
  bool is_set() const;
  void clear();
};

/// The next line of stdin without its end; nullopt at the end of input. An interrupted wait gives an empty line.
std::optional<std::string> read_line();

/// All of a stream.
std::string read_all(std::istream& stream);

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
