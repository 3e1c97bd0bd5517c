#include "memoir/server/http_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "memoir/server/connection.h"
#include "memoir/server/worker_threads.h"

namespace memoir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 512;
constexpr std::size_t kRequestsPerConnection = 10'000;
constexpr std::chrono::milliseconds kCrowdedWait{20};

bool is_id(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

std::string new_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id = "req-";
  std::uint64_t bits = random();
  for (int i = 0; i < 16; ++i, bits >>= 4) id += kDigits[bits & 15U];
  return id;
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 408:
      return "Request Timeout";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

// For answers before the library has a request.
std::string plain_response(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " " + reason_phrase(status) +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n" + (status == 503 ? "Retry-After: 1\r\n" : "") + "\r\n" + body;
}

// One request and its answer, while the library works on it.
class Job : public Exchange {
 public:
  explicit Job(Connection& connection) : connection_(connection) {}

  const Connection& connection() const { return connection_; }

  std::optional<std::string> header(const std::string& name) const override {
    if (!request || !request->has_header(name)) return std::nullopt;
    return request->get_header_value(name);
  }
  int socket() const override { return connection_.fd(); }
  bool client_is_gone() override { return connection_.is_gone(); }

  void reply(int code, std::string text, const std::string& content_type) override {
    response->status = code;
    response->body = std::move(text);
    response->headers.erase("Content-Type");
    response->set_header("Content-Type", content_type);
  }
  void set_header(const std::string& name, const std::string& value) override {
    response->headers.erase(name);
    response->set_header(name, value);
  }
  void stream(const std::string& content_type, std::function<void(StreamWriter&)> write) override;

  const httplib::Request* request = nullptr;
  httplib::Response* response = nullptr;
  bool must_close = false;
  bool has_unread_body = false;
  int status = 0;

 private:
  Connection& connection_;
};

class SinkWriter : public StreamWriter {
 public:
  explicit SinkWriter(httplib::DataSink& sink) : sink_(sink) {}
  bool write(std::string_view data) override { return data.empty() || sink_.write(data.data(), data.size()); }

 private:
  httplib::DataSink& sink_;
};

void Job::stream(const std::string& content_type, std::function<void(StreamWriter&)> write) {
  response->status = 200;
  response->set_header("Cache-Control", "no-store");
  response->set_chunked_content_provider(content_type,
                                         [write = std::move(write)](std::size_t, httplib::DataSink& sink) {
                                           SinkWriter writer(sink);
                                           write(writer);
                                           sink.done();
                                           return true;
                                         });
}

// The library's handlers are not told which connection they work for; they run on the connection's thread.
thread_local Job* current_job = nullptr;

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

class HttpServer::Impl : public httplib::Server {
 public:
  Impl(HttpOptions options, HttpCallbacks callbacks) : options_(std::move(options)), callbacks_(std::move(callbacks)) {
    limits_.max_head_bytes = options_.max_head_bytes;
    limits_.max_body_bytes = options_.max_body_bytes;
    limits_.idle_timeout = std::chrono::milliseconds(options_.idle_timeout_ms);
    limits_.head_timeout = std::chrono::milliseconds(options_.head_timeout_ms);
    limits_.body_timeout = std::chrono::milliseconds(options_.body_timeout_ms);
    limits_.write_timeout = std::chrono::milliseconds(options_.write_timeout_ms);
    set_payload_max_length(options_.max_body_bytes);
    set_keep_alive_timeout(options_.idle_timeout_ms / 1000);
    set_keep_alive_max_count(kRequestsPerConnection);
    set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) { return before(request, response); });
    httplib::Server::HandlerWithContentReader post = [this](const auto& request, auto& response, const auto& reader) {
      read_and_answer(request, response, reader);
    };
    Post(R"([\s\S]*)", post);
    set_error_handler(httplib::Server::HandlerWithResponse([this](const auto& request, auto& response) {
      // What the library refuses by itself has no body yet; nor has what nobody is there to read.
      constexpr int kClientGone = 499;
      if (response.body.empty() && !response.content_provider_ && response.status != kClientGone) {
        reply_error(request.path, response, ApiError(response.status, "the request is malformed"));
        if (current_job) current_job->must_close = true;
      }
      return HandlerResponse::Handled;
    }));
    set_post_routing_handler([](const httplib::Request&, httplib::Response& response) {
      if (!current_job) return;
      current_job->status = response.status;
      if (!current_job->must_close) return;
      response.headers.erase("Keep-Alive");
      response.headers.erase("Connection");
      response.set_header("Connection", "close");
    });
  }

  ~Impl() override { stop_all(); }

  int start_all() {
    const BoundSocket bound = listen_on(options_.host, options_.port, kBacklog);
    svr_sock_ = bound.fd;
    if (::pipe(wake_.data()) != 0) {
      close_socket(bound.fd);
      throw std::runtime_error("can't make a pipe");
    }
    workers_ = std::make_unique<WorkerThreads>(options_.max_connections);
    acceptor_ = std::thread([this] { accept_all(); });
    return bound.port;
  }

  void stop_all() {
    if (!acceptor_.joinable()) return;
    is_stopping_ = true;
    if (::write(wake_[1], "x", 1) < 0) return;  // a pipe nobody else writes to has room
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    workers_.reset();
    close_socket(svr_sock_.exchange(INVALID_SOCKET));
    for (const int fd : wake_) ::close(fd);
  }

 private:
  void accept_all() {
    while (!is_stopping_) {
      std::array<pollfd, 2> entries = {pollfd{svr_sock_, POLLIN, 0}, pollfd{wake_[0], POLLIN, 0}};
      if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) break;
      if (is_stopping_) break;
      if (!(entries[0].revents & POLLIN)) continue;
      const int fd = ::accept(svr_sock_, nullptr, nullptr);
      if (fd >= 0) {
        {
          const std::lock_guard lock(mutex_);
          open_.insert(fd);
        }
        if (!workers_->run([this, fd] { serve(fd); })) serve_crowded(fd);
      } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no descriptors or no memory left: others end
      }
    }
  }

  // All threads are busy: health and a refusal, from what arrives at once.
  void serve_crowded(int fd) {
    Connection connection(fd, limits_);
    const bool has_head = connection.read_head(kCrowdedWait, kCrowdedWait) == Connection::Head::kRead;
    if (has_head && connection.request_line().starts_with("GET /health ")) {
      const auto [status, body] = callbacks_.health();
      connection.write_all(plain_response(status, body));
    } else {
      refuse(connection, ApiError(503, "too many connections"));
    }
    forget(connection);
  }

  // Out of the set before the number may name another connection.
  void forget(const Connection& connection) {
    const std::lock_guard lock(mutex_);
    open_.erase(connection.fd());
  }

  void refuse(Connection& connection, const ApiError& error) {
    connection.write_all(plain_response(error.status(), callbacks_.error_body("", error)));
  }

  void serve(int fd) {
    Connection connection(fd, limits_);
    try {
      serve_requests(connection);
    } catch (const std::exception& error) {
      callbacks_.on_unexpected(error.what());
    }
    forget(connection);
  }

  void serve_requests(Connection& connection) {
    const std::string remote = peer_address(connection.fd());
    for (std::size_t left = kRequestsPerConnection; left > 0 && !is_stopping_; --left) {
      switch (connection.read_head()) {
        case Connection::Head::kRead:
          break;
        case Connection::Head::kClosed:
          return;
        case Connection::Head::kTimedOut:
          refuse(connection, ApiError(408, "the request's head took too long"));
          return connection.linger();
        case Connection::Head::kTooLarge:
          refuse(connection, ApiError(431, "the request's head is too large"));
          return connection.linger();
        case Connection::Head::kMalformed:
          refuse(connection, ApiError(400, "the request's head is malformed"));
          return connection.linger();
      }
      if (!serve_one(connection, remote, left == 1)) return;
    }
  }

  // Returns whether the connection may be used again.
  bool serve_one(Connection& connection, const std::string& remote, bool is_last) {
    Job job(connection);
    current_job = &job;
    bool is_closed = false;
    const auto begin = Clock::now();
    bool is_done = false;
    try {
      is_done = process_request(connection, is_last, is_closed, nullptr);
    } catch (const std::exception& error) {  // from a stream, behind its beginning: the connection can only be closed
      callbacks_.on_unexpected(job.request_id + ": " + error.what());
    }
    current_job = nullptr;
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    callbacks_.on_done({job.method, job.path, job.request_id, remote, job.status, elapsed.count(), job.notes});
    if (job.has_unread_body) connection.linger();
    return is_done && !is_closed && !job.must_close;
  }

  HandlerResponse before(const httplib::Request& request, httplib::Response& response) {
    Job& job = *current_job;
    job.request = &request;
    job.response = &response;
    job.method = request.method == "HEAD" ? "GET" : request.method;
    job.path = request.path;
    const std::string given_id = request.get_header_value("X-Request-Id");
    job.request_id = is_id(given_id) ? given_id : new_id();
    response.set_header("X-Request-Id", job.request_id);
    const bool may_have_body = request.method != "GET" && request.method != "HEAD" && request.method != "OPTIONS";
    const bool has_odd_names = !are_header_names(request);
    try {
      if (has_odd_names) throw ApiError(400, "the name of a header has a blank");
      admit(request, response);
      if (may_have_body) {
        check_body_headers(request);
        if (states_body(request)) return HandlerResponse::Unhandled;
        // An empty one, as HTTP has it. What a client sends all the same is no further request.
        job.must_close = job.has_unread_body = true;
        answer();
        return HandlerResponse::Handled;
      }
      if (has_body(request)) job.must_close = job.has_unread_body = true;
      if (request.method == "OPTIONS") {
        job.reply(204, "", "text/plain");
        return HandlerResponse::Handled;
      }
    } catch (const ApiError& error) {
      job.must_close = job.has_unread_body = may_have_body || has_body(request) || has_odd_names;
      reply_error(request.path, response, error);
      return HandlerResponse::Handled;
    }
    answer();
    return HandlerResponse::Handled;
  }

  // RFC 9112, section 5.1: "Content-Length : 2" would be a length to a proxy and none here, and a body a request.
  static bool are_header_names(const httplib::Request& request) {
    return std::none_of(request.headers.begin(), request.headers.end(),
                        [](const auto& header) { return header.first.find_first_of(" \t") != std::string::npos; });
  }

  static bool states_body(const httplib::Request& request) {
    return request.has_header("Transfer-Encoding") || request.has_header("Content-Length");
  }

  static bool has_body(const httplib::Request& request) {
    return request.has_header("Transfer-Encoding") ||
           (request.has_header("Content-Length") && request.get_header_value("Content-Length") != "0");
  }

  void admit(const httplib::Request& request, httplib::Response& response) const {
    if (request.has_header("Origin")) {
      const std::string origin = request.get_header_value("Origin");
      const auto& allowed = options_.cors_origins;
      const bool is_allowed = std::any_of(allowed.begin(), allowed.end(),
                                          [&](const std::string& one) { return one == "*" || one == origin; });
      if (!is_allowed) throw ApiError(403, "this Origin is not allowed (--cors-origin)", {}, "origin_not_allowed");
      response.set_header("Access-Control-Allow-Origin", origin);
      response.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
      response.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, X-Request-Id");
      response.set_header("Vary", "Origin");
    }
    if (request.method == "OPTIONS" || (request.method == "GET" && request.path == "/health")) return;
    if (!has_key(request))
      throw ApiError(401, "a valid API key is needed (Authorization: Bearer ...)", {}, "invalid_api_key");
  }

  bool has_key(const httplib::Request& request) const {
    if (options_.api_keys.empty()) return true;
    std::string given = request.get_header_value("Authorization");
    constexpr std::string_view kScheme = "Bearer ";
    given = given.starts_with(kScheme) ? given.substr(kScheme.size()) : request.get_header_value("X-Api-Key");
    bool is_known = false;
    for (const std::string& key : options_.api_keys) is_known = equal_in_constant_time(given, key) || is_known;
    return is_known;
  }

  void check_body_headers(const httplib::Request& request) const {
    if (request.method != "POST") throw ApiError(405, "the method " + request.method + " is not allowed");
    const std::string encoding = request.get_header_value("Content-Encoding");
    if (!encoding.empty() && encoding != "identity") throw ApiError(415, "compressed bodies are not taken");
    if (request.is_multipart_form_data()) throw ApiError(415, "the body must be JSON");
    if (request.has_header("Transfer-Encoding")) {
      if (request.get_header_value("Transfer-Encoding") == "chunked" && !request.has_header("Content-Length")) return;
      throw ApiError(400, "this Transfer-Encoding is not taken");
    }
    if (!request.has_header("Content-Length")) return;
    const std::string length = request.get_header_value("Content-Length");
    const bool is_number = !length.empty() && length.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || request.get_header_value_count("Content-Length") != 1)
      throw ApiError(400, "Content-Length is malformed");
    if (length.size() > 18 || std::stoull(length) > options_.max_body_bytes) throw too_large();
  }

  ApiError too_large() const {
    return ApiError(413, "the body is larger than " + std::to_string(options_.max_body_bytes) + " bytes", {},
                    "body_too_large");
  }

  void read_and_answer(const httplib::Request& request, httplib::Response& response,
                       const httplib::ContentReader& read) {
    Job& job = *current_job;
    bool is_too_large = false;
    const bool is_read = read([&](const char* data, std::size_t size) {
      is_too_large = job.body.size() + size > options_.max_body_bytes;
      if (!is_too_large) job.body.append(data, size);
      return !is_too_large;
    });
    if (is_read) {
      response.status = -1;
      return answer();
    }
    job.must_close = job.has_unread_body = true;
    if (is_too_large || job.connection().is_body_too_large()) return reply_error(request.path, response, too_large());
    if (job.connection().is_body_too_slow()) {
      return reply_error(request.path, response, ApiError(408, "the body took too long"));
    }
    reply_error(request.path, response, ApiError(400, "the body is malformed or ended early"));
  }

  void answer() {
    Job& job = *current_job;
    try {
      callbacks_.handle(job);
    } catch (const ApiError& error) {
      reply_error(job.path, *job.response, error);
    } catch (const std::exception& error) {
      callbacks_.on_unexpected(job.request_id + ": " + error.what());
      reply_error(job.path, *job.response, ApiError(500, "an error inside the server", {}, "internal_error"));
    }
  }

  void reply_error(const std::string& path, httplib::Response& response, const ApiError& error) const {
    response.status = error.status();
    response.body = callbacks_.error_body(path, error);
    response.headers.erase("Content-Type");
    response.set_header("Content-Type", "application/json");
    if (error.retry_after_s) response.set_header("Retry-After", std::to_string(*error.retry_after_s));
    if (error.status() == 401) response.set_header("WWW-Authenticate", "Bearer");
    if (error.status() == 405) response.set_header("Allow", "GET, HEAD, POST, OPTIONS");
    if (current_job) current_job->note("error", std::string(error.what()).substr(0, 300));
  }

  HttpOptions options_;
  HttpCallbacks callbacks_;
  ConnectionLimits limits_;
  std::array<int, 2> wake_{};
  std::atomic<bool> is_stopping_{false};
  std::thread acceptor_;
  std::mutex mutex_;
  std::set<int> open_;
  std::unique_ptr<WorkerThreads> workers_;
};

HttpServer::HttpServer(HttpOptions options, HttpCallbacks callbacks)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(callbacks))) {}

HttpServer::~HttpServer() = default;

int HttpServer::start() {
  return impl_->start_all();
}

void HttpServer::stop() {
  impl_->stop_all();
}

}  // namespace memoir::server
