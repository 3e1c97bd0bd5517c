#pragma once

// Why a checkpoint was placed: the rules of policy.h. The trie keeps it beside the checkpoint, counts for each rule how
// many were used, and eviction learns from that which rule's checkpoints are worth their bytes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace memoir::prefix {

enum class CheckpointRule : std::uint8_t {
  kBranch,      // where a prompt left what was stored
  kTurnEnd,     // the end of a turn of the chat
  kPromptEnd,   // just before the prompt's end
  kSpacing,     // every so many tokens of a prompt
  kLongAnswer,  // every so many tokens of an answer
  kAnswerEnd,   // the end of an answer
  kTail,        // as far before the prompt's end as prompts were left lately
  kTaper,       // at parts of the prompt's length before its end, as long as nobody needs the room
};

inline constexpr std::size_t kCheckpointRules = 8;

/// One T for each rule, by its number.
template <class T>
using PerRule = std::array<T, kCheckpointRules>;

/// "branch", "turn_end", "prompt_end", "spacing", "long_answer", "answer_end", "tail" or "taper".
std::string_view checkpoint_rule_name(CheckpointRule rule);

}  // namespace memoir::prefix
