#pragma once

// Traces of requests for the simulator, and their files: JSON lines as Mooncake's traces have them
// (github.com/kvcache-ai/Mooncake, FAST25-release/traces), one request a line:
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}
//
// timestamp is in milliseconds since the first request. hash_ids has a number for each block of the prompt (512 tokens
// in theirs; the last may be shorter), and two blocks have one number if all tokens up to their ends are equal. So a
// file tells where prompts part only to a block; with blocks of one token nothing is lost. Two keys are memoir's own,
// and may be missing:
//
//   output_hash_ids   of the blocks from the one that holds the first token of the answer on. Without it no prompt
//                     has an answer inside.
//   turn_ends         offsets in the prompt where a turn of the chat ends
//
// Threads: plain values and functions.

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "memoir/prefix/keys.h"

namespace memoir::prefix_sim {

using Keys = std::vector<prefix::Key>;

struct Request {
  std::int64_t arrival_ms = 0;
  Keys prompt;                 // at least one
  Keys answer;                 // may be empty
  std::vector<int> turn_ends;  // ascending, of the prompt
};

/// In the order of their arrival.
using Trace = std::vector<Request>;

/// Writes a line for each request. Throws std::invalid_argument if block < 1.
void write_trace(std::ostream& out, const Trace& trace, int block);

/// Reads what write_trace or Mooncake wrote, with blocks of that many tokens. Requests come in the order of their
/// arrival, whatever the file's. `name` is for messages.
/// Throws FormatError, with the line, if one isn't such an object, a number is out of range or there are too few
/// hash_ids; std::invalid_argument if block < 1.
Trace read_trace(std::istream& in, const std::string& name, int block);

}  // namespace memoir::prefix_sim
