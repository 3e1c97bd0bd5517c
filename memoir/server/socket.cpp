#include "memoir/server/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace memoir::server {
namespace {

constexpr int kProbeIdleSeconds = 20;
constexpr int kProbeInterval = 10;
constexpr int kProbeCount = 4;

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));  // an improvement where it works
}

Wait wait_for(int fd, short events, SteadyTime deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{fd, events, 0};
    const auto timeout_ms = std::clamp<std::int64_t>(left.count(), 0, 60'000);
    const int n_ready = ::poll(&entry, 1, static_cast<int>(timeout_ms));
    if (n_ready > 0) return entry.revents & POLLNVAL ? Wait::kFailed : Wait::kReady;
    if (n_ready < 0 && errno != EINTR) return Wait::kFailed;
    if (std::chrono::steady_clock::now() >= deadline) return Wait::kTimedOut;
  }
}

int bound_port(int fd, int otherwise) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return otherwise;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return otherwise;
}

// A listening socket for one address, or -1 with errno set.
int try_listen(const addrinfo& address, int backlog) {
  const int fd = ::socket(address.ai_family, address.ai_socktype, address.ai_protocol);
  if (fd < 0) return -1;
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, backlog) == 0) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    return fd;
  }
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

Wait wait_readable(int fd, SteadyTime deadline) {
  return wait_for(fd, POLLIN, deadline);
}

Wait wait_writable(int fd, SteadyTime deadline) {
  return wait_for(fd, POLLOUT, deadline);
}

bool has_unread_bytes(int fd) {
  char byte;
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void prepare_connection(int fd) {
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeInterval);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbeCount);
  set_keep_alive_idle(fd, kProbeIdleSeconds);
}

void close_socket(int fd) {
  ::shutdown(fd, SHUT_RDWR);
  ::close(fd);
}

std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  std::array<char, INET6_ADDRSTRLEN + 1> text{};
  const void* bytes = nullptr;
  if (address.ss_family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in*>(&address)->sin_addr;
  if (address.ss_family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
  if (!bytes || !::inet_ntop(address.ss_family, bytes, text.data(), text.size())) return {};
  return text.data();
}

BoundSocket listen_on(const std::string& host, int port, int backlog) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const std::string where = host + ":" + std::to_string(port);
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    throw std::runtime_error("can't listen on " + where + ": " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address; address = address->ai_next) {
    const int fd = try_listen(*address, backlog);
    if (fd >= 0) return {fd, bound_port(fd, port)};
    error = errno;
  }
  throw std::runtime_error("can't listen on " + where + ": " + std::strerror(error));
}

}  // namespace memoir::server
