#pragma once

// A request's body, as long as Content-Length says or in chunks.

#include <cstddef>
#include <optional>
#include <string>

#include "memoir/server/api_error.h"
#include "memoir/server/connection.h"

namespace memoir::server {

struct BodyLimits {
  std::size_t max_bytes = 32U << 20;
  std::size_t max_trailer_bytes = 64U << 10;
};

/// The body behind the head that was read: `length` bytes, or without one what its chunks hold. Extensions of chunks
/// and the fields of a trailer are dropped. Throws ApiError: 413, 431 (trailer), 408, 400; then the rest is unread.
std::string read_body(Connection& connection, std::optional<std::size_t> length, const BodyLimits& limits);

/// 413: the body is larger than that.
ApiError body_too_large(std::size_t max_bytes);

}  // namespace memoir::server
