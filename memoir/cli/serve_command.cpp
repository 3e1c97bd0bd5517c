#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/number_checks.h"
#include "memoir/cli/served_files.h"
#include "memoir/cli/signals.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/cli/text_checks.h"
#include "memoir/engine/scheduler.h"
#include "memoir/server/api_server.h"

namespace memoir::cli {
namespace {

namespace fs = std::filesystem;

struct ServeArguments {
  ServingOptions serving;
  server::ServerOptions server;
  server::PoolOptions pool;
  std::vector<std::string> models;
  std::string models_dir;
  std::string alias;
  std::string log_format = "text";
  std::string pooling = "mean";
  int max_context = 0;
  std::uint64_t max_cache_bytes = 0;  // 0: no bound
  int keep_alive_s = 10;
  int model_keep_alive_s = 300;  // negative: for ever
  int load_wait_s = 60;
  std::uint64_t max_model_bytes = 0;  // 0: no bound
  int drain_timeout_s = 30;
  std::vector<CLI::Option*> of_several = {};  // without effect for one model
};

// ---- The run

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void settle(ServeArguments& arguments) {
  server::ServerOptions& server = arguments.server;
  server.version = MEMOIR_VERSION;
  server.log_format = arguments.log_format == "json" ? server::LogFormat::kJson : server::LogFormat::kText;
  server.routes.pooling = arguments.pooling == "last" ? engine::Pooling::kLast : engine::Pooling::kMean;
  server.routes.keep_alive_interval = std::chrono::seconds(arguments.keep_alive_s);
  arguments.serving.service.prefix_cache_bytes = arguments.serving.prefix_cache.bytes();
  if (arguments.max_context > 0) arguments.serving.service.max_context = arguments.max_context;
  if (arguments.max_cache_bytes > 0) arguments.serving.service.max_cache_bytes = arguments.max_cache_bytes;
  arguments.pool.keep_alive.reset();
  if (arguments.model_keep_alive_s >= 0) arguments.pool.keep_alive = std::chrono::seconds(arguments.model_keep_alive_s);
  arguments.pool.load_wait = std::chrono::seconds(arguments.load_wait_s);
  if (arguments.max_model_bytes > 0) arguments.pool.max_bytes = arguments.max_model_bytes;
}

/// Serves until a signal comes.
void serve_until_stopped(server::ApiServer& server, int drain_timeout_s, const StopSignals& signals) {
  signals.wait();
  server.log().write("info", "draining", {{"seconds", drain_timeout_s}});
  const bool is_clean = server.drain(std::chrono::steady_clock::now() + std::chrono::seconds(drain_timeout_s));
  server.stop();
  server.log().write("info", "stopped", {{"clean", is_clean}});
}

void serve_one(const ServeArguments& arguments, server::ApiServer& server, const std::string& address) {
  const fs::path path = resolve_model(arguments.serving.run.model);
  model::LoadedModel loaded = arguments.serving.run.load();
  arguments.serving.kv.check(*loaded.model);
  const std::string own_name = served_name(find_model(arguments.serving.run.model));
  const std::string name = arguments.alias.empty() ? own_name : arguments.alias;
  server::ServedModel model = served_model(loaded, path, name, arguments.serving);
  ServingOptions serving = arguments.serving;
  if (const auto package = find_package(serving.run.model)) serving.draft.use_for_auto(package->draft);
  serving.service.drafting = served_drafting(loaded, path, serving);
  const std::unique_ptr<engine::Service> service = served_engine(std::move(loaded), path, serving);
  const StopSignals signals;
  server.set_ready(std::move(model), *service, cache_hooks(*service));
  server.log().write("info", "ready", {{"address", address}, {"model", name}});
  write_out(address + "\n");
  serve_until_stopped(server, arguments.drain_timeout_s, signals);
}

void serve_several(const ServeArguments& arguments, server::ApiServer& server, const std::string& address) {
  std::vector<fs::path> paths;
  for (const std::string& model : arguments.models) paths.push_back(find_model(model));
  const auto on_skipped = [&server](const fs::path& path, const std::string& why) {
    server.log().write("warning", "no model that can be served", {{"path", path.string()}, {"what", why}});
  };
  ServingOptions serving = arguments.serving;
  serving.service.prefix_cache_bytes /= static_cast<std::size_t>(arguments.pool.max_loaded);
  if (serving.service.max_cache_bytes) {
    *serving.service.max_cache_bytes /= static_cast<std::size_t>(arguments.pool.max_loaded);
  }
  auto files = std::make_unique<ServedFiles>(paths, arguments.models_dir, serving, on_skipped);
  const std::size_t n_models = files->list().size();
  if (n_models == 0) throw UsageError("--models-dir: there is no model in " + arguments.models_dir);
  server::PoolOptions pool = arguments.pool;
  if (!paths.empty()) pool.default_model = served_name(paths.front());
  arguments.serving.run.prepare();
  const StopSignals signals;
  server.set_models(std::move(files), std::move(pool));
  server.log().write("info", "ready", {{"address", address}, {"models", n_models}});
  write_out(address + "\n");
  serve_until_stopped(server, arguments.drain_timeout_s, signals);
}

int run_serve(ServeArguments arguments) {
  settle(arguments);
  const std::string host = arguments.server.http.host;
  const bool is_open = arguments.server.http.api_keys.empty() && !is_loopback(host);
  const bool has_several = arguments.models.size() > 1 || !arguments.models_dir.empty();
  if (arguments.models.empty() && arguments.models_dir.empty()) {
    throw UsageError("--model or --models-dir is required");
  }
  arguments.serving.draft.check();
  for (const CLI::Option* option : arguments.of_several) {
    if (!has_several && option->count() > 0) throw UsageError(option->get_name() + " is for several models");
  }
  if (has_several && !arguments.serving.draft.is_for_any()) {
    throw UsageError("--draft " + arguments.serving.draft.name() +
                     ": is for one model; for several, ngram or auto (what each carries)");
  }
  if (has_several && !arguments.alias.empty()) throw UsageError("--alias is for one model");
  if (!arguments.models_dir.empty() && !fs::is_directory(arguments.models_dir)) {
    throw UsageError("--models-dir: " + arguments.models_dir + " is no directory");
  }
  if (!has_several) arguments.serving.run.model = arguments.models.front();

  // It answers that it is loading while it is.
  server::ApiServer server(arguments.server, std::cerr);
  arguments.serving.on_warning = [&server](const std::string& why) {
    server.log().write("warning", "the prefix cache's directory takes no more", {{"what", why}});
  };
  const int port = server.start();
  if (is_open) server.log().write("warning", "everyone who reaches " + host + " may use this server: --api-key");
  const std::string address =
      "http://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  has_several ? serve_several(arguments, server, address) : serve_one(arguments, server, address);
  return kDone;
}

void add_model_options(CLI::App& command, ServeArguments& arguments) {
  command.add_option("-m,--model", arguments.models, std::string(kModelHelp) + "; may be repeated")
      ->type_name("MODEL")
      ->take_all()
      ->expected(1);
  command
      .add_option("--models-dir", arguments.models_dir,
                  "serve every model in this folder, each loaded when it is asked for")
      ->type_name("DIR")
      ->check(not_empty());
  command.add_option("--alias", arguments.alias, "the model's name for clients (default: of its file)")
      ->type_name("NAME")
      ->check(not_empty());
  arguments.serving.run.add_device_to(command);
  arguments.serving.kv.add_formats_to(command);
  const auto whole = [&](const char* name, auto& value, std::int64_t low, std::uint64_t high, const char* help) {
    arguments.of_several.push_back(command.add_option(name, value, help)
                                       ->type_name("N")
                                       ->transform(whole_number(low, high))
                                       ->capture_default_str());
  };
  whole("--model-keep-alive", arguments.model_keep_alive_s, -1, 1'000'000'000,
        "of several models: seconds that one stays loaded unused, -1 for ever");
  whole("--max-loaded-models", arguments.pool.max_loaded, 1, 1 << 20, "of several models: the most loaded at once");
  whole("--max-model-bytes", arguments.max_model_bytes, 0, std::uint64_t{1} << 50,
        "of several models: bytes of the weights of all that are loaded, 0 for no bound");
  whole("--load-wait", arguments.load_wait_s, 0, 86'400, "of several models: seconds a request waits for its model");
  command.add_option("--pooling", arguments.pooling, "of tokens' states into an embedding")
      ->check(CLI::IsMember({"mean", "last"}))
      ->type_name("mean|last")
      ->capture_default_str();
}

void add_service_options(CLI::App& command, ServeArguments& arguments) {
  const auto whole = [&](const char* name, auto& value, std::int64_t low, std::uint64_t high, const char* help) {
    return command.add_option(name, value, help)->type_name("N")->transform(whole_number(low, high));
  };
  whole("--max-running", arguments.serving.service.max_running, 1, 1024, "requests that run side by side")
      ->capture_default_str();
  whole("--max-queued", arguments.serving.service.max_queued, 0, 1 << 20, "requests that wait; beyond, 429")
      ->capture_default_str();
  whole("--prefill-chunk", arguments.serving.service.prefill_tokens_per_step, 1, 1 << 20,
        "tokens of prompts in one step")
      ->capture_default_str();
  whole("--max-cache-bytes", arguments.max_cache_bytes, 0, std::uint64_t{1} << 50,
        "of the keys, values and states of the requests that run; beyond, some are paged out\nand wait; of several "
        "models divided among those that may be loaded; 0 for no bound")
      ->capture_default_str();
  arguments.serving.draft.add_to(command);
  arguments.serving.prefix_cache.add_to(
      command, "requests have computed, for later ones; of several models divided among\nthose that may be loaded");
  whole("--max-context", arguments.max_context, 1, 1 << 30, "tokens of a prompt and its answer (default: the model's)");
}

void add_http_options(CLI::App& command, ServeArguments& arguments) {
  server::HttpOptions& http = arguments.server.http;
  const auto whole = [&](const char* name, auto& value, std::int64_t low, std::uint64_t high, const char* help) {
    command.add_option(name, value, help)->type_name("N")->transform(whole_number(low, high))->capture_default_str();
  };
  command.add_option("--host", http.host, "the address to listen on")->type_name("HOST")->capture_default_str();
  whole("--port", http.port, 0, 65535, "its port, 0 for any that is free; printed on stdout");
  command.add_option("--api-key", http.api_keys, "who asks must know it; may be repeated")
      ->type_name("KEY")
      ->check(not_empty())
      ->envname("MEMOIR_API_KEY")
      ->take_all()
      ->expected(1);
  command.add_option("--cors-origin", http.cors_origins, "pages that may ask, * for all; may be repeated")
      ->type_name("ORIGIN")
      ->check(page_origin())
      ->take_all()
      ->expected(1);
  whole("--max-connections", http.max_connections, 1, 1 << 14, "connections at once");
  whole("--max-body-bytes", http.max_body_bytes, 1024, std::uint64_t{1} << 32, "of a request");
  whole("--keep-alive", arguments.keep_alive_s, 1, 3600, "seconds of silence before a stream gets a comment");
  whole("--drain-timeout", arguments.drain_timeout_s, 0, 86'400, "seconds that running answers have at the end");
}

}  // namespace

void add_serve_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command = app.add_subcommand("serve", "answer over HTTP as OpenAI and Ollama do");
  add_model_options(*command, *arguments);
  add_http_options(*command, *arguments);
  add_service_options(*command, *arguments);
  command->add_option("--log-format", arguments->log_format, "of the log on stderr")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("text|json")
      ->capture_default_str();
  command->add_flag("--log-prompts", arguments->server.routes.logs_prompts, "write prompts into the log");
  command->callback([arguments, &action] { action = [arguments] { return run_serve(*arguments); }; });
}

}  // namespace memoir::cli
