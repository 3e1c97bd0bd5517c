#pragma once

// Standard streams: results on stdout, everything else on stderr, and what to do when someone presses Ctrl-C.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace memoir::cli {

/// Writes to stdout and flushes. Throws FileError if that fails: a full disk, a closed pipe.
void write_out(std::string_view text);

bool stdin_is_terminal();
bool stderr_is_terminal();

/// Makes what can be wrong with a standard stream an error of the read or write: a pipe that nobody reads would kill
/// the process, and a stream that is closed would become the next file that is opened.
void prepare_standard_streams();

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

/// Waits until stdin has something to read or is at its end. False if an InterruptFlag is set, at once or meanwhile.
bool wait_for_input();

/// While it lives, the terminal on stdin, if there is one, does not show what is typed. It is kept for the next read.
class EchoOff {
 public:
  /// by_key: what reads next takes each key as it is typed (a LineEditor), so the terminal keeps all of them, Ctrl-D
  /// too.
  explicit EchoOff(bool by_key);
  ~EchoOff();
  EchoOff(const EchoOff&) = delete;
  EchoOff& operator=(const EchoOff&) = delete;

 private:
  struct State;
  std::unique_ptr<State> before_;  // null where stdin is no terminal
};

/// The next line of stdin without its end; nullopt at the end of input, and where an InterruptFlag ended the wait.
/// Throws FileError if stdin can't be read.
std::optional<std::string> read_line();

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
