// Connections beyond the limit, over pairs of sockets and with times that are given: nothing waits.

#include "memoir/server/crowd.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace memoir::server {
namespace {

using namespace std::chrono_literals;

class CrowdTest : public testing::Test {
 protected:
  ~CrowdTest() override {
    for (const int fd : clients_) ::close(fd);
  }

  // A new connection's number, in the crowd at the time now_.
  std::size_t join(const std::string& sent = "") {
    std::array<int, 2> pair{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
    clients_.push_back(pair[0]);
    send(clients_.size() - 1, sent);
    crowd_.add(pair[1], now_);
    return clients_.size() - 1;
  }
  void send(std::size_t client, const std::string& text) {
    EXPECT_EQ(::send(clients_[client], text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  void serve() {
    std::vector<pollfd> entries;
    crowd_.append_to(entries);
    EXPECT_GE(::poll(entries.data(), entries.size(), 0), 0);
    crowd_.serve(entries, now_);
  }
  // What has come until now; "(closed)" behind it where that was all.
  std::string received(std::size_t client) {
    std::string text;
    std::array<char, 1000> bytes;
    for (;;) {
      const ssize_t n = ::recv(clients_[client], bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (n < 0) return text;
      if (n == 0) return text + "(closed)";
      text.append(bytes.data(), static_cast<std::size_t>(n));
    }
  }

  SteadyTime now_ = std::chrono::steady_clock::now();
  std::vector<int> clients_;
  static ConnectionLimits limits() {
    ConnectionLimits limits;
    limits.max_head_bytes = 1000;
    return limits;
  }

  Crowd crowd_{limits(), [](const std::string& request_line) { return "<" + request_line + ">"; }};
};

TEST_F(CrowdTest, SilentOnesKeepNobodyWaiting) {
  std::vector<std::size_t> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(join());
  EXPECT_EQ(received(join("GET /health HTTP/1.1\r\nHost: x\r\n\r\n")), "<GET /health HTTP/1.1>(closed)");
  const std::size_t late = join();
  send(late, "GET /late HTTP/1.1\r\nHost: x\r\n\r\n");
  serve();
  EXPECT_EQ(received(late), "<GET /late HTTP/1.1>(closed)");
  for (const std::size_t one : silent) EXPECT_EQ(received(one), "");
}

TEST_F(CrowdTest, AHeadMayComeInPieces) {
  const std::size_t client = join("GET /hea");
  for (const char* piece : {"lth HTTP/1.1\r", "\nHost: x\r\n\r"}) {
    serve();
    EXPECT_EQ(received(client), "");
    send(client, piece);
  }
  serve();
  EXPECT_EQ(received(client), "");
  send(client, "\n");
  serve();
  EXPECT_EQ(received(client), "<GET /health HTTP/1.1>(closed)");
}

TEST_F(CrowdTest, TheOldestGoesWhenThereAreTooMany) {
  const std::size_t first = join();
  for (std::size_t i = 1; i < Crowd::kMax; ++i) join();
  EXPECT_EQ(received(first), "");
  const std::size_t last = join();
  EXPECT_EQ(crowd_.size(), Crowd::kMax);
  EXPECT_EQ(received(first), "<>(closed)");
  EXPECT_EQ(received(first + 1), "");
  EXPECT_EQ(received(last), "");
}

TEST_F(CrowdTest, EachIsRefusedWhenItsTimeIsOver) {
  const std::size_t early = join("GET /hea");
  now_ += Crowd::kWait / 2;
  const std::size_t late = join();
  EXPECT_EQ(crowd_.next_deadline(), now_ + Crowd::kWait / 2);
  now_ += Crowd::kWait / 2;
  serve();
  EXPECT_EQ(received(early), "<>(closed)");
  EXPECT_EQ(received(late), "");
  now_ += Crowd::kWait / 2;
  serve();
  EXPECT_EQ(received(late), "<>(closed)");
  EXPECT_EQ(crowd_.size(), 0U);
}

// Closed at once, a connection with unread bytes would be reset, and the answer lost on the way.
TEST_F(CrowdTest, WhatIsStillSentIsReadAndDropped) {
  const std::size_t client = join("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n");
  EXPECT_EQ(crowd_.size(), 1U);
  for (int i = 0; i < 300; ++i) {  // more than a socket holds unless it is read
    send(client, std::string(1000, 'x'));
    serve();
  }
  EXPECT_EQ(received(client), "<POST / HTTP/1.1>(closed)");
  ::shutdown(clients_[client], SHUT_WR);
  while (crowd_.size() > 0) serve();
}

TEST_F(CrowdTest, WhatIsNoRequestIsRefusedAndWhoLeavesIsForgotten) {
  EXPECT_EQ(received(join("GET /health HTTP/1.1\n\r\n\r\n")), "<>(closed)");
  EXPECT_EQ(received(join("GET /health HTTP/1.1\r\nX: " + std::string(2000, 'x'))), "<>(closed)");
  const std::size_t before = crowd_.size();
  const std::size_t gone = join();
  EXPECT_EQ(crowd_.size(), before + 1);
  ::shutdown(clients_[gone], SHUT_WR);
  serve();
  EXPECT_EQ(crowd_.size(), before);
}

}  // namespace
}  // namespace memoir::server
