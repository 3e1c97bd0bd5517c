#include "memoir/server/metrics.h"

#include <sstream>

namespace memoir::server {
namespace {

std::string number(double value) {
  std::ostringstream text;
  text.precision(12);
  text << value;
  return text.str();
}

std::string head(const std::string& name, const std::string& help, const char* type) {
  return "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

std::string counter(const std::string& name, const std::string& help, std::uint64_t value) {
  return head(name, help, "counter") + name + " " + std::to_string(value) + "\n";
}

std::string gauge(const std::string& name, const std::string& help, std::uint64_t value) {
  return head(name, help, "gauge") + name + " " + std::to_string(value) + "\n";
}

std::string engine_text(const engine::ServiceStats& stats) {
  std::string text;
  text += gauge("memoir_requests_running", "Requests that the engine works on",
                static_cast<std::uint64_t>(stats.n_running));
  text +=
      gauge("memoir_requests_queued", "Requests that wait for the engine", static_cast<std::uint64_t>(stats.n_queued));
  text += counter("memoir_requests_submitted_total", "Requests that the engine took", stats.n_submitted);
  text += counter("memoir_requests_refused_total", "Requests that the engine refused", stats.n_refused);
  text += counter("memoir_requests_failed_total", "Requests that failed in the engine", stats.n_failed);
  text += head("memoir_requests_finished_total", "Requests that ended, by reason", "counter");
  for (const auto& [reason, count] : stats.n_finished) {
    text += "memoir_requests_finished_total{reason=\"" + std::string(finish_reason_name(reason)) + "\"} " +
            std::to_string(count) + "\n";
  }
  text += counter("memoir_prompt_tokens_total", "Tokens of prompts", stats.n_prompt_tokens);
  text +=
      counter("memoir_cached_tokens_total", "Tokens of prompts that were not computed again", stats.n_cached_tokens);
  text += counter("memoir_completion_tokens_total", "Tokens generated", stats.n_completion_tokens);
  text += counter("memoir_drafted_tokens_total", "Tokens drafted", stats.n_drafted_tokens);
  text += counter("memoir_accepted_tokens_total", "Drafted tokens that were right", stats.n_accepted_tokens);
  text += counter("memoir_draft_rounds_total", "Passes with drafts, counted for each request in them",
                  stats.n_draft_rounds);
  text += counter("memoir_steps_total", "Steps of the engine", stats.n_steps);
  text += gauge("memoir_cache_bytes", "Bytes of running requests' caches", stats.cache_bytes);
  const engine::PrefixCacheCounts& kept = stats.prefix_cache;
  text += head("memoir_prefix_cache_bytes", "Bytes kept for later requests, by tier", "gauge");
  text += "memoir_prefix_cache_bytes{tier=\"memory\"} " + std::to_string(kept.bytes) + "\n";
  text += "memoir_prefix_cache_bytes{tier=\"directory\"} " + std::to_string(kept.directory_bytes) + "\n";
  text += counter("memoir_prefix_cache_lookups_total", "Prompts that were looked for in what is kept", kept.n_lookups);
  text += counter("memoir_prefix_cache_hits_total", "Lookups that found a beginning", kept.n_hits);
  text += counter("memoir_prefix_cache_evicted_bytes_total", "Bytes that went from memory to make room",
                  kept.n_evicted_bytes);
  return text;
}

}  // namespace

void Histogram::add(double seconds) {
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    if (seconds <= kBounds[i]) ++counts_[i];
  }
  ++n_values_;
  sum_ += seconds;
}

std::string Histogram::text(const std::string& name, const std::string& help) const {
  std::string text = head(name, help, "histogram");
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    text += name + "_bucket{le=\"" + number(kBounds[i]) + "\"} " + std::to_string(counts_[i]) + "\n";
  }
  text += name + "_bucket{le=\"+Inf\"} " + std::to_string(n_values_) + "\n";
  return text + name + "_sum " + number(sum_) + "\n" + name + "_count " + std::to_string(n_values_) + "\n";
}

void Metrics::add_request(const std::string& route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
  request_s_.add(seconds);
}

void Metrics::add_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_s_.add(seconds);
}

void Metrics::add_token_interval(double seconds) {
  const std::lock_guard lock(mutex_);
  token_interval_s_.add(seconds);
}

void Metrics::add_queue_time(double seconds) {
  const std::lock_guard lock(mutex_);
  queue_s_.add(seconds);
}

void Metrics::add_client_gone() {
  const std::lock_guard lock(mutex_);
  ++n_clients_gone_;
}

void Metrics::add_model_load() {
  const std::lock_guard lock(mutex_);
  ++n_model_loads_;
}

void Metrics::add_model_unload() {
  const std::lock_guard lock(mutex_);
  ++n_model_unloads_;
}

void add_counts(engine::ServiceStats& sum, const engine::ServiceStats& more) {
  sum.n_submitted += more.n_submitted;
  sum.n_refused += more.n_refused;
  for (const auto& [reason, n] : more.n_finished) sum.n_finished[reason] += n;
  sum.n_failed += more.n_failed;
  sum.n_prompt_tokens += more.n_prompt_tokens;
  sum.n_cached_tokens += more.n_cached_tokens;
  sum.n_completion_tokens += more.n_completion_tokens;
  sum.n_drafted_tokens += more.n_drafted_tokens;
  sum.n_accepted_tokens += more.n_accepted_tokens;
  sum.n_draft_rounds += more.n_draft_rounds;
  sum.n_steps += more.n_steps;
  sum.prefix_cache.n_lookups += more.prefix_cache.n_lookups;
  sum.prefix_cache.n_hits += more.prefix_cache.n_hits;
  sum.prefix_cache.n_evicted_bytes += more.prefix_cache.n_evicted_bytes;
}

std::string Metrics::text(const engine::ServiceStats& stats) const {
  std::string text = engine_text(stats);
  const std::lock_guard lock(mutex_);
  text += head("memoir_http_requests_total", "HTTP requests, by route and status", "counter");
  for (const auto& [key, count] : requests_) {
    text += "memoir_http_requests_total{route=\"" + key.first + "\",status=\"" + std::to_string(key.second) + "\"} " +
            std::to_string(count) + "\n";
  }
  text += counter("memoir_clients_gone_total", "Clients that left before their answer was done", n_clients_gone_);
  text += counter("memoir_model_loads_total", "Models loaded because they were asked for", n_model_loads_);
  text += counter("memoir_model_unloads_total", "Models unloaded again", n_model_unloads_);
  text += request_s_.text("memoir_http_request_seconds", "From a request's head to the end of its answer");
  text += queue_s_.text("memoir_queue_seconds", "From asking the engine until it began");
  text += first_token_s_.text("memoir_time_to_first_token_seconds", "From asking the engine to the first token");
  text += token_interval_s_.text("memoir_token_interval_seconds", "Mean time between a request's tokens");
  return text;
}

}  // namespace memoir::server
