#include "memoir/server/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "memoir/server/http_message.h"

namespace memoir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = 16U << 10;
constexpr std::size_t kMaxFirstLine = 8000;  // RFC 9112, section 3: at least; the library takes little more
constexpr std::string_view kHeadEnd = "\r\n\r\n";

bool begins_with(std::string_view line, std::string_view name) {
  return equal_without_case(line.substr(0, name.size()), name);
}

// "GET http://host/path HTTP/1.1", which RFC 9112, section 3.2.2 has servers take, with the path alone.
std::string with_path_alone(std::string_view line) {
  const std::size_t begin = line.find(' ') + 1;  // 0 where there is none
  const std::string_view target = line.substr(begin, line.find(' ', begin) - begin);
  std::size_t authority = 0;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (begins_with(target, scheme)) authority = scheme.size();
  }
  if (begin == 0 || authority == 0) return std::string(line);
  const std::size_t path = std::min(target.find_first_of("/?#", authority), target.size());
  if (path == authority) return std::string(line);  // names no host
  const bool has_path = path < target.size() && target[path] == '/';
  return std::string(line.substr(0, begin)).append(has_path ? "" : "/").append(line.substr(begin + path));
}

// The library takes %41 in a header's value for A. A key may have it, and a length must not.
std::string with_kept_percents(std::string_view line) {
  std::string kept;
  for (const char c : line) kept.append(c == '%' ? "%25" : std::string_view(&c, 1));
  return kept;
}

}  // namespace

Connection::Connection(int fd, const ConnectionLimits& limits) : fd_(fd), limits_(limits) {
  prepare_connection(fd_);
}

Connection::~Connection() {
  close_socket(fd_);
}

