#include "benches/prefix_sim/trace.h"

#include <algorithm>
#include <climits>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "memoir/base/error.h"

namespace memoir::prefix_sim {
namespace {

constexpr std::int64_t kMaxLength = 1 << 24;  // tokens of a prompt or an answer
constexpr std::int64_t kMaxId = std::int64_t{1} << 38;
constexpr int kMaxBlock = 1 << 20;

void check_block(int block) {
  if (block < 1 || block > kMaxBlock) {
    throw std::invalid_argument("[prefix_sim.trace] blocks of " + std::to_string(block) +
                                " tokens, expected 1 to 2^20");
  }
}

// splitmix64's last steps: each bit of the input changes half of the output's.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Numbers blocks by all tokens up to their ends, in the order in which they are first seen.
class BlockIds {
 public:
  explicit BlockIds(int block) : block_(static_cast<std::size_t>(block)) {}

  // Of the blocks from the one that holds position `from` on.
  std::vector<std::int64_t> of(std::span<const prefix::Key> keys, std::size_t from) {
    std::vector<std::int64_t> ids;
    std::uint64_t digest = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      digest = mixed(digest * 0x9e3779b97f4a7c15U + keys[i] + 1);
      const bool ends_block = (i + 1) % block_ == 0 || i + 1 == keys.size();
      if (!ends_block || i / block_ < from / block_) continue;
      ids.push_back(ids_.emplace(digest, static_cast<std::int64_t>(ids_.size())).first->second);
    }
    return ids;
  }

 private:
  std::size_t block_;
  std::unordered_map<std::uint64_t, std::int64_t> ids_;
};

std::int64_t number_of(const nlohmann::json& object, const char* key, std::int64_t least, std::int64_t most) {
  const auto& value = object.at(key);
  const bool is_small = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                                   : value.is_number_integer() && value.get<std::int64_t>() <= most;
  if (!is_small || value.get<std::int64_t>() < least) {
    throw std::out_of_range(std::string(key) + " is no whole number from " + std::to_string(least) + " to " +
                            std::to_string(most));
  }
  return value.get<std::int64_t>();
}

// Keys of [from, to), whose first block's number comes first in the list.
Keys keys_of(const nlohmann::json& object, const char* key, std::int64_t from, std::int64_t to, int block) {
  const auto& ids = object.at(key);
  if (!ids.is_array()) throw std::out_of_range(std::string(key) + " is no list");
  const std::int64_t first = from / block;
  const std::int64_t n_expected = from < to ? (to - 1) / block - first + 1 : 0;
  const auto n_ids = static_cast<std::int64_t>(ids.size());
  if (n_ids < n_expected || n_ids > n_expected + 1) {  // one more, of a block that begins with the next token
    throw std::out_of_range(std::string(key) + " has " + std::to_string(n_ids) + " entries, expected " +
                            std::to_string(n_expected) + " for " + std::to_string(to - from) + " tokens in blocks of " +
                            std::to_string(block));
  }
  Keys keys;
  keys.reserve(static_cast<std::size_t>(to - from));
  for (std::int64_t at = from; at < to; ++at) {
    const auto& id = ids[static_cast<std::size_t>(at / block - first)];
    const bool is_id = id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(kMaxId);
    if (!is_id) throw std::out_of_range(std::string(key) + " has an entry that is no number from 0 to 2^38");
    keys.push_back(id.get<std::uint64_t>() * static_cast<std::uint64_t>(block) +
                   static_cast<std::uint64_t>(at % block));
  }
  return keys;
}

Request request_of(const nlohmann::json& object, int block, std::uint64_t n_line) {
  Request request;
  request.arrival_ms = number_of(object, "timestamp", 0, INT64_MAX);
  const std::int64_t n_prompt = number_of(object, "input_length", 1, kMaxLength);
  const std::int64_t n_answer = number_of(object, "output_length", 0, kMaxLength);
  request.prompt = keys_of(object, "hash_ids", 0, n_prompt, block);
  if (object.contains("output_hash_ids")) {
    request.answer = keys_of(object, "output_hash_ids", n_prompt, n_prompt + n_answer, block);
  } else {  // keys that no other line has
    const std::uint64_t first = (std::uint64_t{1} << 62) + (n_line << 24);
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(n_answer); ++i) request.answer.push_back(first + i);
  }
  if (const auto ends = object.find("turn_ends"); ends != object.end()) {
    for (const auto& end : *ends) {
      request.turn_ends.push_back(static_cast<int>(number_of({{"turn_ends", end}}, "turn_ends", 0, kMaxLength)));
    }
    std::sort(request.turn_ends.begin(), request.turn_ends.end());
  }
  return request;
}

}  // namespace

void write_trace(std::ostream& out, const Trace& trace, int block) {
  check_block(block);
  BlockIds ids(block);
  for (const Request& request : trace) {
    nlohmann::ordered_json line;
    line["timestamp"] = request.arrival_ms;
    line["input_length"] = request.prompt.size();
    line["output_length"] = request.answer.size();
    line["hash_ids"] = ids.of(request.prompt, 0);
    Keys all = request.prompt;
    all.insert(all.end(), request.answer.begin(), request.answer.end());
    if (!request.answer.empty()) line["output_hash_ids"] = ids.of(all, request.prompt.size());
    if (!request.turn_ends.empty()) line["turn_ends"] = request.turn_ends;
    out << line.dump() << '\n';
  }
}

Trace read_trace(std::istream& in, const std::string& name, int block) {
  check_block(block);
  Trace trace;
  std::string text;
  for (std::uint64_t n_line = 1; std::getline(in, text); ++n_line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      trace.push_back(request_of(nlohmann::json::parse(text), block, n_line));
    } catch (const nlohmann::json::exception& error) {
      throw FormatError(name, "line " + std::to_string(n_line), error.what());
    } catch (const std::out_of_range& error) {
      throw FormatError(name, "line " + std::to_string(n_line), error.what());
    }
  }
  std::stable_sort(trace.begin(), trace.end(),
                   [](const Request& a, const Request& b) { return a.arrival_ms < b.arrival_ms; });
  return trace;
}

}  // namespace memoir::prefix_sim
