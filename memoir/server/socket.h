#pragma once

// The few things the server asks of sockets, all of them bounded in time. Descriptors are plain ints, owned by the
// caller. Any thread.

#include <chrono>
#include <string>

namespace memoir::server {

using SteadyTime = std::chrono::steady_clock::time_point;

enum class Wait { kReady, kTimedOut, kFailed };

Wait wait_readable(int fd, SteadyTime deadline);
Wait wait_writable(int fd, SteadyTime deadline);

/// The connection of a client that waits for an answer.
class ClientWatch {
 public:
  virtual ~ClientWatch() = default;
  /// Only to be polled.
  virtual int socket() const = 0;
  /// True once the client has closed its side, even if it only says that it sends no more, or is known to be gone.
  virtual bool client_is_gone() = 0;
};

/// True if there are unread bytes.
bool has_unread_bytes(int fd);

/// No delay for small writes, no waiting in calls, and probes that find a peer which vanished within about a minute.
void prepare_connection(int fd);

/// One implementation per system: when probes begin on an idle connection.
void set_keep_alive_idle(int fd, int seconds);

void close_socket(int fd);

/// "127.0.0.1" or "::1", empty if unknown.
std::string peer_address(int fd);

/// A socket that listens. Throws std::runtime_error with host, port and reason.
struct BoundSocket {
  int fd;
  int port;
};
BoundSocket listen_on(const std::string& host, int port, int backlog);

}  // namespace memoir::server
