#pragma once

// An HTTP client for tests that does what it is told: sends any bytes, in pieces, slowly or not at all, and shows what
// comes back as it is.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace memoir::test {

struct RawResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower case names
  std::string body;

  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(body); }
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("can't connect");
    }
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  /// Says that nothing more is sent; answers can still be read.
  void end_sending() { ::shutdown(fd_, SHUT_WR); }

  /// False once the server has closed.
  bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      data.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  bool send_request(const std::string& method, const std::string& path, const std::string& body,
                    const std::string& more_headers = "") {
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + more_headers;
    if (method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return send(text + "\r\n" + body);
  }

  /// Reads what is there, waiting for it. False at the end, an error, or after ten seconds.
  bool read_some(int timeout_ms = 10'000) {
    pollfd entry{fd_, POLLIN, 0};
    if (::poll(&entry, 1, timeout_ms) <= 0) return false;
    std::array<char, 4096> bytes;
    const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (n <= 0) return false;
    buffer.append(bytes.data(), static_cast<std::size_t>(n));
    return true;
  }

  /// Waits for a text in what was received.
  bool read_until(std::string_view text) {
    while (buffer.find(text) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }

  /// Everything until the server closes.
  std::string read_all() {
    while (read_some()) {
    }
    return buffer;
  }

  /// The next response; status 0 if none came. A chunked body is put together.
  RawResponse read_response() {
    RawResponse response;
    if (!read_until("\r\n\r\n")) return response;
    const std::size_t end = buffer.find("\r\n\r\n");
    const std::string head = buffer.substr(0, end + 2);
    buffer.erase(0, end + 4);
    response.status = std::stoi(head.substr(9, 3));
    for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
      const std::size_t next = head.find("\r\n", at);
      const std::size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      response.headers[name] = head.substr(colon + 2, next - colon - 2);
      at = next + 2;
    }
    if (response.status == 100) return read_response();
    if (response.headers.contains("transfer-encoding")) {
      read_chunks(response.body);
    } else {
      const std::size_t size = std::stoul(response.headers["content-length"]);
      while (buffer.size() < size && read_some()) {
      }
      response.body = buffer.substr(0, size);
      buffer.erase(0, size);
    }
    return response;
  }

  int fd() const { return fd_; }
  std::string buffer;

 private:
  void read_chunks(std::string& body) {
    while (read_until("\r\n")) {
      const std::size_t size = std::stoul(buffer, nullptr, 16);
      buffer.erase(0, buffer.find("\r\n") + 2);
      while (buffer.size() < size + 2 && read_some()) {
      }
      body += buffer.substr(0, size);
      buffer.erase(0, size + 2);
      if (size == 0) return;
    }
  }

  int fd_;
};

/// The data of server-sent events; comments are left out.
inline std::vector<std::string> event_data(const std::string& body) {
  std::vector<std::string> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    if (event.starts_with("data: ")) events.push_back(event.substr(6));
    at = end + 2;
  }
  return events;
}

}  // namespace memoir::test
