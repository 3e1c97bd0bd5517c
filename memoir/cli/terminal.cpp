#include "memoir/cli/terminal.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT: sigaction is POSIX, not in <csignal>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/cli/signals.h"

namespace memoir::cli {
namespace {

[[noreturn]] void fail_to_read(const std::string& name) {
  throw FileError(name, "", std::string("can't read: ") + std::strerror(errno));
}

}  // namespace

void write_out(std::string_view text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!is_written) throw OutputError("stdout", "", std::string("can't write: ") + std::strerror(errno));
}

bool stdin_is_terminal() {
  return isatty(STDIN_FILENO) != 0;
}
bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) != 0;
}

void prepare_standard_streams() {
  for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Opened the wrong way round, so that its reads or writes fail. open() takes the lowest number that is free.
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

struct EchoOff::State {
  termios settings;
};

EchoOff::EchoOff() {
  State state{};
  if (tcgetattr(STDIN_FILENO, &state.settings) != 0) return;
  before_ = std::make_unique<State>(state);
  state.settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  tcsetattr(STDIN_FILENO, TCSANOW, &state.settings);
}

EchoOff::~EchoOff() {
  if (before_) tcsetattr(STDIN_FILENO, TCSANOW, &before_->settings);
}

std::optional<std::string> read_line(const std::function<void()>& on_continued) {
  static std::string unread;
  std::size_t n_searched = 0;
  while (true) {
    if (const std::size_t end = unread.find('\n', n_searched); end != std::string::npos) {
      std::string line = unread.substr(0, end);
      unread.erase(0, end + 1);
      return line;
    }
    n_searched = unread.size();
    if (!wait_for_input(on_continued)) return std::nullopt;
    std::array<char, 1 << 12> part;
    const ssize_t n_read = read(STDIN_FILENO, part.data(), part.size());
    if (n_read < 0 && errno != EINTR) fail_to_read("stdin");
    if (n_read == 0) return unread.empty() ? std::nullopt : std::optional(std::exchange(unread, ""));
    if (n_read > 0) unread.append(part.data(), static_cast<std::size_t>(n_read));
  }
}

std::string read_stream(std::FILE* stream, const std::string& name, std::uint64_t max_bytes) {
  std::string text;
  std::array<char, 1 << 16> part;
  while (const std::size_t n_bytes = std::fread(part.data(), 1, part.size(), stream)) {
    text.append(part.data(), n_bytes);
    if (text.size() > max_bytes) {
      throw FormatError(name, "", "has more than the " + std::to_string(max_bytes) + " bytes expected of such a file");
    }
  }
  if (std::ferror(stream) != 0) fail_to_read(name);
  return text;
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
