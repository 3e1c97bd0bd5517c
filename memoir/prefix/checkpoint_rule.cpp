#include "memoir/prefix/checkpoint_rule.h"

namespace memoir::prefix {

std::string_view checkpoint_rule_name(CheckpointRule rule) {
  switch (rule) {
    case CheckpointRule::kBranch:
      return "branch";
    case CheckpointRule::kTurnEnd:
      return "turn_end";
    case CheckpointRule::kPromptEnd:
      return "prompt_end";
    case CheckpointRule::kSpacing:
      return "spacing";
    case CheckpointRule::kLongAnswer:
      return "long_answer";
    case CheckpointRule::kAnswerEnd:
      return "answer_end";
    case CheckpointRule::kTail:
      return "tail";
    case CheckpointRule::kTaper:
      return "taper";
  }
  return "unknown";
}

}  // namespace memoir::prefix