Connection::Fill Connection::fill(SteadyTime deadline) {
  std::array<char, kReadBytes> bytes;
  for (;;) {
    const ssize_t n_read = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (n_read > 0) {
      if (at_ == buffer_.size()) {
        buffer_.clear();
        at_ = 0;
      }
      buffer_.append(bytes.data(), static_cast<std::size_t>(n_read));
      return Fill::kMore;
    }
    if (n_read == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return Fill::kClosed;
    const Wait wait = wait_readable(fd_, deadline);
    if (wait == Wait::kFailed) return Fill::kClosed;
    if (wait == Wait::kTimedOut) return Fill::kTimedOut;
  }
}

bool Connection::is_gone() {
  std::array<char, 4096> bytes;
  while (!has_failed_ && buffer_.size() - at_ < limits_.max_head_bytes) {
    const ssize_t n_read = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (n_read > 0) {
      buffer_.append(bytes.data(), static_cast<std::size_t>(n_read));
    } else if (n_read == 0) {
      return true;
    } else if (errno != EINTR) {
      return errno != EAGAIN && errno != EWOULDBLOCK;
    }
  }
  return has_failed_;
}

Connection::Head Connection::read_head() {
  buffer_.erase(0, at_);
  at_ = 0;
  if (buffer_.empty()) {
    const Fill filled = fill(Clock::now() + limits_.idle_timeout);
    if (filled != Fill::kMore) return filled == Fill::kClosed ? Head::kClosed : Head::kSilent;
  }
  const SteadyTime deadline = Clock::now() + limits_.head_timeout;
  std::size_t end;
  while ((end = buffer_.find(kHeadEnd, searched_)) == std::string::npos) {
    if (buffer_.size() > limits_.max_head_bytes) return Head::kTooLarge;
    searched_ = buffer_.size() < kHeadEnd.size() ? 0 : buffer_.size() - kHeadEnd.size() + 1;
    switch (fill(deadline)) {
      case Fill::kMore:
        break;
      case Fill::kClosed:
        return Head::kClosed;
      case Fill::kTimedOut:
        return Head::kTimedOut;
    }
  }
  if (end > limits_.max_head_bytes) return Head::kTooLarge;
  searched_ = n_body_bytes_ = 0;
  is_body_too_large_ = is_body_too_slow_ = false;
  body_deadline_ = Clock::now() + limits_.body_timeout;
  return filter_head(end + kHeadEnd.size());
}

// kMalformed: lines don't all end in CR LF, or there are bytes that none has.
Connection::Head Connection::filter_head(std::size_t head_size) {
  const std::string_view head = std::string_view(buffer_).substr(0, head_size);
  std::string kept;
  kept.reserve(head.size());
  int n_hosts = 0;
  bool needs_host = false;
  for (std::size_t begin = 0; begin < head.size();) {
    const bool is_first = begin == 0;
    const std::size_t end = head.find("\r\n", begin);
    const std::string_view line = head.substr(begin, end - begin);
    begin = end + 2;
    if (line.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos) return Head::kMalformed;
    if (is_first && line.size() > kMaxFirstLine) return Head::kTargetTooLong;
    if (is_first) needs_host = line.ends_with(" HTTP/1.1");
    if (begins_with(line, "host:")) ++n_hosts;
    if (begins_with(line, "range:") || begins_with(line, "accept-encoding:") || begins_with(line, "cookie:")) continue;
    kept.append(is_first ? with_path_alone(line) : with_kept_percents(line)).append("\r\n");
  }
  if (n_hosts > 1 || (needs_host && n_hosts == 0)) return Head::kWrongHost;
  buffer_.replace(0, head_size, kept);
  head_left_ = kept.size();
  return Head::kRead;
}

std::string Connection::request_line() const {
  return buffer_.substr(at_, buffer_.find('\r', at_) - at_);
}

ssize_t Connection::read(char* data, std::size_t size) {
  if (at_ == buffer_.size()) {
    const Fill filled = fill(body_deadline_);
    is_body_too_slow_ = filled == Fill::kTimedOut;
    if (filled == Fill::kTimedOut) return -1;
    if (filled == Fill::kClosed) return 0;
  }
  std::size_t n_bytes = std::min(size, buffer_.size() - at_);
  if (head_left_ > 0) {
    n_bytes = std::min(n_bytes, head_left_);
    head_left_ -= n_bytes;
  } else {
    n_body_bytes_ += n_bytes;
    // The framing of a chunked body is no part of it, and must not be without end either.
    if (n_body_bytes_ > 2 * limits_.max_body_bytes + kReadBytes) {
      is_body_too_large_ = true;
      return -1;
    }
  }
  std::copy_n(buffer_.data() + at_, n_bytes, data);
  at_ += n_bytes;
  return static_cast<ssize_t>(n_bytes);
}

bool Connection::write_all(std::string_view data) {
  if (has_failed_) return false;
  const std::chrono::seconds more(data.size() >> 16);
  const SteadyTime deadline = Clock::now() + limits_.write_timeout + more;
  while (!data.empty()) {
    const ssize_t n_written = ::send(fd_, data.data(), data.size(), 0);  // SIGPIPE is ignored
    if (n_written > 0) {
      data.remove_prefix(static_cast<std::size_t>(n_written));
      continue;
    }
    const bool can_wait = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (!can_wait || wait_writable(fd_, deadline) != Wait::kReady) {
      has_failed_ = true;
      return false;
    }
  }
  return true;
}

ssize_t Connection::write(const char* data, std::size_t size) {
  return write_all({data, size}) ? static_cast<ssize_t>(size) : -1;
}

void Connection::end_writing() {
  ::shutdown(fd_, SHUT_WR);
  has_failed_ = true;
}

bool Connection::discard() {
  std::array<char, kReadBytes> bytes;
  const ssize_t n_read = ::recv(fd_, bytes.data(), bytes.size(), 0);
  return n_read > 0 || (n_read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

void Connection::linger() {
  end_writing();
  const SteadyTime deadline = Clock::now() + std::chrono::seconds(2);
  do {
    buffer_.clear();
    at_ = 0;
  } while (Clock::now() < deadline && fill(deadline) == Fill::kMore);
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = peer_address(fd_);
  port = 0;
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace memoir::server
