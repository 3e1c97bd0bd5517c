#include "memoir/server/api_server.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "memoir/server/embedding_routes.h"
#include "memoir/server/generation.h"
#include "memoir/server/ollama_response.h"
#include "memoir/server/ollama_routes.h"
#include "memoir/server/openai_request.h"
#include "memoir/server/openai_response.h"

namespace memoir::server {
namespace {

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view kModelPath = "/v1/models/";

}  // namespace

class ApiServer::Impl {
 public:
  Impl(ServerOptions options, std::ostream& log)
      : options_(std::move(options)), log_(log, options_.log_format), http_(options_.http, callbacks()) {
    add_routes();
  }

  int start() { return http_.start(); }
  void stop() { http_.stop(); }
  Log& log() { return log_; }

  void set_ready(ServedModel model, engine::Service& service, CacheHooks hooks) {
    auto ready = std::make_shared<Ready>(std::move(model), service, metrics_, std::move(hooks));
    const std::lock_guard lock(mutex_);
    ready_ = std::move(ready);
  }

  bool drain(std::chrono::steady_clock::time_point deadline) {
    is_draining_ = true;
    if (const auto ready = model_if_ready()) ready->backend.service.drain(deadline);
    // What was cancelled must still be told to its clients.
    std::unique_lock lock(mutex_);
    const bool is_late = std::chrono::steady_clock::now() >= deadline;
    const auto until = is_late ? std::chrono::steady_clock::now() + std::chrono::seconds(1) : deadline;
    return idle_.wait_until(lock, until, [&] { return n_active_ == 0; }) && !is_late;
  }

 private:
  struct Ready {
    Ready(ServedModel served, engine::Service& service, Metrics& metrics, CacheHooks cache)
        : model(std::move(served)), hooks(std::move(cache)), backend{service, model, metrics, constraints} {}
    ServedModel model;
    Constraints constraints;
    CacheHooks hooks;
    Backend backend;
  };
  using Route = std::function<void(Exchange&)>;

  HttpCallbacks callbacks() {
    HttpCallbacks callbacks;
    callbacks.handle = [this](Exchange& exchange) { handle(exchange); };
    callbacks.error_body = [](std::string_view path, const ApiError& error) {
      return dump(path.starts_with("/api/") ? ollama_error(error) : openai_error(error));
    };
    callbacks.health = [this] { return health(); };
    callbacks.on_done = [this](const ExchangeSummary& summary) { finish(summary); };
    callbacks.on_unexpected = [this](const std::string& what) { log_.write("error", "exception", {{"what", what}}); };
    return callbacks;
  }

  std::shared_ptr<const Ready> model_if_ready() {
    const std::lock_guard lock(mutex_);
    return ready_;
  }

  // The model for work that is new.
  std::shared_ptr<const Ready> need_model() {
    const auto ready = model_if_ready();
    if (!ready) throw not_ready("the model is being loaded");
    if (is_draining_) throw not_ready("the server is stopping");
    return ready;
  }

  void get(const std::string& path, Route route) { routes_[{"GET", path}] = std::move(route); }
  void post(const std::string& path, Route route) { routes_[{"POST", path}] = std::move(route); }

  void get_from_model(const std::string& path, Json (*make)(const ServedModel&)) {
    get(path, [this, make](Exchange& exchange) { exchange.reply(200, dump(make(need_model()->model))); });
  }

  void add_routes() {
    // The server keeps what is ready until it has stopped, so that a stream may refer to it after its handler.
    using Answer = void (*)(Exchange&, const Backend&, const RouteOptions&);
    const auto generate = [this](const std::string& path, Answer answer) {
      post(path, [this, answer](Exchange& exchange) { answer(exchange, need_model()->backend, options_.routes); });
    };
    generate("/v1/chat/completions", answer_chat_completions);
    generate("/v1/completions", answer_completions);
    generate("/api/generate", answer_ollama_generate);
    generate("/api/chat", answer_ollama_chat);
    generate("/v1/embeddings", answer_embeddings);
    generate("/api/embed", answer_ollama_embed);
    generate("/api/embeddings", answer_ollama_embeddings);
    get_from_model("/api/tags", ollama_tags);
    get_from_model("/api/ps", ollama_ps);
    get_from_model("/v1/models", [](const ServedModel& model) {
      return Json{{"object", "list"}, {"data", Json::array({openai_model(model)})}};
    });
    post("/api/show", [this](Exchange& exchange) { answer_ollama_show(exchange, need_model()->backend); });
    get("/api/version", [this](Exchange& exchange) { exchange.reply(200, dump({{"version", options_.version}})); });
    get("/", [](Exchange& exchange) { exchange.reply(200, "memoir is running", "text/plain"); });
    get("/health", [this](Exchange& exchange) {
      const auto [status, body] = health();
      if (status == 503) exchange.set_header("Retry-After", "2");
      exchange.reply(status, body);
    });
    get("/metrics", [this](Exchange& exchange) { show_metrics(exchange); });
    get("/cache", [this](Exchange& exchange) { show_cache(exchange); });
    post("/cache/clear", [this](Exchange& exchange) { clear_cache(exchange); });
    for (const char* path : {"/v1/responses", "/api/pull", "/api/push", "/api/create", "/api/copy"}) {
      post(path, [](Exchange&) -> void { throw ApiError(501, "not supported by this server", {}, "not_supported"); });
    }
  }

