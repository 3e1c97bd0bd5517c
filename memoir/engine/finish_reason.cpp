#include "memoir/engine/finish_reason.h"

#include <stdexcept>

namespace memoir::engine {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  throw std::invalid_argument("[engine.finish_reason_name] not a FinishReason");
}

}  // namespace memoir::engine
