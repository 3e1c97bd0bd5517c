#pragma once

// Learns how far before their ends prompts are left by those that follow them, for a checkpoint there in the next one.
//
// Many clients put something behind what will be common with their next prompt: a line with the time, a reminder, the
// state of an editor. It is as long each time, and so the next prompt leaves the last one as many tokens before its
// end. No end of a turn is there, and the branch that a lookup finds comes too late, because nobody leaves there again.
//
// Threads: none of its own; the owner serializes.

#include <cstdint>
#include <optional>
#include <vector>

#include "memoir/prefix/trie.h"

namespace memoir::prefix {

class TailHabit {
 public:
  /// Tells of a lookup, before the trie changes, for a prompt of n_tokens. It counts if the prompt left another in its
  /// last edge before that one's checkpoint of the rule prompt end, and what was restored ended `close` tokens or more
  /// earlier, or was there thanks to this habit. Each prompt is counted as left once.
  void saw(const Match& match, int n_tokens, int close);

  /// Tokens before a prompt's prompt-end checkpoint: of the last kSeen that were seen the largest of those that lie
  /// within `close` of each other, if they are two at least, and more than others that do. nullopt: no habit.
  std::optional<int> tail(int close) const;

  static constexpr std::size_t kSeen = 8;

 private:
  struct Seen {
    std::uint64_t node;  // by its id: which prompt was left
    int tail;
  };
  std::vector<Seen> seen_;  // the oldest first
};

}  // namespace memoir::prefix
