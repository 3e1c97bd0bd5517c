// What the prefix cache's trie costs, without a model: microseconds for a thousand tokens that are looked up or
// inserted, and bytes of a node.
//
//   build/release/bin/trie_bench [NODES]      100,000 if it is not given
//
// Two shapes. "branching": prompts of 200 to 2,000 tokens that leave each other anywhere, until there are so many
// nodes. "one long prompt": 100,000 tokens put into that trie by chunks of 512, as a prefill does, and 1,000 more token
// by token, each from the pin of the one before. Payloads have no content; what is timed is the trie.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "benches/prefix_sim/models.h"
#include "memoir/prefix/trie.h"

namespace {

std::atomic<std::size_t> n_held_bytes = 0;  // asked for and not given back
constexpr std::size_t kHeader = alignof(std::max_align_t);

}  // namespace

// Each block has its size before it.
[[gnu::noinline]] void* operator new(std::size_t n_bytes) {
  auto* const memory = static_cast<std::byte*>(std::malloc(n_bytes + kHeader));
  if (memory == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(memory) = n_bytes;
  n_held_bytes += n_bytes;
  return memory + kHeader;
}

[[gnu::noinline]] void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  auto* const memory = static_cast<std::byte*>(block) - kHeader;
  n_held_bytes -= *reinterpret_cast<std::size_t*>(memory);
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* block, std::size_t /*n_bytes*/) noexcept {
  operator delete(block);
}

namespace memoir::prefix {
namespace {

using Clock = std::chrono::steady_clock;
using Keys = std::vector<Key>;

constexpr Needs kRows = {true, false};
constexpr int kLong = 100'000;
constexpr int kQueries = 2'000;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// With the rows that are not there yet. `known` as Insertion::known.
Position insert(Trie& trie, std::span<const Key> keys, Position known = {}) {
  const int from = trie.rows_end(known, keys).offset;
  const int to = static_cast<int>(keys.size());
  Insertion insertion{.keys = keys, .known = known};
  if (from < to) insertion.rows = prefix_sim::make_rows(prefix_sim::models()[0], from, to);
  return trie.insert(std::move(insertion)).value();
}

// Prompts that leave an earlier one at any place; kept, to be looked up.
class Branching {
 public:
  Keys next() {
    Keys keys;
    if (!prompts_.empty()) {
      const Keys& other = prompts_[random_() % prompts_.size()];
      keys.assign(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(random_() % other.size()));
    }
    const std::size_t n = std::max<std::size_t>(keys.size() + 1, 200 + random_() % 1'800);
    while (keys.size() < n) keys.push_back(random_() % 150'000);
    if (prompts_.size() < kQueries) {
      prompts_.push_back(keys);
    } else {
      prompts_[random_() % kQueries] = keys;
    }
    return keys;
  }
  const std::vector<Keys>& prompts() const { return prompts_; }

 private:
  std::mt19937_64 random_{1};
  std::vector<Keys> prompts_;
};

void bench_branching(std::size_t n_nodes, Trie& trie, Branching& source) {
  double insert_us = 0;
  std::size_t n_inserted = 0;
  while (trie.n_nodes() < n_nodes) {
    const Keys keys = source.next();
    const bool is_timed = trie.n_nodes() + n_nodes / 10 > n_nodes;  // the last tenth
    const auto begin = Clock::now();
    insert(trie, keys);
    if (!is_timed) continue;
    insert_us += us_since(begin);
    n_inserted += keys.size();
  }
  std::size_t n_matched = 0;
  const auto begin = Clock::now();
  for (const Keys& keys : source.prompts()) n_matched += static_cast<std::size_t>(trie.lookup(keys, kRows).matched);
  const double lookup_us = us_since(begin);
  std::printf("%-16s %9zu nodes, %11zu keys: lookup %6.2f us, insert %6.2f us for 1000 tokens\n", "branching",
              trie.n_nodes(), trie.n_keys(), 1000 * lookup_us / static_cast<double>(n_matched),
              1000 * insert_us / static_cast<double>(n_inserted));
}

void bench_long_prompt(Trie& trie) {
  Keys keys(kLong);
  std::mt19937_64 random(2);
  for (Key& key : keys) key = 200'000 + random() % 50'000;
  const auto part = [&](int n) { return std::span(keys).first(static_cast<std::size_t>(n)); };
  auto begin = Clock::now();
  Pin pin;
  for (int to = 512; to < kLong; to += 512) pin = trie.pin(insert(trie, part(to), pin.position()));
  pin = trie.pin(insert(trie, keys, pin.position()));
  const double insert_us = us_since(begin);
  begin = Clock::now();
  constexpr int kTimes = 100;
  for (int i = 0; i < kTimes; ++i) trie.lookup(keys, kRows);
  const double lookup_us = us_since(begin) / kTimes;
  for (int i = 0; i < 1000; ++i) keys.push_back(300'000 + static_cast<Key>(i));
  begin = Clock::now();
  for (int to = kLong + 1; to <= kLong + 1000; ++to) pin = trie.pin(insert(trie, part(to), pin.position()));
  const double grow_us = us_since(begin);
  std::printf(
      "%-16s %9d tokens: lookup %6.2f us, insert in chunks of 512 %6.2f us, token by token %6.2f us for 1000 tokens\n",
      "one long prompt", kLong, 1000 * lookup_us / kLong, 1000 * insert_us / kLong, grow_us);
}

void run(std::size_t n_nodes) {
  auto trie = std::make_unique<Trie>();
  Branching source;
  {
    const std::size_t before = n_held_bytes;
    Trie small;
    Branching other;
    while (small.n_nodes() < n_nodes) insert(small, other.next());
    std::size_t n_prompts = 0;
    for (const Keys& keys : other.prompts()) n_prompts += keys.capacity() * sizeof(Key) + sizeof(Keys);
    const std::size_t n_rows = small.n_nodes() * 32;  // the stand-in for rows
    const auto held = static_cast<double>(n_held_bytes - before - n_prompts - n_rows);
    const auto keys = static_cast<double>(small.n_keys() * sizeof(Key));
    std::printf("a node: %zu bytes as counted, %.0f as asked for in a trie of %zu (an edge has %.0f keys on average)\n",
                Node::kBytes, (held - keys) / static_cast<double>(small.n_nodes()), small.n_nodes(),
                static_cast<double>(small.n_keys()) / static_cast<double>(small.n_nodes()));
  }
  bench_branching(n_nodes, *trie, source);
  bench_long_prompt(*trie);
}

}  // namespace
}  // namespace memoir::prefix

int main(int argc, char** argv) {
  memoir::prefix::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000);
}
