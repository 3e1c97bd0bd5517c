#pragma once

// Counts and times of the server itself, and with the engine's statistics the text that Prometheus reads. Any thread.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "memoir/engine/service.h"

namespace memoir::server {

/// How many values lie at or below each of a row of bounds, in seconds.
class Histogram {
 public:
  static constexpr std::array<double, 14> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                     1,     2.5,  5,     10,   30,  60,   120};
  void add(double seconds);
  /// Its lines in Prometheus' text format.
  std::string text(const std::string& name, const std::string& help) const;

 private:
  std::array<std::uint64_t, kBounds.size()> counts_{};
  std::uint64_t n_values_ = 0;
  double sum_ = 0;
};

class Metrics {
 public:
  /// route: one of the server's own, so that there are few.
  void add_request(const std::string& route, int status, double seconds);
  void add_first_token(double seconds);
  void add_token_interval(double seconds);
  void add_queue_time(double seconds);
  void add_client_gone();
  void add_model_load();
  void add_model_unload();

  std::string text(const engine::ServiceStats& stats) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> requests_;
  Histogram request_s_;
  Histogram first_token_s_;
  Histogram token_interval_s_;
  Histogram queue_s_;
  std::uint64_t n_clients_gone_ = 0;
  std::uint64_t n_model_loads_ = 0;
  std::uint64_t n_model_unloads_ = 0;
};

/// Adds what `more` has counted, not what it has just now.
void add_counts(engine::ServiceStats& sum, const engine::ServiceStats& more);

}  // namespace memoir::server
