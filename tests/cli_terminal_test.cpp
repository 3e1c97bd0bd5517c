// `memoir chat` at a terminal: a pseudo-terminal (POSIX) whose other end is the test's.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace memoir {
namespace {

constexpr const char* kCtrlA = "\x01";
constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kCtrlZ = "\x1a";
constexpr const char* kUp = "\x1b[A";

class ChatTerminal : public testing::Test {
 protected:
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (terminal_ >= 0) close(terminal_);
    terminal_ = -1;
    pid_ = -1;
    shown_.clear();
  }

  void start(std::vector<std::string> options = {}, const char* type = "vt100") {
    options.insert(options.begin(), {MEMOIR_PROGRAM, "chat", "-m", MEMOIR_TEST_SMOLLM2, "--temp", "0"});
    run(std::move(options), type);
    expect("> ");
  }

  // Runs a program with the terminal as its own.
  void run(std::vector<std::string> words, const char* type = "vt100") {
    terminal_ = posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_GE(terminal_, 0);
    fcntl(terminal_, F_SETFD, FD_CLOEXEC);  // so that the program is hung up on when the test ends early
    fcntl(terminal_, F_SETFL, O_NONBLOCK);
    ASSERT_EQ(grantpt(terminal_), 0);
    ASSERT_EQ(unlockpt(terminal_), 0);
    const std::string name = ptsname(terminal_);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    setenv("TERM", type, 1);
    setenv("EDITRC", "/dev/null", 1);
    pid_ = fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      setsid();
      const int other_end = open(name.c_str(), O_RDWR);
      ioctl(other_end, TIOCSCTTY, 0);
      for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(other_end, stream);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }

  // Reads what is shown meanwhile: with its buffers full both ways a terminal stands still.
  void type(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      pollfd ready{terminal_, POLLIN | POLLOUT, 0};
      ASSERT_GT(poll(&ready, 1, kPatienceMs), 0);
      if ((ready.revents & POLLIN) != 0) read_more();
      if ((ready.revents & POLLOUT) == 0) continue;
      const ssize_t n_bytes = write(terminal_, text.data() + at, std::min(kPiece, text.size() - at));
      ASSERT_TRUE(n_bytes > 0 || errno == EAGAIN);
      if (n_bytes > 0) at += static_cast<std::size_t>(n_bytes);
    }
  }

  bool shows_and_collects_lines() const {
    termios settings{};
    EXPECT_EQ(tcgetattr(terminal_, &settings), 0);
    return (settings.c_lflag & ECHO) != 0 && (settings.c_lflag & ICANON) != 0;
  }

  bool has_shown(const std::string& text) const { return shown_.find(text) != std::string::npos; }

  void send(int signal_number) const { kill(pid_, signal_number); }

  // Reads until `text` is there, and returns all that came before it since the last call.
  std::string expect(const std::string& text) {
    while (shown_.find(text) == std::string::npos) {
      if (!read_more()) {
        ADD_FAILURE() << "no \"" << text << "\" in: " << shown_;
        return "";
      }
    }
    const std::size_t at = shown_.find(text);
    const std::string before = shown_.substr(0, at);
    shown_.erase(0, at + text.size());
    return before;
  }

  // True if something came in that time.
  bool read_more(int patience_ms = kPatienceMs) {
    pollfd ready{terminal_, POLLIN, 0};
    if (poll(&ready, 1, patience_ms) <= 0) return false;
    char bytes[4096];
    const ssize_t n_bytes = read(terminal_, bytes, sizeof(bytes));
    if (n_bytes <= 0) return false;
    shown_.append(bytes, static_cast<std::size_t>(n_bytes));
    return true;
  }

  int exit_status() {
    while (read_more()) continue;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // What stands behind `key` in the figures under an answer; they are shown at a terminal.
  int figure(const std::string& figures, const std::string& key) const {
    const std::size_t at = figures.find(key + " ");
    return at == std::string::npos ? -1 : std::atoi(figures.c_str() + at + key.size());
  }

 private:
  static constexpr int kPatienceMs = 120'000;  // only a hang is longer
  static constexpr std::size_t kPiece = 256;

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
};

TEST_F(ChatTerminal, CtrlDLeaves) {
  start();
  type(kCtrlD);
  EXPECT_EQ(exit_status(), 0);
}

TEST_F(ChatTerminal, CtrlCAtThePromptLeaves) {
  start();
  type(kCtrlC);
  EXPECT_EQ(exit_status(), 0);
}

TEST_F(ChatTerminal, LeavesWithoutLineEditingToo) {
  start({}, "dumb");
  type(kCtrlC);
  EXPECT_EQ(exit_status(), 0);
}

TEST_F(ChatTerminal, ExitLeaves) {
  start();
  type("/exit\r");
  EXPECT_EQ(exit_status(), 0);
}

