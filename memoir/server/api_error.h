#pragma once

// A request that is refused or failed, before each interface puts it into its own words.

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "memoir/base/printable.h"

namespace memoir::server {

/// What clients sent and messages quote is written out where it can't be printed: a NUL would end the message.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(printable(message, message.size())),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  /// The field at fault ("messages[0].content"), or empty.
  const std::string& param() const { return param_; }
  /// A word for programs ("model_not_found"), or empty.
  const std::string& code() const { return code_; }

  std::optional<int> retry_after_s;

 private:
  int status_;
  std::string param_;
  std::string code_;
};

/// 400 naming the field: "<field>: <reason>".
inline ApiError bad_field(const std::string& field, const std::string& reason) {
  return ApiError(400, field + ": " + reason, field);
}

inline ApiError unsupported_field(const std::string& field, const std::string& reason) {
  return ApiError(400, field + ": " + reason, field, "unsupported_parameter");
}

/// 429: the queue is full.
inline ApiError queue_full() {
  ApiError error(429, "too many requests wait already; try again", {}, "queue_full");
  error.retry_after_s = 1;
  return error;
}

/// 503: the server is loading its model, or stopping.
inline ApiError not_ready(const std::string& why) {
  ApiError error(503, why, {}, "unavailable");
  error.retry_after_s = 2;
  return error;
}

/// 503: a request that runs is cancelled because the server stops.
inline ApiError cancelled_by_stop() {
  return not_ready("the request was cancelled: the server is stopping");
}

/// 500: the engine failed on this request.
inline ApiError engine_failure(const std::string& message) {
  return ApiError(500, "the engine failed: " + message, {}, "engine_error");
}

}  // namespace memoir::server
