// Norms, rope and gates of single rows: against double precision, and the same bits in every instruction set. The pool.

#include "memoir/kernels/cpu/rows.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "memoir/kernels/cpu/kernels.h"
#include "memoir/kernels/cpu/pool.h"
#include "memoir/kernels/cpu/threads.h"
#include "tests/float_rows.h"

namespace memoir::kernels::cpu {
namespace {

using test::same_bits;

std::vector<float> random_floats(int n, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = (static_cast<float>(random() % 20001) / 10000.0F - 1.0F) * size;
  return values;
}

TEST(NormRow, AgreesWithTheFormulaInEverySet) {
  const KernelList list = supported_kernels();
  for (const int n : {1, 15, 16, 17, 48, 577}) {
    const std::vector<float> x = random_floats(n, 3, 1);
    const std::vector<float> weight = random_floats(n, 2, 2);
    const std::vector<float> bias = random_floats(n, 1, 3);
    for (const bool subtracts_mean : {false, true}) {
      double mean = 0;
      for (const float value : x) mean += subtracts_mean ? static_cast<double>(value) / n : 0;
      double variance = 1e-5;
      for (const float value : x) variance += std::pow(static_cast<double>(value) - mean, 2) / n;
      std::vector<float> first;
      for (int i = 0; i < list.n_sets; ++i) {
        std::vector<float> out(x.size());
        NormArgs norm{n, 1e-5F, weight.data(), bias.data(), subtracts_mean};
        list.sets[i]->norm_row(norm, x.data(), out.data());
        for (std::size_t k = 0; k < out.size(); ++k) {
          const double expected =
              (static_cast<double>(x[k]) - mean) / std::sqrt(variance) * static_cast<double>(weight[k]) +
              static_cast<double>(bias[k]);
          // A single element less its mean is rounding alone, which the division enlarges.
          if (n > 1 || !subtracts_mean) {
            EXPECT_NEAR(out[k], expected, 1e-5);
          }
        }
        if (first.empty()) first = out;
        EXPECT_TRUE(same_bits(out, first)) << list.sets[i]->name << ", " << n;
      }
    }
  }
}

TEST(GateRow, AgreesWithTheFormulaInEverySet) {
  const KernelList list = supported_kernels();
  std::vector<float> gates = random_floats(5001, 12, 1);
  for (const float far : {-300.0F, -88.0F, -87.0F, 87.0F, 88.5F, 88.8F, 300.0F, 0.0F}) gates.push_back(far);
  const std::vector<float> ups(gates.size(), 1.0F);
  for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh, Gate::kSigmoid}) {
    std::vector<float> first;
    for (int i = 0; i < list.n_sets; ++i) {
      std::vector<float> out(gates.size());
      list.sets[i]->gate_row(gate, static_cast<int>(gates.size()), gates.data(), ups.data(), out.data());
      for (std::size_t k = 0; k < out.size(); ++k) {
        const double z = gates[k];
        const double sigmoid = 1 / (1 + std::exp(-z));
        const double gelu = z / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z)));
        const double expected = gate == Gate::kSilu ? z * sigmoid : gate == Gate::kSigmoid ? sigmoid : gelu;
        EXPECT_NEAR(out[k], expected, 3e-7 * std::max(1.0, std::abs(z))) << z;
      }
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first)) << list.sets[i]->name;
    }
  }
}

TEST(GateRow, PassesNanOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gates = {1, nan, 2};
  const std::vector<float> ups = {1, 1, nan};
  std::vector<float> out(3);
  kernels().gate_row(Gate::kSilu, 3, gates.data(), ups.data(), out.data());
  EXPECT_FALSE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_TRUE(std::isnan(out[2]));
}

TEST(RotateRow, TurnsPairsInEverySet) {
  const KernelList list = supported_kernels();
  const std::vector<float> x = random_floats(20, 1, 1);
  std::vector<float> turns;
  for (int i = 0; i < 6; ++i) {
    turns.push_back(std::cos(0.3F * static_cast<float>(i)));
    turns.push_back(std::sin(0.3F * static_cast<float>(i)));
  }
  for (const bool traditional : {false, true}) {
    std::vector<float> first;
    for (int i = 0; i < list.n_sets; ++i) {
      std::vector<float> out(x.size());
      list.sets[i]->rotate_row({12, 20, traditional}, turns.data(), x.data(), out.data());
      for (std::size_t pair = 0; pair < 6; ++pair) {
        const std::size_t a = traditional ? 2 * pair : pair;
        const std::size_t b = traditional ? 2 * pair + 1 : pair + 6;
        const double angle = 0.3 * static_cast<double>(pair);
        EXPECT_NEAR(out[a], x[a] * std::cos(angle) - x[b] * std::sin(angle), 1e-6);
        EXPECT_NEAR(out[b], x[a] * std::sin(angle) + x[b] * std::cos(angle), 1e-6);
      }
      for (std::size_t k = 12; k < 20; ++k) EXPECT_EQ(out[k], x[k]);
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first)) << list.sets[i]->name;
    }
  }
}

TEST(Pool, DoesEveryPartOnceOnItsThreads) {
  for (const int n_threads : {1, 2, 3, 8}) {
    Pool pool(n_threads);
    for (int round = 0; round < 300; ++round) {
      const int n_parts = round % 40;
      std::vector<std::atomic<int>> n_times(40);
      std::atomic<bool> is_thread_wrong = false;
      const auto job = [&](int part, int thread) {
        ++n_times[static_cast<std::size_t>(part)];
        if (thread < 0 || thread >= pool.n_threads()) is_thread_wrong = true;
      };
      pool.run(
          n_parts,
          [](const void* context, int part, int thread) {
            (*static_cast<const decltype(job)*>(context))(part, thread);
          },
          &job);
      for (int part = 0; part < 40; ++part) {
        ASSERT_EQ(n_times[static_cast<std::size_t>(part)], part < n_parts ? 1 : 0);
      }
      ASSERT_FALSE(is_thread_wrong);
    }
  }
}

TEST(Pool, TakesCallsFromSeveralThreadsInTurn) {
  std::vector<int> sums(4);
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int> sum = 0;
        run_parts(10, [&](int part) { sum += part; });
        sums[caller] += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int sum : sums) EXPECT_EQ(sum, 100 * 45);
}

}  // namespace
}  // namespace memoir::kernels::cpu