TEST_F(ChatTerminal, LinesCanBeEditedAndCalledBack) {
  start();
  type(std::string("help") + kCtrlA + "/\r");  // Ctrl-A: to the line's beginning
  expect("a new conversation");
  expect("> ");
  type(std::string(kUp) + "\r");
  expect("a new conversation");
  expect("> ");
  type(kCtrlD);
  EXPECT_EQ(exit_status(), 0);
}

TEST_F(ChatTerminal, CtrlCStopsAnAnswerAndKeepsTheConversation) {
  start({"-n", "6000"});  // to which SmolLM2, greedy, would repeat itself
  type("Count: 1 2 3 4 5 6 7 8 9 10 11 12. Go on for ever.\r");
  expect("for ever.\r\n");
  expect(" ");  // the answer has begun
  type(kCtrlC);
  expect("[");
  const std::string first = expect("]");
  EXPECT_LT(figure(first, ", tokens"), 6000) << first;
  expect("> ");
  type("Thanks.\r");
  expect("Thanks.\r\n");
  expect(" ");
  type(kCtrlC);
  expect("[");
  EXPECT_GE(figure(expect("]"), "cached_tokens"), figure(first, "prompt_tokens"));
  expect("> ");
  type(kCtrlD);
  EXPECT_EQ(exit_status(), 0);
}

TEST_F(ChatTerminal, WhatIsTypedDuringAnAnswerIsShownBehindIt) {
  start({"-n", "24"});
  type("What is the capital of France?\r");
  expect("The capital");
  type(std::string("/help\r") + kCtrlD);
  EXPECT_EQ(expect("]").find("/help"), std::string::npos);
  expect("> ");
  expect("/help");
  expect("a new conversation");
  expect("> ");
  EXPECT_EQ(exit_status(), 0);
}

TEST_F(ChatTerminal, EndsBySignalsAndLeavesTheTerminalAsItWas) {
  for (const int number : {SIGTERM, SIGHUP, SIGQUIT}) {
    for (const bool in_answer : {false, true}) {
      SCOPED_TRACE(std::to_string(number) + (in_answer ? " in an answer" : " at the prompt"));
      start({"-n", "6000"});
      if (in_answer) {
        type("Count: 1 2 3 4 5 6 7 8 9 10 11 12. Go on for ever.\r");
        expect("for ever.\r\n");
        expect(" ");
      }
      EXPECT_FALSE(shows_and_collects_lines());
      send(number);
      EXPECT_EQ(exit_status(), 128 + number);
      EXPECT_TRUE(shows_and_collects_lines());
      TearDown();
    }
  }
}

TEST_F(ChatTerminal, CtrlZGivesTheTerminalBackAndFgGoesOnWithTheLine) {
  run({"/bin/sh", "-c", "set -m; \"$@\"; stty -a; echo stopped; fg; echo ended $?", "sh", MEMOIR_PROGRAM, "chat", "-m",
       MEMOIR_TEST_SMOLLM2});
  expect("> ");
  type("/he");
  expect("/he");
  type(kCtrlZ);
  const std::string settings = expect("stopped");
  EXPECT_NE(settings.find(" icanon"), std::string::npos) << settings;
  EXPECT_NE(settings.find(" echo "), std::string::npos) << settings;
  expect("> /he");
  type("lp\r");
  expect("a new conversation");
  expect("> ");
  type(kCtrlD);
  expect("ended 0");
}

TEST_F(ChatTerminal, CtrlZWithoutAShellChangesNothing) {
  start();
  type("/he");
  expect("/he");
  type(kCtrlZ);
  type("lp\r");
  expect("a new conversation");
  expect("> ");
  EXPECT_FALSE(shows_and_collects_lines());
  type(kCtrlD);
  EXPECT_EQ(exit_status(), 0);
  EXPECT_TRUE(shows_and_collects_lines());
}

TEST_F(ChatTerminal, AByteThatBeginsNoCharacterDoesNotSwallowTheNext) {
  start();
  type("/frob\xC3\r");
  expect("unknown command /frob,");
  expect("> ");
  type("/fr\xE2\x82ob\xFF\xC3\xE2\x82\xAC\r");
  expect("unknown command /frob\xE2\x82\xAC,");
  expect("> ");
  type(kCtrlD);
  EXPECT_EQ(exit_status(), 0);
}

// Else Ctrl-D, and what is typed ahead, would be taken by the terminal itself.
TEST_F(ChatTerminal, KeysAreKeptWhileAMessageIsFoundTooLong) {
  start();
  type(std::string(30000, '7'));  // a token each, beyond the context of 8192
  type("\r");
  int n_looks = 0;
  int n_as_before = 0;  // it is so for an instant when the line ends, not all the while
  for (; n_looks < 60'000 && !has_shown("shorten it"); ++n_looks) {
    if (shows_and_collects_lines()) ++n_as_before;
    read_more(1);
  }
  expect("shorten it");
  EXPECT_LE(n_as_before, 2 + n_looks / 4);
  type(kCtrlD);
  EXPECT_EQ(exit_status(), 0);  // at a terminal
}

}  // namespace
}  // namespace memoir