  void handle(Exchange& exchange) {
    {
      const std::lock_guard lock(mutex_);
      ++n_active_;
    }
    exchange.note("route", "");  // says to finish() that this one counts as active
    const auto route = routes_.find({exchange.method, exchange.path});
    if (route != routes_.end()) {
      exchange.note("route", exchange.path);
      return route->second(exchange);
    }
    if (exchange.method == "GET" && exchange.path.starts_with(kModelPath)) return show_model(exchange);
    const bool has_other = routes_.contains({exchange.method == "GET" ? "POST" : "GET", exchange.path});
    if (has_other) throw ApiError(405, "the method is not allowed for this path");
    throw ApiError(404, "there is nothing at " + exchange.path.substr(0, 200), {}, "not_found");
  }

  void show_model(Exchange& exchange) {
    const auto ready = need_model();
    const std::string name = exchange.path.substr(kModelPath.size());
    if (!ready->model.is_named(name)) {
      throw ApiError(404, "the model '" + name.substr(0, 200) + "' does not exist", "model", "model_not_found");
    }
    exchange.note("route", std::string(kModelPath));
    exchange.reply(200, dump(openai_model(ready->model)));
  }

  std::pair<int, std::string> health() {
    if (!model_if_ready()) return {503, dump({{"status", "loading"}})};
    if (is_draining_) return {503, dump({{"status", "draining"}})};
    return {200, dump({{"status", "ok"}})};
  }

  void show_metrics(Exchange& exchange) {
    const auto ready = model_if_ready();
    exchange.reply(200, metrics_.text(ready ? ready->backend.service.stats() : engine::ServiceStats{}), kMetricsType);
  }

  void show_cache(Exchange& exchange) {
    const auto ready = need_model();
    if (!ready->hooks.describe) throw ApiError(501, "the engine keeps no prefix cache", {}, "not_supported");
    exchange.reply(200, dump(ready->hooks.describe()));
  }

  void clear_cache(Exchange& exchange) {
    const auto ready = need_model();
    if (!ready->hooks.clear) throw ApiError(501, "the engine keeps no prefix cache", {}, "not_supported");
    ready->hooks.clear();
    exchange.reply(200, dump({{"status", "cleared"}}));
  }

  void finish(const ExchangeSummary& summary) {
    Json fields = {{"id", summary.request_id}, {"remote", summary.remote},
                   {"method", summary.method}, {"path", summary.path.substr(0, 200)},
                   {"status", summary.status}, {"seconds", summary.seconds}};
    std::string route = "other";
    bool was_active = false;
    for (const auto& [name, value] : summary.notes.items()) {
      if (name != "route") {
        fields[name] = value;
        continue;
      }
      was_active = true;
      if (value != "") route = value.get<std::string>();
    }
    metrics_.add_request(route, summary.status, summary.seconds);
    const bool is_probe = (route == "/health" || route == "/metrics") && summary.status == 200;
    if (!is_probe) log_.write(summary.status >= 500 ? "error" : "info", "request", fields);
    if (!was_active) return;
    const std::lock_guard lock(mutex_);
    if (--n_active_ == 0) idle_.notify_all();
  }

  ServerOptions options_;
  Log log_;
  Metrics metrics_;
  std::map<std::pair<std::string, std::string>, Route> routes_;
  std::atomic<bool> is_draining_{false};
  std::mutex mutex_;
  std::condition_variable idle_;
  int n_active_ = 0;
  std::shared_ptr<const Ready> ready_;
  HttpServer http_;  // last: its threads use the rest
};

ApiServer::ApiServer(ServerOptions options, std::ostream& log)
    : impl_(std::make_unique<Impl>(std::move(options), log)) {}

ApiServer::~ApiServer() = default;

int ApiServer::start() {
  return impl_->start();
}

void ApiServer::set_ready(ServedModel model, engine::Service& service, CacheHooks hooks) {
  impl_->set_ready(std::move(model), service, std::move(hooks));
}

bool ApiServer::drain(std::chrono::steady_clock::time_point deadline) {
  return impl_->drain(deadline);
}

void ApiServer::stop() {
  impl_->stop();
}

Log& ApiServer::log() {
  return impl_->log();
}

}  // namespace memoir::server
