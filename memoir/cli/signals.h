#pragma once

// Signals. During a chat Ctrl-C stops an answer instead of the program, and whatever stops or ends the program leaves
// the terminal as it was. What has something to save does so before it ends. A server ends what it has begun.
// Threads: handlers run on any; all else is for one thread, in a chat the one that reads stdin.

#include <functional>

namespace memoir::cli {

/// What a termination (SIGTERM) and a hangup (SIGHUP) do: end the process, as where nobody takes them, or set the flag,
/// so that there is time to save. The second of them ends it at once either way.
enum class Ending { kAtOnce, kInOrder };

/// While it lives, Ctrl-C sets a flag instead of ending the process. One at a time.
class InterruptFlag {
 public:
  /// In order: unless the signal is ignored, as nohup has it. Make it before a TerminalGuard.
  explicit InterruptFlag(Ending ending = Ending::kAtOnce);
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  /// True once Ctrl-C was pressed, until clear(), and once the process is to end.
  bool is_set() const { return signal() != 0; }
  /// The number of the signal that set it; 0 if none did.
  int signal() const;
  /// SIGTERM or SIGHUP where the process is to end; else 0.
  int ended_by() const;
  void clear();

 private:
  Ending ending_;
};

/// Ends the process as the signal does where nobody takes it: the shell has 128 + its number for a status. What is to
/// be flushed must have been.
[[noreturn]] void end_by_signal(int signal_number);

/// While it lives, a hangup, Ctrl-\ and a termination put the terminal on stdin back to what it was when the guard was
/// made, and then end the process as they always do. Ctrl-Z does so too before the process stops; when it goes on in
/// the foreground the terminal is again as the program had it. Signals that are ignored (nohup) stay so. One at a time,
/// and nothing where stdin is no terminal.
class TerminalGuard {
 public:
  TerminalGuard();
  ~TerminalGuard();
  TerminalGuard(const TerminalGuard&) = delete;
  TerminalGuard& operator=(const TerminalGuard&) = delete;
};

/// Takes Ctrl-C and a termination from now on, until the process ends. The second of them ends it at once, with 128 +
/// the signal's number as its status. One in a process. Throws std::system_error if the system has no pipe for it.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns when the first has come.
  void wait() const;
};

/// Waits until stdin has something to read or is at its end. False if an InterruptFlag is set, at once or meanwhile.
/// on_continued: called when the process goes on after Ctrl-Z meanwhile, to show again what others wrote over.
bool wait_for_input(const std::function<void()>& on_continued);

}  // namespace memoir::cli
