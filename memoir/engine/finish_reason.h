#pragma once

// Why a text ended. No state, any thread.

#include <string_view>

namespace memoir::engine {

enum class FinishReason {
  kStop,       // a stop token or a stop string
  kLength,     // as many tokens as asked for, or the context is full
  kCancelled,  // the caller's wish, or a deadline
};

/// "stop", "length" or "cancelled".
std::string_view finish_reason_name(FinishReason reason);

}  // namespace memoir::engine
