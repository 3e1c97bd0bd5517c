#pragma once

// The server: OpenAI's and Ollama's interfaces, health, metrics and the cache's, over one engine and its model, or
// over several that are loaded when they are asked for.
//
//   loading --set_ready() or set_models()--> ready --begin_drain()--> draining --stop()--> stopped
// While loading and draining, /health and everything that needs the model answer 503; running answers go on.
// Threads: any, for every member; stop() once.

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "memoir/engine/service.h"
#include "memoir/server/http_server.h"
#include "memoir/server/log.h"
#include "memoir/server/model_pool.h"
#include "memoir/server/openai_routes.h"
#include "memoir/server/request_json.h"
#include "memoir/server/served_model.h"

namespace memoir::server {

struct ServerOptions {
  HttpOptions http;
  RouteOptions routes;
  LogFormat log_format = LogFormat::kText;
  std::string version = "0";
};

class ApiServer {
 public:
  /// log must outlive the server.
  ApiServer(ServerOptions options, std::ostream& log);
  ~ApiServer();  // stops
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  /// Listens and answers from now on. Returns the port. Throws std::runtime_error if it can't.
  int start();

  /// The model can be asked. The service must outlive stop(). Once, or set_models() once.
  void set_ready(ServedModel model, engine::Service& service, CacheHooks hooks = {});

  /// These models can be asked for.
  void set_models(std::unique_ptr<ModelSource> source, PoolOptions options);

  /// Takes no new work; lets what runs go on until it has ended and is sent, or the deadline, when it is cancelled.
  /// Returns true if all of it ended by itself.
  bool drain(std::chrono::steady_clock::time_point deadline);

  /// Ends all connections and returns when no thread of the server is left.
  void stop();

  Log& log();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memoir::server
