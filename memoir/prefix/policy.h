#pragma once

// Where to take checkpoints of layers that can't rewind, as rules on integers. Each rule is a function of its own;
// plan_prompt() and plan_answer() put them together.
//
// A checkpoint at offset p is the state after p tokens. One costs the same at every offset, so what matters is to have
// it where a later prompt will leave the one at hand. Rules, strongest first:
//   branch      the prompt at hand matches further than could be restored: others will leave at the same place
//   turn end    chats are edited, regenerated and stripped of thoughts at turns' borders
//   prompt end  the same prompt again, or with another answer
//   tail        prompts were left so many tokens before their ends lately (tail_habit.h)
//   spacing     every N tokens where the others leave room, so that no divergence loses more than 2 N
//   taper       11 %, 22 %, 44 %, ... and 5.5 %, ... of the prompt before its end: one that is left inside a message
//               for the first time computes little more than twice what it has anew, and a last tenth at once. They are
//               the first to go (eviction.h)
// and within an answer: every N tokens, and its end.
//
// Threads: pure functions.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "memoir/prefix/checkpoint_rule.h"

namespace memoir::prefix {

struct StateSize {
  std::size_t checkpoint_bytes = 0;  // of all layers that need one; 0: none does, and no checkpoint is ever taken
  std::size_t row_bytes = 0;         // of one position, all layers that keep rows
};

struct PolicyOptions {
  double share = 0.25;         // spaced checkpoints take at most this much of what rows take
  int min_spacing = 256;       // however small they are
  int rowless_spacing = 2048;  // for models without rows
  int close = 16;              // a checkpoint fewer tokens than this behind another is not worth taking
  int prompt_tail = 4;         // tokens of the prompt behind its last checkpoint
  int n_exact_turns = 2;       // the last ends of turns, which are never moved for economy
  bool learns_tail = true;     // the rule tail
  bool tapers = true;          // the rule taper
  int min_taper = 64;          // nearer to another checkpoint it is not worth taking
};

struct PlannedCheckpoint {
  int offset;
  CheckpointRule rule;
  bool operator==(const PlannedCheckpoint&) const = default;
};

/// The prompt at hand, as a lookup found it.
struct PromptPlan {
  int n_tokens = 0;                // of the prompt
  int restored = 0;                // where the computing begins
  int matched = 0;                 // tokens shared with what is stored, >= restored
  std::span<const int> turn_ends;  // ascending offsets; those outside (restored, n_tokens) are ignored
  StateSize size;
  std::optional<int> tail = std::nullopt;  // TailHabit::tail
};

/// N = max(min_spacing, ceil(checkpoint_bytes / (share * row_bytes))): N tokens' rows times the share pay for one
/// checkpoint. rowless_spacing if there are no rows.
/// Throws std::invalid_argument unless share > 0 and the other options are at least 1 (close, prompt_tail and
/// n_exact_turns: 0).
int checkpoint_spacing(const StateSize& size, const PolicyOptions& options = {});

/// `matched`, where it is beyond `restored` and below n_tokens; nullopt otherwise.
std::optional<int> branch_point(const PromptPlan& prompt);

/// n_tokens - max(1, prompt_tail), if that is beyond `restored`.
std::optional<int> before_prompt_end(const PromptPlan& prompt, const PolicyOptions& options = {});

/// That many tokens before before_prompt_end, if there is such a habit and it is beyond `restored`.
std::optional<int> at_tail(const PromptPlan& prompt, const PolicyOptions& options = {});

/// The ends of turns within (restored, n_tokens).
std::vector<int> turn_ends(const PromptPlan& prompt);

/// The multiples of `spacing` in (from, to). Counted from 0, so that prompts with one beginning have them in the same
/// places.
std::vector<int> spaced(int from, int to, int spacing);

/// Offsets at 11 % of n_tokens before its end, at halves and doubles of that as long as they are min_taper or more and
/// not before `restored`. Ascending.
std::vector<int> tapered(const PromptPlan& prompt, const PolicyOptions& options = {});

/// Of checkpoints that lie closer than `close` behind another (or behind `restored`), keeps the first: what is left out
/// costs fewer than `close` tokens. Sorts; where two have one offset, the stronger rule stays.
std::vector<PlannedCheckpoint> merge_close(std::vector<PlannedCheckpoint> planned, int restored, int close);

/// All rules for a prompt, ascending, within (restored, n_tokens). The branch, the last turns, the tail and the
/// prompt's end come first and are merged where they are `close`; earlier turns join them where nothing is nearer than
/// N / 4, spaced ones where nothing is nearer than N / 2, and tapered ones than min_taper. Throws std::invalid_argument
/// as checkpoint_spacing, and if restored, matched or n_tokens are not in order or negative.
std::vector<PlannedCheckpoint> plan_prompt(const PromptPlan& prompt, const PolicyOptions& options = {});

/// Bytes that count when a checkpoint is to be taken.
struct CheckpointRoom {
  std::size_t n_held = 0;        // by the cache, with it
  std::size_t n_pinned = 0;      // of these, by running requests, and with it: what is pinned makes no room for others
  std::size_t n_checkpoint = 0;  // its own
  std::size_t n_rest = 0;        // the rows of the rest of the prompt
  std::size_t max_bytes = 0;
};

/// Whether a checkpoint of the rule is worth trying for. A tapered one as long as half of the room is free. One for
/// spacing, within a long answer or at a turn's end as long as it leaves room for what is still to come, two more of
/// its size (a branch, the prompt's end) and the rest: a request that fills a small cache with its own would else keep
/// the more likely ones out. The others always.
bool has_room_for(CheckpointRule rule, const CheckpointRoom& room);

/// While answering: every `spacing` tokens behind the last checkpoint, within (from, to].
/// Throws std::invalid_argument if spacing < 1.
std::vector<PlannedCheckpoint> plan_answer(int last_checkpoint, int from, int to, int spacing);

/// At an answer's end: whether `offset` is worth one, being at least `close` behind the last.
bool keeps_answer_end(int last_checkpoint, int offset, const PolicyOptions& options = {});

/// The part of a plan to capture within a forward pass over [from, to): offsets in (from, to].
std::span<const PlannedCheckpoint> within(std::span<const PlannedCheckpoint> plan, int from, int to);

}  // namespace memoir::prefix
