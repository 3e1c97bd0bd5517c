#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "memoir/base/error.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/memory_size.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/number_checks.h"
#include "memoir/cli/signals.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/scheduler.h"
#include "memoir/server/api_server.h"

namespace memoir::cli {
namespace {

namespace fs = std::filesystem;

struct ServeArguments {
  RunOptions run;
  engine::ServiceOptions service;
  server::ServerOptions server;
  std::string alias;
  std::string log_format = "text";
  std::string pooling = "mean";
  int max_context = 0;
  int keep_alive_s = 10;
  int drain_timeout_s = 30;
};

// ---- The model

std::string model_name(const ServeArguments& arguments, const fs::path& path) {
  if (!arguments.alias.empty()) return arguments.alias;
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path last = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return last.extension() == ".gguf" ? last.stem().string() : last.string();
}

server::ModelDetails details_of(const model::LoadedModel& loaded, const fs::path& path) {
  server::ModelDetails details;
  const model::ModelConfig& config = loaded.model->config();
  details.family = config.model_type;
  details.format = path.extension() == ".gguf" ? "gguf" : "safetensors";
  if (config.quantization) details.quantization = std::to_string(config.quantization->bits) + "-bit";
  details.size_bytes = loaded.model->size_bytes();
  std::error_code error;
  const fs::file_time_type modified = fs::last_write_time(path, error);
  if (!error) {
    const auto age = fs::file_time_type::clock::now() - modified;
    details.modified =
        std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::system_clock::duration>(age);
  }
  return details;
}

server::ServedModel served_model(const ServeArguments& arguments, const model::LoadedModel& loaded) {
  if (!loaded.tokenizer) throw UnsupportedError(arguments.run.model, "tokenizer.json", "there is none to serve with");
  const fs::path path = resolve_model(arguments.run.model);
  int context = loaded.model->context();
  if (arguments.service.max_context) context = std::min(context, *arguments.service.max_context);
  return server::ServedModel({.name = model_name(arguments, path),
                              .tokenizer = *loaded.tokenizer,
                              .end_tokens = loaded.end_tokens,
                              .context = context,
                              .n_vocab = loaded.model->config().vocab_size,
                              .details = details_of(loaded, path),
                              .n_embedding = loaded.model->config().hidden_size});
}

// ---- The run

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

int run_serve(ServeArguments arguments) {
  arguments.server.version = MEMOIR_VERSION;
  arguments.server.log_format = arguments.log_format == "json" ? server::LogFormat::kJson : server::LogFormat::kText;
  arguments.server.routes.pooling = arguments.pooling == "last" ? engine::Pooling::kLast : engine::Pooling::kMean;
  arguments.server.routes.keep_alive_interval = std::chrono::seconds(arguments.keep_alive_s);
  if (arguments.max_context > 0) arguments.service.max_context = arguments.max_context;
  const std::string host = arguments.server.http.host;
  const bool is_open = arguments.server.http.api_keys.empty() && !is_loopback(host);

  // It answers that it is loading while it is.
  server::ApiServer server(arguments.server, std::cerr);
  const int port = server.start();
  if (is_open) server.log().write("warning", "everyone who reaches " + host + " may use this server: --api-key");
  const std::string address =
      "http://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  model::LoadedModel loaded = arguments.run.load();
  server::ServedModel model = served_model(arguments, loaded);
  const std::string name = model.name();
  const std::unique_ptr<engine::Service> service = engine::make_service(std::move(loaded), arguments.service);
  const StopSignals signals;
  const server::CacheHooks hooks{[&service] { return server::Json::parse(service->prefix_cache_report()); },
                                 [&service] { service->clear_prefix_cache(); }};
  server.set_ready(std::move(model), *service, hooks);
  server.log().write("info", "ready", {{"address", address}, {"model", name}});
  write_out(address + "\n");

  signals.wait();
  server.log().write("info", "draining", {{"seconds", arguments.drain_timeout_s}});
  const bool is_clean =
      server.drain(std::chrono::steady_clock::now() + std::chrono::seconds(arguments.drain_timeout_s));
  server.stop();
  server.log().write("info", "stopped", {{"clean", is_clean}});
  return kDone;
}

void add_service_options(CLI::App& command, ServeArguments& arguments) {
  const auto whole = [&](const char* name, auto& value, std::int64_t low, std::uint64_t high, const char* help) {
    return command.add_option(name, value, help)->type_name("N")->transform(whole_number(low, high));
  };
  whole("--max-running", arguments.service.max_running, 1, 1024, "requests that run side by side")
      ->capture_default_str();
  whole("--max-queued", arguments.service.max_queued, 0, 1 << 20, "requests that wait; beyond, 429")
      ->capture_default_str();
  whole("--prefill-chunk", arguments.service.prefill_tokens_per_step, 1, 1 << 20, "tokens of prompts in one step")
      ->capture_default_str();
  whole("--prefix-cache-bytes", arguments.service.prefix_cache_bytes, 0, std::uint64_t{1} << 50,
        "bytes kept of what requests have computed, for later ones (default: a quarter of the memory)");
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
      ->envname("MEMOIR_API_KEY")
      ->take_all()
      ->expected(1);
  command.add_option("--cors-origin", http.cors_origins, "pages that may ask, * for all; may be repeated")
      ->type_name("ORIGIN")
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
  arguments->service.prefix_cache_bytes = default_prefix_cache_bytes();
  CLI::App* command = app.add_subcommand("serve", "answer over HTTP as OpenAI and Ollama do");
  arguments->run.add_to(*command);
  command->add_option("--alias", arguments->alias, "the model's name for clients (default: of its file)")
      ->type_name("NAME");
  command->add_option("--pooling", arguments->pooling, "of tokens' states into an embedding")
      ->check(CLI::IsMember({"mean", "last"}))
      ->type_name("mean|last")
      ->capture_default_str();
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
