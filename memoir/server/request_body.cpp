#include "memoir/server/request_body.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "memoir/server/http_message.h"

namespace memoir::server {
namespace {

constexpr std::size_t kMaxChunkLine = 4096;
constexpr std::size_t kStep = 64U << 10;  // memory is taken for what comes, not for what is announced

ApiError malformed() {
  return ApiError(400, "the body is malformed or ended early");
}

class BodyReader {
 public:
  BodyReader(Connection& connection, const BodyLimits& limits) : connection_(connection), limits_(limits) {}

  std::string read_length(std::size_t length) {
    if (length > limits_.max_bytes) throw body_too_large(limits_.max_bytes);
    append(length);
    return std::move(body_);
  }

  // RFC 9112, section 7.1.
  std::string read_chunks() {
    while (const std::size_t size = chunk_size(read_line(kMaxChunkLine, malformed()))) {
      append(size);
      if (!read_line(2, malformed()).empty()) throw malformed();
    }
    skip_trailer();
    return std::move(body_);
  }

 private:
  std::size_t chunk_size(std::string_view line) const {
    constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
    const std::size_t n_digits = std::min(line.find_first_not_of(kDigits), line.size());
    if (n_digits == 0) throw malformed();
    std::string_view rest = line.substr(n_digits);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    if (!rest.empty() && rest.front() != ';') throw malformed();
    std::size_t size = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + n_digits, size, 16);
    const bool fits = error == std::errc() && size <= limits_.max_bytes - body_.size();
    if (!fits) throw body_too_large(limits_.max_bytes);
    return size;
  }

  void skip_trailer() {
    const ApiError too_large(431, "the body's trailer is too large");
    std::size_t left = limits_.max_trailer_bytes;
    for (;;) {
      const std::string line = read_line(left, too_large);
      if (line.empty()) return;
      left -= line.size() + 2;
      const std::size_t colon = line.find(':');
      if (colon == std::string::npos || !is_header_name(std::string_view(line).substr(0, colon))) throw malformed();
    }
  }

  // A line without its end, which is CR LF and nothing else. `max_bytes` are with it.
  std::string read_line(std::size_t max_bytes, const ApiError& too_long) {
    std::string line;
    while (!line.ends_with("\r\n")) {
      if (line.size() >= max_bytes) throw too_long;
      char c = 0;
      read(&c, 1);
      line += c;
    }
    line.resize(line.size() - 2);
    if (line.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) throw malformed();
    return line;
  }

  void append(std::size_t n_bytes) {
    while (n_bytes > 0) {
      const std::size_t size = body_.size();
      body_.resize(size + std::min(n_bytes, kStep));
      const std::size_t n_read = read(body_.data() + size, body_.size() - size);
      body_.resize(size + n_read);
      n_bytes -= n_read;
    }
  }

  // At least one byte.
  std::size_t read(char* data, std::size_t size) {
    const ssize_t n_read = connection_.read(data, size);
    if (n_read > 0) return static_cast<std::size_t>(n_read);
    if (connection_.is_body_too_large()) throw body_too_large(limits_.max_bytes);
    if (connection_.is_body_too_slow()) throw ApiError(408, "the body took too long");
    throw malformed();
  }

  Connection& connection_;
  const BodyLimits& limits_;
  std::string body_;
};

}  // namespace

std::string read_body(Connection& connection, std::optional<std::size_t> length, const BodyLimits& limits) {
  BodyReader reader(connection, limits);
  return length ? reader.read_length(*length) : reader.read_chunks();
}

ApiError body_too_large(std::size_t max_bytes) {
  return ApiError(413, "the body is larger than " + std::to_string(max_bytes) + " bytes", {}, "body_too_large");
}

}  // namespace memoir::server
