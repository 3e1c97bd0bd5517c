#pragma once

// One client's connection as the HTTP library reads and writes it, with limits the library does not have: a request's
// head must come whole within a time and a size, its body too, and what is written must be taken within a time.
//
// Owns the socket. Threads: one at a time.

#include <httplib.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "memoir/server/socket.h"

namespace memoir::server {

struct ConnectionLimits {
  std::size_t max_head_bytes = 64U << 10;
  std::size_t max_body_bytes = 32U << 20;
  std::chrono::milliseconds idle_timeout{15'000};  // between two requests
  std::chrono::milliseconds head_timeout{10'000};  // from a request's first byte to the end of its head
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds write_timeout{30'000};  // of one write, and a second more for each 64 KiB of it
};

class Connection : public httplib::Stream {
 public:
  Connection(int fd, const ConnectionLimits& limits);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  enum class Head { kRead, kClosed, kSilent, kTimedOut, kTooLarge, kTargetTooLong, kWrongHost, kMalformed };

  /// Waits for the next request's head, the first of a connection or a later one, and makes of it what the library can
  /// take: without Range and Accept-Encoding (answers are neither cut nor compressed) and Cookie (long, and of no use),
  /// and with a path where the first line names a whole address. kSilent: nothing has come; then, and after kTimedOut,
  /// a further call goes on.
  Head read_head();

  /// "GET /health HTTP/1.1", of the head that was read.
  std::string request_line() const;

  int fd() const { return fd_; }

  /// True once the peer has closed its side: it no longer waits for an answer. Reads ahead, up to the size of a head,
  /// because the end stands behind what was sent before it.
  bool is_gone();

  /// Why reading a body failed.
  bool is_body_too_large() const { return is_body_too_large_; }
  bool is_body_too_slow() const { return is_body_too_slow_; }

  /// Writes all of it. False if the peer is gone or too slow; then nothing can be written any more.
  bool write_all(std::string_view data);

  /// Tells the peer that nothing more comes. What is written from now on goes nowhere.
  void end_writing();

  /// Throws away what has arrived, without waiting. False once the peer has closed.
  bool discard();

  /// Lets the peer read what was written although not all that it sends is read: ends writing, and throws away what
  /// still arrives, for two seconds at most.
  void linger();

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !has_failed_; }
  ssize_t read(char* data, std::size_t size) override;
  ssize_t write(const char* data, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  /// None: the library must not use the socket itself.
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  enum class Fill { kMore, kClosed, kTimedOut };
  Fill fill(SteadyTime deadline);
  Head filter_head(std::size_t head_size);

  int fd_;
  ConnectionLimits limits_;
  std::string buffer_;  // read from the socket, from at_ on not yet handed out
  std::size_t at_ = 0;
  std::size_t searched_ = 0;   // of an unfinished head: there is no end in so many bytes
  std::size_t head_left_ = 0;  // of the head, not yet handed out
  std::size_t n_body_bytes_ = 0;
  SteadyTime body_deadline_;
  bool is_body_too_large_ = false;
  bool is_body_too_slow_ = false;
  bool has_failed_ = false;
};

}  // namespace memoir::server
