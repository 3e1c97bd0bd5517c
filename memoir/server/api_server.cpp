#include "memoir/server/api_server.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "memoir/server/embedding_routes.h"
#include "memoir/server/ollama_request.h"
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
    set_pool(std::make_unique<ModelPool>(std::move(model), service, std::move(hooks), metrics_));
  }

  void set_models(std::unique_ptr<ModelSource> source, PoolOptions options) {
    set_pool(std::make_unique<ModelPool>(std::move(source), std::move(options), metrics_, log_));
  }

  bool drain(std::chrono::steady_clock::time_point deadline) {
    is_draining_ = true;
    const auto is_idle = [&] { return n_active_ == 0; };
    std::unique_lock lock(mutex_);
    // First whoever answers, as an answer may ask the engine for more.
    const bool is_clean = idle_.wait_until(lock, deadline, is_idle);
    lock.unlock();
    if (ModelPool* const pool = pool_if_ready()) pool->drain(deadline);
    // What was cancelled must still be told to its clients.
    lock.lock();
    idle_.wait_until(lock, std::chrono::steady_clock::now() + std::chrono::seconds(1), is_idle);
    return is_clean;
  }

 private:
  using Route = std::function<void(Exchange&)>;

  HttpCallbacks callbacks() {
    HttpCallbacks callbacks;
    callbacks.handle = [this](Exchange& exchange) { handle(exchange); };
    callbacks.error_body = [](std::string_view path, const ApiError& error) {
      return dump(path.starts_with("/api/") ? ollama_error(error) : openai_error(error));
    };
    callbacks.health = [this] { return health(); };
    callbacks.allowed_methods = [this](const std::string& path) { return allowed_methods(path); };
    callbacks.on_done = [this](const ExchangeSummary& summary) { finish(summary); };
    callbacks.on_unexpected = [this](const std::string& what) { log_.write("error", "exception", {{"what", what}}); };
    return callbacks;
  }

  void set_pool(std::unique_ptr<ModelPool> pool) {
    const std::lock_guard lock(mutex_);
    pool_ = std::move(pool);
  }

  ModelPool* pool_if_ready() {
    const std::lock_guard lock(mutex_);
    return pool_.get();
  }

  // The models, for work that is new.
  ModelPool& need_models() {
    ModelPool* const pool = pool_if_ready();
    if (!pool) throw not_ready("the model is being loaded");
    if (is_draining_) throw not_ready("the server is stopping");
    return *pool;
  }

  static BackendLease backend_of(ModelPool::Lease lease) {
    const Backend* const backend = &lease->backend;
    return {std::move(lease), backend};
  }

  void get(const std::string& path, Route route) { routes_[{"GET", path}] = std::move(route); }
  void post(const std::string& path, Route route) { routes_[{"POST", path}] = std::move(route); }

  using Answer = void (*)(Exchange&, const Json&, BackendLease, const RouteOptions&);

  void openai(const std::string& path, Answer answer) {
    post(path, [this, answer](Exchange& exchange) {
      ModelPool& models = need_models();
      const Json body = parse_body(exchange.body);
      const std::string name = Fields(body).text("model").value_or("");
      answer(exchange, body, backend_of(models.acquire(name, exchange)), options_.routes);
    });
  }

  enum class Unload { kChat, kGenerate, kNever };
  void ollama(const std::string& path, Answer answer, Unload unload) {
    post(path, [this, answer, unload](Exchange& exchange) {
      ModelPool& models = need_models();
      const Json body = parse_body(exchange.body);
      const std::string name = requested_model(Fields(body));
      const bool is_chat = unload == Unload::kChat;
      if (!models.is_single() && unload != Unload::kNever && only_unloads(body, is_chat)) {
        models.expire(name);
        return answer_unloaded(exchange, body, is_chat);
      }
      answer(exchange, body, backend_of(models.acquire(name, exchange, read_keep_alive(Fields(body)))),
             options_.routes);
    });
  }

  void add_routes() {
    openai("/v1/chat/completions", answer_chat_completions);
    openai("/v1/completions", answer_completions);
    openai("/v1/embeddings", answer_embeddings);
    ollama("/api/generate", answer_ollama_generate, Unload::kGenerate);
    ollama("/api/chat", answer_ollama_chat, Unload::kChat);
    ollama("/api/embed", answer_ollama_embed, Unload::kNever);
    ollama("/api/embeddings", answer_ollama_embeddings, Unload::kNever);
    get("/v1/models", [this](Exchange& exchange) {
      Json list = Json::array();
      for (const ListedModel& model : need_models().list()) list.push_back(openai_model(model));
      exchange.reply(200, dump({{"object", "list"}, {"data", std::move(list)}}));
    });
    get("/api/tags", [this](Exchange& exchange) { exchange.reply(200, dump(ollama_tags(need_models().list()))); });
    get("/api/ps", [this](Exchange& exchange) {
      Json list = Json::array();
      for (const ModelPool::Running& one : need_models().running()) {
        list.push_back(ollama_running(one.listed, one.ready->model, one.expires_in));
      }
      exchange.reply(200, dump({{"models", std::move(list)}}));
    });
    post("/api/show", [this](Exchange& exchange) {
      ModelPool& models = need_models();
      const Json json = parse_body(exchange.body);
      const Fields body(json);
      const auto model = models.describe(requested_model(body));
      ollama_model_name(body, *model);
      exchange.reply(200, dump(ollama_show(*model)));
    });
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
    if (exchange.method == "POST") {  // all work is; who looks at health again and again must not hold up a drain
      const std::lock_guard lock(mutex_);
      ++n_active_;
    }
    exchange.note("route", "");  // says to finish() that this one got here
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

  // Of a path that is not there: all that there are.
  std::string allowed_methods(const std::string& path) const {
    const bool has_get = routes_.contains({"GET", path}) || path.starts_with(kModelPath);
    const bool has_post = routes_.contains({"POST", path});
    if (has_get == has_post) return "GET, HEAD, POST, OPTIONS";
    return has_get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
  }

  void show_model(Exchange& exchange) {
    const std::string name = exchange.path.substr(kModelPath.size());
    for (const ListedModel& model : need_models().list()) {
      if (name != model.name && name != model.name + ":latest") continue;
      exchange.note("route", std::string(kModelPath));
      return exchange.reply(200, dump(openai_model(model)));
    }
    throw ApiError(404, "the model '" + name.substr(0, 200) + "' does not exist", "model", "model_not_found");
  }

  std::pair<int, std::string> health() {
    if (!pool_if_ready()) return {503, dump({{"status", "loading"}})};
    if (is_draining_) return {503, dump({{"status", "draining"}})};
    return {200, dump({{"status", "ok"}})};
  }

  void show_metrics(Exchange& exchange) {
    ModelPool* const pool = pool_if_ready();
    exchange.reply(200, metrics_.text(pool ? pool->stats() : engine::ServiceStats{}), kMetricsType);
  }

  // Of one model as it is, of several by name, those that are loaded.
  void show_cache(Exchange& exchange) {
    Json all = Json::object();
    for_each_cache([&](const ReadyModel& ready) { all[ready.model.name()] = ready.hooks.describe(); });
    exchange.reply(200, dump(need_models().is_single() ? *all.begin() : all));
  }

  void clear_cache(Exchange& exchange) {
    for_each_cache([](const ReadyModel& ready) { ready.hooks.clear(); });
    exchange.reply(200, dump({{"status", "cleared"}}));
  }

  void for_each_cache(const std::function<void(const ReadyModel&)>& act) {
    ModelPool& models = need_models();
    for (const ModelPool::Running& one : models.running()) {
      if (one.ready->hooks.describe && one.ready->hooks.clear) {
        act(*one.ready);
      } else if (models.is_single()) {
        throw ApiError(501, "the engine keeps no prefix cache", {}, "not_supported");
      }
    }
  }

  void finish(const ExchangeSummary& summary) {
    Json fields = {{"id", summary.request_id}, {"remote", summary.remote},
                   {"method", summary.method}, {"path", summary.path.substr(0, 200)},
                   {"status", summary.status}, {"seconds", summary.seconds}};
    std::string route = "other";
    bool was_handled = false;
    for (const auto& [name, value] : summary.notes.items()) {
      if (name != "route") {
        fields[name] = value;
        continue;
      }
      was_handled = true;
      if (value != "") route = value.get<std::string>();
    }
    metrics_.add_request(route, summary.status, summary.seconds);
    const bool is_probe = (route == "/health" || route == "/metrics") && summary.status == 200;
    if (!is_probe) log_.write(summary.status >= 500 ? "error" : "info", "request", fields);
    if (!was_handled || summary.method != "POST") return;
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
  std::unique_ptr<ModelPool> pool_;  // null while loading
  HttpServer http_;                  // last: its threads use the rest
};

ApiServer::ApiServer(ServerOptions options, std::ostream& log)
    : impl_(std::make_unique<Impl>(std::move(options), log)) {}

ApiServer::~ApiServer() = default;

int ApiServer::start() {
  return impl_->start();
}

void ApiServer::set_models(std::unique_ptr<ModelSource> source, PoolOptions options) {
  impl_->set_models(std::move(source), std::move(options));
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
