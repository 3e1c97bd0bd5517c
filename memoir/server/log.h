#pragma once

// The server's log: one line an event on stderr, as text or as a JSON object. Any thread.

#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

namespace memoir::server {

enum class LogFormat { kText, kJson };

class Log {
 public:
  /// The stream must outlive the log.
  Log(std::ostream& out, LogFormat format) : out_(out), format_(format) {}

  /// fields: an object; its values are written as they are in JSON, and after "name=" in text.
  void write(const std::string& level, const std::string& message,
             const nlohmann::ordered_json& fields = nlohmann::ordered_json::object());

 private:
  std::ostream& out_;
  LogFormat format_;
  std::mutex mutex_;
};

/// "2026-11-28T09:25:39.123Z"; n_digits of the second's fraction, 0 to 9.
std::string utc_time(std::chrono::system_clock::time_point time, int n_digits);

}  // namespace memoir::server
