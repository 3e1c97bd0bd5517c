#pragma once

// HTTP: accepts connections, reads requests within limits, checks who may ask, and hands each to one function.
//
// Each connection has a thread of its own while it lasts, up to max_connections. Beyond these /health is still
// answered, by the accepting thread, and everything else gets 503; none of them keeps another waiting. Requests' heads
// and answers are cpp-httplib's; bodies, waiting, limits and threads are ours.
// Refused before the function is called: a wrong or missing API key (401; /health is open), an Origin that is not
// allowed (403: pages of strangers must not talk to a server on this machine), a first line (414), head (431) or body
// (413) that is too large, a slow one (408), bodies of multipart form data or compressed (415), methods but GET, HEAD,
// POST and OPTIONS (405).
// Threads: the handler is called from many at once. start(), stop() and the destructor: one thread.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memoir/server/api_error.h"
#include "memoir/server/socket.h"

namespace memoir::server {

class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  /// False if the client is gone or too slow: stop.
  virtual bool write(std::string_view data) = 0;
};

/// A request and its answer. Belongs to the thread that handles it.
class Exchange : public ClientWatch {
 public:
  std::string method;  // HEAD is GET here
  std::string path;
  std::string body;
  std::string request_id;

  /// A header's value, without regard to case.
  virtual std::optional<std::string> header(const std::string& name) const = 0;

  virtual void reply(int status, std::string body, const std::string& content_type = "application/json") = 0;
  virtual void set_header(const std::string& name, const std::string& value) = 0;

  /// Answers 200 with what `write` writes, called on this thread once the handler has returned.
  virtual void stream(const std::string& content_type, std::function<void(StreamWriter&)> write) = 0;

  /// Adds a field to the request's line in the log.
  void note(const std::string& name, nlohmann::ordered_json value) { notes[name] = std::move(value); }

  nlohmann::ordered_json notes = nlohmann::ordered_json::object();
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any that is free
  std::vector<std::string> api_keys;
  std::vector<std::string> cors_origins;  // "http://host:port" as browsers write them; "*" allows all
  std::size_t max_connections = 512;
  std::size_t max_body_bytes = 32U << 20;
  std::size_t max_head_bytes = 64U << 10;
  int idle_timeout_ms = 15'000;
  int head_timeout_ms = 10'000;
  int body_timeout_ms = 60'000;
  int write_timeout_ms = 30'000;
};

/// What is known when an answer was written.
struct ExchangeSummary {
  std::string method;
  std::string path;
  std::string request_id;
  std::string remote;
  int status;
  double seconds;
  const nlohmann::ordered_json& notes;
};

struct HttpCallbacks {
  std::function<void(Exchange&)> handle;  // may throw ApiError, and anything else: 500
  /// The body that says so in the words of the path's interface.
  std::function<std::string(std::string_view path, const ApiError&)> error_body;
  std::function<std::pair<int, std::string>()> health;  // status and body
  /// For the answer's Allow ("GET, HEAD, OPTIONS") where another method was used.
  std::function<std::string(const std::string& path)> allowed_methods;
  std::function<void(const ExchangeSummary&)> on_done;
  std::function<void(const std::string&)> on_unexpected;  // an exception that is nobody's wish
};

class HttpServer {
 public:
  HttpServer(HttpOptions options, HttpCallbacks callbacks);
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Binds and begins to accept. Returns the port. Throws std::runtime_error if it can't.
  int start();

  /// Accepts no more, ends all connections, and waits for their threads.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether two texts are equal, in a time that depends on the length of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace memoir::server
