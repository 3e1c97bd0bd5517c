#pragma once

// Lines typed at a terminal, with the keys people expect: cursor keys, the history of this run, and what ~/.editrc
// says. By libedit. It shows the prompt and the line on stderr.

#include <memory>
#include <optional>
#include <string>

namespace memoir::cli {

class LineEditor {
 public:
  /// True if stdin and stderr are a terminal on which the cursor can be moved.
  static bool is_usable();

  /// One at a time.
  explicit LineEditor(const std::string& prompt);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// The next line without its end; nullopt at the end of input, and where an InterruptFlag ended the wait.
  /// From the first call on, what is typed between calls is not shown and kept for the next, each key of it (Ctrl-D is
  /// one); with the editor's end the terminal is as it was.
  std::optional<std::string> read();

 private:
  void keep_keys() const;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace memoir::cli
