// 10,000 requests at a tenth of what they need: the trie is sound behind each, and what the program has allocated does
// not grow. (In the asan preset: nothing is lost, nothing freed is used.)

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "benches/prefix_sim/replay.h"
#include "benches/prefix_sim/workloads.h"

namespace {

std::atomic<long long> n_allocated = 0;  // blocks, less those given back

}  // namespace

// Not inlined: once a compiler sees malloc and free behind new and delete it warns of mismatched pairs.
[[gnu::noinline]] void* operator new(std::size_t n_bytes) {
  void* const memory = std::malloc(n_bytes == 0 ? 1 : n_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  ++n_allocated;
  return memory;
}

[[gnu::noinline]] void* operator new(std::size_t n_bytes, const std::nothrow_t& /*tag*/) noexcept {
  void* const memory = std::malloc(n_bytes == 0 ? 1 : n_bytes);
  if (memory != nullptr) ++n_allocated;
  return memory;
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) --n_allocated;
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* memory, std::size_t /*n_bytes*/) noexcept {
  operator delete(memory);
}

namespace memoir::prefix_sim {
namespace {

constexpr int kRequests = 2500;  // of each of four traces

class PrefixSoak : public testing::TestWithParam<std::size_t> {};

// Each trace with another kind of model: 10,000 requests together.
TEST_P(PrefixSoak, ATenthOfTheNeedIsEnoughForSoundTreesAndFlatMemory) {
  const Workload& workload = workloads()[GetParam()];
  const Model& model = models()[GetParam()];
  const Trace trace = workload.make({.seed = 11, .n_requests = kRequests});
  const std::size_t need = oracle(trace, model).most_bytes;
  const long long n_before = n_allocated;
  std::vector<long long> n_held;  // behind each request
  n_held.reserve(kRequests);
  std::size_t most_bytes = 0;
  std::size_t n_evicting = 0;
  const auto after_each = [&](const prefix::Trie& trie) {
    ASSERT_EQ(trie.check(), "") << "request " << n_held.size();
    ASSERT_EQ(trie.n_open_pins(), 0U);
    n_held.push_back(n_allocated - n_before);
    most_bytes = std::max(most_bytes, trie.size_bytes());
    n_evicting += trie.clock() > 0 ? 1U : 0U;
  };
  const Score score = replay(trace, model, {.budget = need / 10, .after_each = after_each});
  ASSERT_EQ(n_held.size(), static_cast<std::size_t>(kRequests));
  EXPECT_LE(most_bytes, need / 10);
  EXPECT_GT(n_evicting, static_cast<std::size_t>(kRequests) / 2);
  EXPECT_GT(score.n_restored, score.n_tokens / 5);
  const auto middle = n_held.begin() + kRequests / 2;
  const long long most_before = *std::max_element(n_held.begin(), middle);
  EXPECT_LE(*std::max_element(middle, n_held.end()), most_before + most_before / 4);
  EXPECT_EQ(n_allocated - n_before, 1) << "the list of this test";
}

INSTANTIATE_TEST_SUITE_P(Traces, PrefixSoak, testing::Range(std::size_t{0}, workloads().size()),
                         [](const auto& one) { return std::string(workloads()[one.param].name); });

}  // namespace
}  // namespace memoir::prefix_sim
