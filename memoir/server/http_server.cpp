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
#include "memoir/server/crowd.h"
#include "memoir/server/http_message.h"
#include "memoir/server/request_body.h"
#include "memoir/server/worker_threads.h"

namespace memoir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 512;
constexpr std::size_t kRequestsPerConnection = 10'000;
constexpr int kClientGone = 499;
constexpr std::size_t kMaxCorsHeaders = 4096;  // bytes of the names that a page wants to send

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

// One request and its answer, while the library works on it.
class Job : public Exchange {
 public:
  explicit Job(Connection& connection) : connection_(connection) {}

  Connection& connection() { return connection_; }

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
  const auto provide = [write = std::move(write)](std::size_t, httplib::DataSink& sink) {
    SinkWriter writer(sink);
    write(writer);
    sink.done();
    return true;
  };
  if (request->version == "HTTP/1.0") {  // knows no chunks: the end of the connection is the stream's
    must_close = true;
    response->set_content_provider(content_type, provide);
  } else {
    response->set_chunked_content_provider(content_type, provide);
  }
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
    set_keep_alive_timeout(options_.idle_timeout_ms / 1000);
    set_keep_alive_max_count(kRequestsPerConnection);
    set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) { return before(request, response); });
    set_error_handler(httplib::Server::HandlerWithResponse([this](const auto& request, auto& response) {
      // What the library refuses by itself has no body yet; nor has what nobody is there to read.
      if (response.body.empty() && !response.content_provider_ && response.status != kClientGone) {
        reply_error(request.path, response, ApiError(response.status, "the request is malformed"));
        if (current_job) current_job->must_close = true;
      }
      return HandlerResponse::Handled;
    }));
    set_post_routing_handler([](const httplib::Request&, httplib::Response& response) {
      response.headers.erase("Accept-Ranges");  // the library's, of every HEAD
      if (!current_job) return;
      current_job->status = response.status;
      if (response.status == kClientGone) {  // the library has no words for it
        current_job->connection().write_all(plain_response(kClientGone, response.body));
        current_job->connection().end_writing();
      }
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
    Crowd crowd(limits_, [this](const std::string& request_line) { return crowded_answer(request_line); });
    std::vector<pollfd> entries;
    while (!is_stopping_) {
      entries = {{svr_sock_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
      crowd.append_to(entries);
      if (::poll(entries.data(), entries.size(), wait_ms(crowd)) < 0 && errno != EINTR) break;
      if (is_stopping_) break;
      crowd.serve(std::span(entries).subspan(2), Clock::now());
      if (entries[0].revents & POLLIN) accept_one(crowd);
    }
  }

  static int wait_ms(const Crowd& crowd) {
    if (crowd.size() == 0) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(crowd.next_deadline() - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }

  void accept_one(Crowd& crowd) {
    const int fd = ::accept(svr_sock_, nullptr, nullptr);
    if (fd >= 0) {
      {
        const std::lock_guard lock(mutex_);
        open_.insert(fd);
      }
      if (workers_->run([this, fd] { serve(fd); })) return;
      forget(fd);
      crowd.add(fd, Clock::now());
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no descriptors or no memory left: others end
    }
  }

  // All threads are busy.
  std::string crowded_answer(const std::string& request_line) {
    if (request_line.starts_with("GET /health ")) {
      const auto [status, body] = callbacks_.health();
      return plain_response(status, body);
    }
    return plain_response(503, callbacks_.error_body("", ApiError(503, "too many connections")));
  }

  // Out of the set before the number may name another connection.
  void forget(int fd) {
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
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
    forget(fd);
  }

  void serve_requests(Connection& connection) {
    const std::string remote = peer_address(connection.fd());
    for (std::size_t left = kRequestsPerConnection; left > 0 && !is_stopping_; --left) {
      switch (connection.read_head()) {
        case Connection::Head::kRead:
          break;
        case Connection::Head::kClosed:
        case Connection::Head::kSilent:
          return;
        case Connection::Head::kTimedOut:
          refuse(connection, ApiError(408, "the request's head took too long"));
          return connection.linger();
        case Connection::Head::kTooLarge:
          refuse(connection, ApiError(431, "the request's head is too large"));
          return connection.linger();
        case Connection::Head::kTargetTooLong:
          refuse(connection, ApiError(414, "the request's first line is too long"));
          return connection.linger();
        case Connection::Head::kWrongHost:
          refuse(connection, ApiError(400, "the request must have one Host header"));
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
        read_stated_body(request);
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
      response.set_header("Access-Control-Allow-Headers", allowed_headers(request));
      response.set_header("Vary", "Origin, Access-Control-Request-Headers");
    }
    if (request.method == "OPTIONS" || (request.method == "GET" && request.path == "/health")) return;
    if (!has_key(request))
      throw ApiError(401, "a valid API key is needed (Authorization: Bearer ...)", {}, "invalid_api_key");
  }

  // What a page on an allowed origin wants to send is allowed: clients have headers of their own.
  static std::string allowed_headers(const httplib::Request& request) {
    const std::string fixed = "Authorization, Content-Type, X-Api-Key, X-Request-Id";
    const std::string wanted = request.get_header_value("Access-Control-Request-Headers");
    if (wanted.empty() || wanted.size() > kMaxCorsHeaders) return fixed;
    std::string allowed = fixed;
    for (std::size_t begin = 0; begin <= wanted.size();) {
      const std::size_t end = std::min(wanted.find(',', begin), wanted.size());
      std::string_view name = std::string_view(wanted).substr(begin, end - begin);
      name.remove_prefix(std::min(name.find_first_not_of(" \t"), name.size()));
      name = name.substr(0, name.find_last_not_of(" \t") + 1);
      if (is_header_name(name)) allowed.append(", ").append(name);
      begin = end + 1;
    }
    return allowed;
  }

  bool has_key(const httplib::Request& request) const {
    if (options_.api_keys.empty()) return true;
    std::string given = request.get_header_value("Authorization");
    constexpr std::string_view kScheme = "Bearer ";
    const bool is_bearer = equal_without_case(std::string_view(given).substr(0, kScheme.size()), kScheme);
    given = is_bearer ? given.substr(kScheme.size()) : request.get_header_value("X-Api-Key");
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
      const bool is_chunked = equal_without_case(request.get_header_value("Transfer-Encoding"), "chunked") &&
                              request.get_header_value_count("Transfer-Encoding") == 1;
      if (is_chunked && !request.has_header("Content-Length")) return;
      throw ApiError(400, "this Transfer-Encoding is not taken");
    }
    if (!request.has_header("Content-Length")) return;
    const std::string length = request.get_header_value("Content-Length");
    const bool is_number = !length.empty() && length.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || request.get_header_value_count("Content-Length") != 1)
      throw ApiError(400, "Content-Length is malformed");
    if (length.size() > 18 || std::stoull(length) > options_.max_body_bytes) {
      throw body_too_large(options_.max_body_bytes);
    }
  }

  // Once check_body_headers() has passed them.
  void read_stated_body(const httplib::Request& request) const {
    Job& job = *current_job;
    const BodyLimits limits{options_.max_body_bytes, options_.max_head_bytes};
    if (request.has_header("Content-Length")) {
      job.body = read_body(job.connection(), std::stoull(request.get_header_value("Content-Length")), limits);
    } else if (request.has_header("Transfer-Encoding")) {
      job.body = read_body(job.connection(), std::nullopt, limits);
      if (request.version == "HTTP/1.0") job.must_close = true;  // RFC 9112, section 6.1: who knows what it meant
    } else {
      // An empty one, as HTTP has it. What a client sends all the same is no further request.
      job.must_close = job.has_unread_body = true;
    }
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
    if (error.status() == 405) response.set_header("Allow", callbacks_.allowed_methods(path));
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
