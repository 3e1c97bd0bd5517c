#include "memoir/cli/signals.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT: sigaction is POSIX, not in <csignal>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>

namespace memoir::cli {
namespace {

std::atomic<int> interrupted{0};  // the signal's number
std::atomic<bool> continued{false};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free, "set in a handler");

// A byte in it wakes a wait for input, also where the signal came just before the wait or on another thread.
struct Pipe {
  int read_end = -1;
  int write_end = -1;
};
Pipe wake_up;

void wake() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t n_written = write(wake_up.write_end, &byte, 1);  // a full pipe wakes as well
}

void empty_pipe() {
  std::array<char, 64> bytes;
  while (read(wake_up.read_end, bytes.data(), bytes.size()) > 0) continue;
}

void handle_interrupt(int signal_number) {
  const int error = errno;
  int none = 0;
  interrupted.compare_exchange_strong(none, signal_number);  // an end is not taken back
  wake();
  errno = error;
}

void handle(int signal_number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaddset(&action.sa_mask, SIGTTOU);  // else changing the terminal could stop the process in the handler
  sigaction(signal_number, &action, nullptr);
}

// ---- The end of a server

std::atomic<int> n_stops{0};
Pipe stop_pipe;  // open until the process ends: a handler may run at any time

void end_server(int signal_number) {
  const int error = errno;
  if (n_stops.fetch_add(1) > 0) _exit(128 + signal_number);
  [[maybe_unused]] const ssize_t n_written = write(stop_pipe.write_end, "", 1);
  errno = error;
}

// ---- The terminal's settings

termios settings_before;              // when the guard was made
termios settings_used;                // when the process was stopped
std::atomic<bool> is_stopped{false};  // settings_used are to come back
std::atomic<bool> is_guarded{false};  // settings_before are to come back
constexpr std::array kEndingSignals = {SIGHUP, SIGQUIT, SIGTERM};
constexpr std::array kGuardedSignals = {SIGHUP, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT};
std::array<struct sigaction, kGuardedSignals.size()> actions_before;

// In the background the settings are the shell's.
bool is_in_foreground() {
  return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

void handle_end(int signal_number) {
  if (is_guarded && is_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &settings_before);
  signal(signal_number, SIG_DFL);
  raise(signal_number);  // blocked until this returns
}

constexpr std::array kOrderlyEnds = {SIGHUP, SIGTERM};

bool is_orderly_end(int signal_number) {
  return std::find(kOrderlyEnds.begin(), kOrderlyEnds.end(), signal_number) != kOrderlyEnds.end();
}

void handle_orderly_end(int signal_number) {
  const int error = errno;
  if (is_orderly_end(interrupted.exchange(signal_number))) handle_end(signal_number);
  wake();
  errno = error;
}

void take_terminal_back() {
  if (!is_in_foreground() || !is_stopped.exchange(false)) return;
  tcsetattr(STDIN_FILENO, TCSANOW, &settings_used);
  continued = true;
  wake();
}

void handle_continue(int) {
  const int error = errno;
  take_terminal_back();
  errno = error;
}

void handle_stop(int signal_number) {
  const int error = errno;
  if (is_in_foreground() && tcgetattr(STDIN_FILENO, &settings_used) == 0) {
    is_stopped = true;
    tcsetattr(STDIN_FILENO, TCSANOW, &settings_before);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
  sigset_t stop;
  sigset_t blocked;
  sigemptyset(&stop);
  sigaddset(&stop, signal_number);
  pthread_sigmask(SIG_UNBLOCK, &stop, &blocked);  // here it stops, unless there is no shell to continue it
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  handle(signal_number, handle_stop);
  take_terminal_back();
  errno = error;
}

}  // namespace

InterruptFlag::InterruptFlag(Ending ending) : ending_(ending) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  wake_up = {ends[0], ends[1]};
  for (const int end : ends) fcntl(end, F_SETFL, O_NONBLOCK);
  interrupted = 0;
  handle(SIGINT, handle_interrupt);
  for (const int number : kOrderlyEnds) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (ending_ == Ending::kInOrder && before.sa_handler != SIG_IGN) handle(number, handle_orderly_end);
  }
}

InterruptFlag::~InterruptFlag() {
  ::signal(SIGINT, SIG_DFL);
  for (const int number : kOrderlyEnds) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if (now.sa_handler == handle_orderly_end) ::signal(number, SIG_DFL);
  }
  close(wake_up.read_end);
  close(wake_up.write_end);
  wake_up = {};
}

int InterruptFlag::signal() const {
  return interrupted;
}
int InterruptFlag::ended_by() const {
  const int number = interrupted;
  return is_orderly_end(number) ? number : 0;
}
void InterruptFlag::clear() {
  empty_pipe();
  int interrupt = SIGINT;
  interrupted.compare_exchange_strong(interrupt, 0);
  continued = false;
}

void end_by_signal(int signal_number) {
  ::signal(signal_number, SIG_DFL);
  raise(signal_number);
  _exit(128 + signal_number);  // where it is blocked
}

TerminalGuard::TerminalGuard() {
  for (std::size_t i = 0; i < kGuardedSignals.size(); ++i) sigaction(kGuardedSignals[i], nullptr, &actions_before[i]);
  if (tcgetattr(STDIN_FILENO, &settings_before) != 0) return;
  is_guarded = true;
  for (std::size_t i = 0; i < kGuardedSignals.size(); ++i) {
    const int number = kGuardedSignals[i];
    if (actions_before[i].sa_handler != SIG_DFL) continue;
    const bool is_ending = std::find(kEndingSignals.begin(), kEndingSignals.end(), number) != kEndingSignals.end();
    handle(number, is_ending ? handle_end : number == SIGCONT ? handle_continue : handle_stop);
  }
}

TerminalGuard::~TerminalGuard() {
  is_guarded = false;
  for (std::size_t i = 0; i < kGuardedSignals.size(); ++i) sigaction(kGuardedSignals[i], &actions_before[i], nullptr);
}

bool wait_for_input(const std::function<void()>& on_continued) {
  if (wake_up.read_end < 0) return true;
  while (!interrupted) {
    if (continued.exchange(false) && on_continued) on_continued();
    fd_set streams;
    FD_ZERO(&streams);
    FD_SET(STDIN_FILENO, &streams);
    FD_SET(wake_up.read_end, &streams);
    const int n_ready = select(std::max(STDIN_FILENO, wake_up.read_end) + 1, &streams, nullptr, nullptr, nullptr);
    if (n_ready < 0 && errno == EINTR) continue;
    if (n_ready < 0 || !FD_ISSET(wake_up.read_end, &streams)) return true;  // an error shows again in the read
    empty_pipe();  // the flags say why: they are set before the byte
  }
  return false;
}

StopSignals::StopSignals() {
  std::array<int, 2> ends;
  if (pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  stop_pipe = {ends[0], ends[1]};
  struct sigaction action {};
  action.sa_handler = end_server;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

void StopSignals::wait() const {
  char byte;
  while (read(stop_pipe.read_end, &byte, 1) < 0 && errno == EINTR) continue;
}

}  // namespace memoir::cli
