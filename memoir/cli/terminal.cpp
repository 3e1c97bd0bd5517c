#include "memoir/cli/terminal.h"

#include <signal.h>  // NOLINT: sigaction is POSIX, not in <csignal>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>

#include "memoir/base/error.h"

namespace memoir::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

void handle_interrupt(int) {
  interrupted = true;
}

}  // namespace

void write_out(std::string_view text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!is_written) throw FileError("stdout", "", std::string("can't write: ") + std::strerror(errno));
}

bool stdin_is_terminal() {
  return isatty(STDIN_FILENO) != 0;
}
bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) != 0;
}

void ignore_broken_pipes() {
  signal(SIGPIPE, SIG_IGN);
}

InterruptFlag::InterruptFlag() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = handle_interrupt;  // without SA_RESTART: a read that waits for a line returns
  sigaction(SIGINT, &action, nullptr);
}

InterruptFlag::~InterruptFlag() {
  signal(SIGINT, SIG_DFL);
}

bool InterruptFlag::is_set() const {
  return interrupted;
}
void InterruptFlag::clear() {
  interrupted = false;
}

std::optional<std::string> read_line() {
  std::string line;
  errno = 0;
  int c = std::getchar();
  for (; c != EOF && c != '\n'; c = std::getchar()) line += static_cast<char>(c);
  if (c == EOF && errno == EINTR) {
    std::clearerr(stdin);
    return "";
  }
  if (c == EOF && line.empty()) return std::nullopt;
  return line;
}

std::string read_all(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), {}};
}

void ProgressLine::show(int n_done, int n_total) {
  if (!stderr_is_terminal()) return;
  std::cerr << '\r' << label_ << ' ' << n_done << '/' << n_total << "\x1b[K" << std::flush;
  is_shown_ = true;
}

void ProgressLine::clear() {
  if (is_shown_) std::cerr << "\r\x1b[K" << std::flush;
  is_shown_ = false;
}

}  // namespace memoir::cli
