// `memoir chat` at a terminal: a pseudo-terminal (POSIX) whose other end is the test's.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace memoir {
namespace {

constexpr const char* kCtrlA = "\x01";
constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kUp = "\x1b[A";

class ChatTerminal : public testing::Test {
 protected:
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (terminal_ >= 0) close(terminal_);
  }

  void start(std::vector<std::string> options = {}, const char* type = "vt100") {
    terminal_ = posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_GE(terminal_, 0);
    fcntl(terminal_, F_SETFD, FD_CLOEXEC);  // so that the program is hung up on when the test ends early
    ASSERT_EQ(grantpt(terminal_), 0);
    ASSERT_EQ(unlockpt(terminal_), 0);
    const std::string name = ptsname(terminal_);
    options.insert(options.begin(), {MEMOIR_PROGRAM, "chat", "-m", MEMOIR_TEST_SMOLLM2, "--temp", "0"});
    std::vector<char*> arguments;
    for (std::string& option : options) arguments.push_back(option.data());
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
    expect("> ");
  }

  void type(const std::string& text) {
    ASSERT_EQ(write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

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
  bool read_more() {
    constexpr int kPatienceMs = 120'000;  // only a hang is longer
    pollfd ready{terminal_, POLLIN, 0};
    if (poll(&ready, 1, kPatienceMs) <= 0) return false;
    char bytes[4096];
    const ssize_t n_bytes = read(terminal_, bytes, sizeof(bytes));
    if (n_bytes <= 0) return false;
    shown_.append(bytes, static_cast<std::size_t>(n_bytes));
    return true;
  }

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

}  // namespace
}  // namespace memoir
