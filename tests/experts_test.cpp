// Mixtures: routing, experts, stacks of weights, and the gates that only some families have, each against its formula
// in float64 or against MLX's plain operations; bits against the same call with other rows.

#include "memoir/kernels/experts.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "memoir/kernels/device.h"
#include "memoir/kernels/linear.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

mx::array random(const mx::Shape& shape, std::uint64_t seed, float scale = 1) {
  return mx::multiply(mx::random::normal(shape, mx::float32, 0, 1, mx::random::key(seed)), mx::array(scale));
}

float max_difference(const mx::array& a, const mx::array& b) {
  return mx::max(mx::abs(mx::subtract(mx::astype(a, mx::float32), mx::astype(b, mx::float32)))).item<float>();
}

bool are_same_bits(const mx::array& a, const mx::array& b) {
  return mx::array_equal(a, b).item<bool>();
}

std::vector<float> floats(mx::array a) {
  a = mx::contiguous(mx::astype(a, mx::float32));
  mx::eval(a);
  return {a.data<float>(), a.data<float>() + a.size()};
}

std::vector<int> ints(mx::array a) {
  a = mx::contiguous(a);
  mx::eval(a);
  return {a.data<std::int32_t>(), a.data<std::int32_t>() + a.size()};
}

mx::array rows_of(const mx::array& x, int begin, int end) {
  return mx::slice(x, mx::Shape{begin, 0}, mx::Shape{end, x.shape(1)});
}

// ---- routing ----

TEST(Route, TakesTheLargestBestFirstAndOfEqualsTheFirst) {
  const std::vector<float> logits = {1, 3, 3, 2, -1, 3};
  Routing routing;
  routing.n_chosen = 4;
  const Routes routes = route(mx::array(logits.data(), {1, 6}), routing);
  EXPECT_EQ(ints(routes.experts), (std::vector<int>{1, 2, 5, 3}));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const std::vector<float> weights = floats(routes.weights);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(weights[i], std::exp(3.0) / sum, 1e-6);
  EXPECT_NEAR(weights[3], std::exp(2.0) / sum, 1e-6);
}

TEST(Route, NormalizesScalesAndWeighsByExpert) {
  const std::vector<float> logits = {0, 1, 2, 3};
  const std::vector<float> scales = {1, 10, 100, 1000};
  Routing routing;
  routing.score = Routing::Score::kSigmoid;
  routing.n_chosen = 2;
  routing.is_normalized = true;
  routing.added_to_sum = 0.5F;
  routing.scale = 2.5F;
  routing.expert_scales = mx::array(scales.data(), {4});
  const Routes routes = route(mx::array(logits.data(), {4}), routing);
  const double a = 1 / (1 + std::exp(-3.0));
  const double b = 1 / (1 + std::exp(-2.0));
  EXPECT_EQ(ints(routes.experts), (std::vector<int>{3, 2}));
  EXPECT_NEAR(floats(routes.weights)[0], a / (a + b + 0.5) * 2.5 * 1000, 1e-3);
  EXPECT_NEAR(floats(routes.weights)[1], b / (a + b + 0.5) * 2.5 * 100, 1e-4);
}

// The best group by its two best is the second, although the best expert is in the first.
TEST(Route, ChoosesInTheBestGroupsByBiasedScoresAndWeighsWithoutBiases) {
  const std::vector<float> logits = {4, -9, 1, 1, 0, 0};
  const std::vector<float> biases = {0, 0, 0, 0.1F, 0, 0};
  Routing routing;
  routing.score = Routing::Score::kSigmoid;
  routing.n_chosen = 2;
  routing.n_groups = 3;
  routing.n_chosen_groups = 1;
  routing.choice_biases = mx::array(biases.data(), {6});
  const Routes routes = route(mx::array(logits.data(), {6}), routing);
  EXPECT_EQ(ints(routes.experts), (std::vector<int>{3, 2}));
  for (const float weight : floats(routes.weights)) EXPECT_NEAR(weight, 1 / (1 + std::exp(-1.0)), 1e-6);
}

