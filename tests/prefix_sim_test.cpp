// The simulator on short traces: its files, and that memoir's rules are at or above the others'.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "benches/prefix_sim/replay.h"
#include "benches/prefix_sim/trace.h"
#include "benches/prefix_sim/workloads.h"
#include "memoir/base/error.h"

namespace memoir::prefix_sim {
namespace {

Trace read(const std::string& text, int block = 512) {
  std::istringstream in(text);
  return read_trace(in, "trace.jsonl", block);
}

// ---- Files

// The first lines of Mooncake's conversation trace are like these: blocks of 512, two prompts with one beginning.
TEST(PrefixSimTrace, ReadsMooncakesLines) {
  const Trace trace = read(R"({"timestamp": 3052, "input_length": 1030, "output_length": 2, "hash_ids": [0, 3, 4]})"
                           "\n\n"
                           R"({"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]})"
                           "\n");
  ASSERT_EQ(trace.size(), 2U);
  EXPECT_EQ(trace[0].arrival_ms, 0) << "in the order of arrival";
  EXPECT_EQ(trace[0].prompt.size(), 1024U);
  EXPECT_EQ(trace[1].prompt.size(), 1030U);
  EXPECT_EQ(trace[0].answer.size(), 5U);
  const auto differs = std::mismatch(trace[0].prompt.begin(), trace[0].prompt.end(), trace[1].prompt.begin()).first;
  EXPECT_EQ(differs - trace[0].prompt.begin(), 512);
  for (const prefix::Key key : trace[0].answer) {
    EXPECT_EQ(std::count(trace[1].answer.begin(), trace[1].answer.end(), key), 0);
  }
}

TEST(PrefixSimTrace, WithBlocksOfOneTokenNothingIsLost) {
  for (const Workload& workload : workloads()) {
    const Trace trace = workload.make({.seed = 3, .n_requests = 20});
    std::stringstream file;
    write_trace(file, trace, 1);
    const Trace again = read_trace(file, "trace.jsonl", 1);
    ASSERT_EQ(again.size(), trace.size());
    for (std::size_t i = 0; i < trace.size(); ++i) {
      EXPECT_EQ(again[i].arrival_ms, trace[i].arrival_ms);
      EXPECT_EQ(again[i].turn_ends, trace[i].turn_ends);
    }
    for (const Model& model : models()) {
      const std::size_t budget = oracle(trace, model).most_bytes / 3;
      const Score score = replay(trace, model, {.budget = budget});
      EXPECT_EQ(replay(again, model, {.budget = budget}).n_restored, score.n_restored);
      EXPECT_EQ(oracle(again, model).n_restored, oracle(trace, model).n_restored);
    }
  }
}

TEST(PrefixSimTrace, RefusesWhatIsNoTraceWithTheLine) {
  const std::string good = R"({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [7]})";
  EXPECT_EQ(read(good).size(), 1U);
  for (const std::string& bad :
       {std::string("{"), std::string("7"), std::string("{}"),
        std::string(R"({"timestamp": -1, "input_length": 3, "output_length": 1, "hash_ids": [7]})"),
        std::string(R"({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": [7]})"),
        std::string(R"({"timestamp": 0, "input_length": 3.5, "output_length": 1, "hash_ids": [7]})"),
        std::string(R"({"timestamp": 0, "input_length": 1e30, "output_length": 1, "hash_ids": [7]})"),
        std::string(R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [7]})"),
        std::string(R"({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [7, 8, 9]})"),
        std::string(R"({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": ["7"]})"),
        std::string(R"({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [-7]})"),
        std::string(R"({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": 7})"),
        std::string(
            R"({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [7], "turn_ends": [-1]})")}) {
    try {
      read(good + "\n" + bad);
      ADD_FAILURE() << bad;
    } catch (const FormatError& error) {
      EXPECT_EQ(error.key(), "line 2") << bad;
    }
  }
  EXPECT_THROW(read(good, 0), std::invalid_argument);
}

TEST(PrefixSimTrace, OneSeedGivesOneTrace) {
  for (const Workload& workload : workloads()) {
    const auto text = [&](std::uint64_t seed) {
      std::ostringstream out;
      write_trace(out, workload.make({.seed = seed, .n_requests = 12}), 1);
      return out.str();
    };
    EXPECT_EQ(text(1), text(1));
    EXPECT_NE(text(1), text(2));
    EXPECT_EQ(workload.make({.n_requests = 0}).size(), 0U);
    EXPECT_THROW(workload.make({.n_requests = -1}), std::invalid_argument);
  }
}

