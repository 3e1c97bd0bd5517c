#pragma once

// Many prompts through one service, each result as soon as it is there. No MLX.
//
// Requests join and leave the service's steps as they come and end; one that is wrong or fails does not disturb the
// others. What each gets does not depend on who ran beside it (scheduler.h).
// Threads: any but the service's own; callbacks are called on the caller's.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memoir/engine/service.h"

namespace memoir::engine {

struct BatchResult {
  std::size_t index = 0;  // of the request, in the order of the source
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason finish_reason = FinishReason::kLength;
  Counts counts;
  std::optional<std::string> error;  // it was refused, or failed after what is above
};

/// The next request, its on_event left empty; nullopt at the end. Asked as late as possible, so that a long file need
/// not be in memory.
using BatchSource = std::function<std::optional<Request>()>;

/// Runs all requests of the source, at most max_open at a time in the service, and returns when the last has ended.
/// on_result gets each once, as they end. A service that refuses a request (full, draining) gives a result with an
/// error.
/// is_ready: whether next() would not wait for something outside; asked several times a second, so that results are
/// handed out while it would. Empty: it never waits.
/// Throws std::invalid_argument if max_open < 1, and what the callbacks throw; what is open is then cancelled.
void generate_batch(Service& service, int max_open, const BatchSource& next,
                    const std::function<void(const BatchResult&)>& on_result,
                    const std::function<bool()>& is_ready = {});

}  // namespace memoir::engine
