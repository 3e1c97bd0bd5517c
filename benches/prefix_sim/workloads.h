#pragma once

// Traces that are made up, from a seed: one seed gives one trace, on every machine. Texts are runs of tokens that
// differ wherever they should; lengths are drawn around what users of chats and agents send.
//
//   chat    conversations on one of five system prompts. Answers begin with thoughts, which later prompts leave out;
//   one
//           question in ten is edited, one answer in twelve made anew. Pauses between turns are long, so many
//           conversations lie between two turns of one.
//   agent   agents on one prompt with tools, each a loop: the prompt is the log so far and, behind the last result, a
//           line with the time, which is another one in the next step.
//   users   many users with short questions on one long system prompt, some of them with a second one.
//   search  branching search: a state's text is continued several times, the better continuations become states, and
//           what is continued next is one of the open states of any of the searches that run.
//
// Threads: pure functions.

#include <cstdint>
#include <span>
#include <string_view>

#include "benches/prefix_sim/trace.h"

namespace memoir::prefix_sim {

struct WorkloadOptions {
  std::uint64_t seed = 1;
  int n_requests = 600;
};

struct Workload {
  std::string_view name;
  Trace (*make)(const WorkloadOptions& options);
};

/// The four above. Each make() gives exactly n_requests and throws std::invalid_argument if they are negative.
std::span<const Workload> workloads();

}  // namespace memoir::prefix_sim