// ---- The oracle, by hand

// Three prompts of 10 tokens: the second leaves the first at 6, the third is the second again.
TEST(PrefixSimOracle, RestoresAllThatWasEverComputed) {
  const auto keys = [](int from, int n_same, int other) {
    Keys result;
    for (int i = from; i < 10; ++i) result.push_back(static_cast<prefix::Key>(i < n_same ? i : other + i));
    return result;
  };
  const Trace trace = {{0, keys(0, 10, 0), {}, {}}, {1, keys(0, 6, 100), {}, {}}, {2, keys(0, 6, 100), {}, {}}};
  for (const Model& model : models()) {
    const Score score = oracle(trace, model);
    EXPECT_EQ(score.n_tokens, 30U);
    EXPECT_EQ(score.n_restored, 6U + 9U) << "the last token is computed, for its logits";
    EXPECT_DOUBLE_EQ(score.recomputed, model.cost(0, 10) + model.cost(6, 10) + model.cost(9, 10));
    EXPECT_GE(score.most_bytes, 14 * model.row_bytes) << "10 tokens, and 4 others";
  }
}

// ---- Who restores more

constexpr double kParts[] = {1. / 16, 1. / 8, 1. / 4, 1. / 2, 1};

// In hit rate, of the mean over a few seeds: in one trace the order of two evictions may cost more.
constexpr double kTolerance = 0.001;
constexpr std::uint64_t kSeeds = 3;

class PrefixSim : public testing::TestWithParam<std::size_t> {};

TEST_P(PrefixSim, MemoirIsAtOrAboveTheOthersAndNearTheOracle) {
  const Workload& workload = workloads()[GetParam()];
  std::vector<Trace> traces;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed)
    traces.push_back(workload.make({.seed = seed, .n_requests = 600}));
  for (const Model& model : models()) {
    std::vector<Score> best;
    for (const Trace& trace : traces) best.push_back(oracle(trace, model));
    for (const double part : kParts) {
      SCOPED_TRACE(std::string(workload.name) + ", " + std::string(model.name) + ", " + std::to_string(part));
      const auto sum_of_rates = [&](Scheme scheme) {
        double sum = 0;
        for (std::size_t i = 0; i < traces.size(); ++i) {
          const auto budget = static_cast<std::size_t>(part * static_cast<double>(best[i].most_bytes));
          const Score score = replay(traces[i], model, {.scheme = scheme, .budget = budget});
          EXPECT_EQ(score.n_tokens, best[i].n_tokens);
          EXPECT_LE(score.n_restored, best[i].n_restored);
          EXPECT_LE(score.most_bytes, budget);
          if (scheme == Scheme::kMemoir && part == 0.5) {
            EXPECT_GE(score.hit_rate(), 0.95 * best[i].hit_rate());
          }
          sum += score.hit_rate();
        }
        return sum;
      };
      const double ours = sum_of_rates(Scheme::kMemoir);
      for (const Scheme scheme : {Scheme::kLru, Scheme::kFixed, Scheme::kBlocks}) {
        EXPECT_GE(ours, sum_of_rates(scheme) - static_cast<double>(kSeeds) * kTolerance) << scheme_name(scheme);
      }
    }
  }
}

TEST_P(PrefixSim, TheTrieIsSoundBehindEveryRequestOfEveryScheme) {
  const Trace trace = workloads()[GetParam()].make({.seed = 2, .n_requests = 60});
  for (const Model& model : models()) {
    const std::size_t budget = oracle(trace, model).most_bytes / 10;
    for (const Scheme scheme : kSchemes) {
      replay(trace, model, {.scheme = scheme, .budget = budget, .after_each = [](const prefix::Trie& trie) {
                              ASSERT_EQ(trie.check(), "");
                            }});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, PrefixSim, testing::Range(std::size_t{0}, workloads().size()),
                         [](const auto& one) { return std::string(workloads()[one.param].name); });

}  // namespace
}  // namespace memoir::prefix_sim