TEST(Route, LogitsThatAreNotNumbersGiveDifferentExpertsInRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {nan, nan, nan, 1, nan};
  Routing routing;
  routing.n_chosen = 5;
  std::vector<int> experts = ints(route(mx::array(logits.data(), {5}), routing).experts);
  std::ranges::sort(experts);
  EXPECT_EQ(experts, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Route, RefusesWhatDoesNotFit) {
  const mx::array logits = mx::zeros({2, 6});
  Routing routing;
  routing.n_chosen = 7;
  EXPECT_THROW(route(logits, routing), std::invalid_argument);
  routing.n_chosen = 3;
  routing.n_groups = 3;
  routing.n_chosen_groups = 1;
  EXPECT_THROW(route(logits, routing), std::invalid_argument);  // a group has 2
  routing.n_groups = 4;
  EXPECT_THROW(route(logits, routing), std::invalid_argument);
  routing = {};
  routing.choice_biases = mx::zeros({5});
  EXPECT_THROW(route(logits, routing), std::invalid_argument);
}

// ---- gates and caps ----

TEST(GateProduct, IsTheGateTimesTheUps) {
  const mx::array gates = random({3, 37}, 1, 2);
  const mx::array ups = random({3, 37}, 2);
  EXPECT_LT(
      max_difference(gate_product(gates, ups, Gate::kSilu), mx::multiply(mx::multiply(gates, mx::sigmoid(gates)), ups)),
      1e-5F);
  EXPECT_THROW(gate_product(gates, random({3, 36}, 2), Gate::kSilu), std::invalid_argument);
}

TEST(SoftCap, IsTheCapTimesTheTangentAndTheSameBitsForEveryElementAlone) {
  const mx::array x = random({5, 33}, 3, 40);
  const mx::array y = soft_cap(x, 30);
  EXPECT_LT(max_difference(y, mx::multiply(mx::array(30.0F), mx::tanh(mx::divide(x, mx::array(30.0F))))), 1e-4F);
  EXPECT_TRUE(are_same_bits(rows_of(y, 2, 3), soft_cap(rows_of(x, 2, 3), 30)));
  const mx::array column = mx::slice(x, mx::Shape{0, 32}, mx::Shape{5, 33});
  EXPECT_TRUE(are_same_bits(soft_cap(column, 30), mx::slice(y, mx::Shape{0, 32}, mx::Shape{5, 33})));
}

// ---- experts ----

constexpr int kExperts = 5;
constexpr int kHidden = 64;
constexpr int kInner = 40;  // no multiple of a tile
// Codes are multiplied with activations of 16 bits: of sums of 64 products of up to 10, 2^-16 of the largest each.
constexpr float kFixedTolerance = 2e-3F;

struct Plain {
  mx::array gates;  // [E, inner, hidden]
  mx::array ups;
  mx::array down;  // [E, hidden, inner]
};

Plain plain_experts() {
  return {random({kExperts, kInner, kHidden}, 11, 0.2F), random({kExperts, kInner, kHidden}, 12, 0.2F),
          random({kExperts, kHidden, kInner}, 13, 0.2F)};
}

WeightStack dense(const mx::array& all) {
  return stacked(all.shape(0), [&](int e) { return Weight{mx::take(all, e, 0)}; });
}

Experts experts_of(const Plain& plain) {
  return {dense(plain.gates), dense(plain.ups), dense(plain.down)};
}

Routes routes_of(const mx::array& x, int n_chosen) {
  Routing routing;
  routing.n_chosen = n_chosen;
  return route(mx::matmul(x, random({kHidden, kExperts}, 14)), routing);
}

Routes some_of(const Routes& routes, int begin, int end) {
  return {rows_of(routes.experts, begin, end), rows_of(routes.weights, begin, end)};
}

// Every row by itself, every route by plain products; with biases and the clamped gate where they are given.
mx::array naive(const mx::array& x, const Routes& routes, const Plain& plain, const Experts& experts) {
  std::vector<mx::array> rows;
  const std::vector<int> chosen = ints(routes.experts);
  const int k = routes.experts.shape(1);
  for (int row = 0; row < x.shape(0); ++row) {
    mx::array sum = mx::zeros({1, kHidden});
    for (int i = 0; i < k; ++i) {
      const int e = chosen[static_cast<std::size_t>(row * k + i)];
      const mx::array weight = mx::take(mx::take(routes.weights, row, 0), i, 0);
      const auto product = [&](const mx::array& in, const mx::array& all, const std::optional<mx::array>& biases) {
        const mx::array y = mx::matmul(in, mx::transpose(mx::take(all, e, 0)));
        return biases ? mx::add(y, mx::take(*biases, e, 0)) : y;
      };
      mx::array in = rows_of(x, row, row + 1);
      if (experts.weighs_inputs) in = mx::multiply(in, weight);
      mx::array gates = product(in, plain.gates, experts.gate_biases);
      mx::array ups = product(in, plain.ups, experts.up_biases);
      mx::array inner = mx::multiply(mx::multiply(gates, mx::sigmoid(gates)), ups);
      if (experts.clamped_gate) {
        const float limit = experts.clamped_gate->limit;
        gates = mx::minimum(gates, mx::array(limit));
        ups = mx::clip(ups, mx::array(-limit), mx::array(limit));
        const mx::array swish = mx::sigmoid(mx::multiply(gates, mx::array(experts.clamped_gate->alpha)));
        inner = mx::multiply(mx::multiply(gates, swish), mx::add(ups, mx::array(1.0F)));
      }
      const mx::array y = product(inner, plain.down, experts.down_biases);
      sum = mx::add(sum, experts.weighs_inputs ? y : mx::multiply(y, weight));
    }
    rows.push_back(sum);
  }
  return mx::concatenate(rows, 0);
}

TEST(MixExperts, IsTheWeighedSumOfEachRowsExperts) {
  const Plain plain = plain_experts();
  const mx::array x = random({23, kHidden}, 15);
  const mx::array residual = random({23, kHidden}, 16);
  for (const int n_chosen : {1, 2, kExperts}) {
    const Routes routes = routes_of(x, n_chosen);
    Experts experts = experts_of(plain);
    EXPECT_LT(max_difference(mix_experts(x, routes, experts), naive(x, routes, plain, experts)), 1e-5F);
    EXPECT_LT(
        max_difference(mix_experts(x, routes, experts, residual), mx::add(naive(x, routes, plain, experts), residual)),
        1e-5F);
    experts.weighs_inputs = true;
    EXPECT_LT(max_difference(mix_experts(x, routes, experts), naive(x, routes, plain, experts)), 1e-5F);
  }
}

TEST(MixExperts, HasBiasesAndAClampedGate) {
  const Plain plain = plain_experts();
  const mx::array x = random({9, kHidden}, 17, 2);
  const Routes routes = routes_of(x, 2);
  Experts experts = experts_of(plain);
  experts.gate_biases = random({kExperts, kInner}, 18);
  experts.up_biases = random({kExperts, kInner}, 19);
  experts.down_biases = random({kExperts, kHidden}, 20);
  experts.clamped_gate = ClampedGate{1.702F, 1.5F};  // low enough to clamp some
  EXPECT_LT(max_difference(mix_experts(x, routes, experts), naive(x, routes, plain, experts)), 1e-5F);
}

TEST(MixExperts, RowsAreTheSameBitsWhateverTheOthersAreAndOnAnyThreads) {
  const Experts experts = experts_of(plain_experts());
  const mx::array x = random({300, kHidden}, 21);
  const Routes routes = routes_of(x, 2);
  const int before = cpu_threads();
  const mx::array whole = mix_experts(x, routes, experts);
  mx::eval(whole);
  for (const int n_threads : {1, 2, 3}) {
    set_cpu_threads(n_threads);
    for (const int n_rows : {1, 7, 128}) {
      for (int begin = 0; begin < 300; begin += n_rows * 3) {
        const int end = std::min(300, begin + n_rows);
        const mx::array part = mix_experts(rows_of(x, begin, end), some_of(routes, begin, end), experts);
        ASSERT_TRUE(are_same_bits(part, rows_of(whole, begin, end))) << n_rows << " rows from " << begin;
      }
    }
  }
  set_cpu_threads(before);
}

TEST(MixExperts, QuantizedExpertsGiveTheResultsOfTheirValues) {
  Plain plain = plain_experts();
  plain.down = random({kExperts, kHidden, 64}, 22, 0.2F);
  plain.gates = random({kExperts, 64, kHidden}, 23, 0.2F);
  plain.ups = random({kExperts, 64, kHidden}, 24, 0.2F);
  const mx::array x = random({6, kHidden}, 25);
  const Routes routes = routes_of(x, 2);
  for (const int bits : {4, 5, 8}) {
    const auto quantized = [&](mx::array& all) {
      std::vector<mx::array> values;
      const WeightStack stack = stacked(kExperts, [&](int e) {
        const std::vector<mx::array> parts = mx::quantize(mx::take(all, e, 0), 32, bits);
        values.push_back(mx::dequantize(parts[0], parts[1], parts[2], 32, bits));
        return Weight{parts[0], Quantization{parts[1], parts[2], 32, bits}};
      });
      all = mx::stack(values);
      return stack;
    };
    Plain values = plain;
    const Experts experts{quantized(values.gates), quantized(values.ups), quantized(values.down)};
    EXPECT_LT(max_difference(mix_experts(x, routes, experts), naive(x, routes, values, experts)), kFixedTolerance)
        << bits;
  }
}

TEST(MixExperts, RefusesSizesThatDoNotFit) {
  const Experts experts = experts_of(plain_experts());
  const mx::array x = random({4, kHidden}, 26);
  const Routes routes = routes_of(x, 2);
  EXPECT_THROW(mix_experts(random({4, kHidden + 1}, 1), routes, experts), std::invalid_argument);
  EXPECT_THROW(mix_experts(random({3, kHidden}, 1), routes, experts), std::invalid_argument);
  EXPECT_THROW(mix_experts(x, routes, experts, random({3, kHidden}, 1)), std::invalid_argument);
  Experts others = experts;
  others.ups = experts.down;
  EXPECT_THROW(mix_experts(x, routes, others), std::invalid_argument);
}

// ---- stacks ----

TEST(WeightStack, LinearOfHeadsIsEachHeadsProduct) {
  const mx::array all = random({3, 20, 33}, 27);
  const WeightStack heads = dense(all);
  const mx::array x = random({2, 3, 5, 33}, 28);
  const mx::array y = linear_of_heads(x, heads);
  EXPECT_LT(max_difference(y, mx::matmul(x, mx::swapaxes(mx::expand_dims(all, 0), 2, 3))), 1e-4F);
  const mx::Shape start{1, 0, 2, 0};
  const mx::array one = mx::slice(x, start, mx::Shape{2, 3, 3, 33});
  EXPECT_TRUE(are_same_bits(linear_of_heads(one, heads), mx::slice(y, start, mx::Shape{2, 3, 3, 20})));
  EXPECT_THROW(linear_of_heads(random({2, 4, 5, 33}, 1), heads), std::invalid_argument);
}

TEST(WeightStack, RefusesMatricesOfDifferentShapes) {
  EXPECT_THROW(stacked(2, [](int i) { return Weight{mx::zeros({4 + i, 8})}; }), std::invalid_argument);
  EXPECT_THROW(stacked(2,
                       [](int i) {
                         return Weight{mx::zeros({4, 8}, i == 0 ? mx::float32 : mx::float16)};
                       }),
               std::invalid_argument);
}

}  // namespace
}  // namespace memoir::kernels
