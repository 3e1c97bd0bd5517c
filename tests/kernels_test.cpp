// Each kernel against its formula in double precision.

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "memoir/kernels/attention.h"
#include "memoir/kernels/device.h"
#include "memoir/kernels/kv_write.h"
#include "memoir/kernels/linear.h"
#include "memoir/kernels/mlp.h"
#include "memoir/kernels/norm.h"
#include "memoir/kernels/projection.h"
#include "memoir/kernels/rope.h"
#include "tests/random_array.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

using test::random_array;

std::vector<double> doubles(mx::array a) {
  a = mx::contiguous(mx::astype(a, mx::float32));
  mx::eval(a);
  return {a.data<float>(), a.data<float>() + a.size()};
}

void expect_near(const mx::array& actual, const std::vector<double>& expected, double tolerance) {
  const std::vector<double> values = doubles(actual);
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], tolerance) << "element " << i;
}

// y[m][n] = sum_k x[m][k] w[n][k]
std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w, std::size_t n_columns) {
  std::vector<double> y;
  for (std::size_t m = 0; m < x.size() / n_columns; ++m) {
    for (std::size_t n = 0; n < w.size() / n_columns; ++n) {
      double sum = 0;
      for (std::size_t k = 0; k < n_columns; ++k) sum += x[m * n_columns + k] * w[n * n_columns + k];
      y.push_back(sum);
    }
  }
  return y;
}

TEST(Linear, MultipliesByDenseWeightsOfEveryType) {
  const mx::array x = random_array({1, 3, 64}, 1);
  for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
    const Weight w{mx::astype(random_array({5, 64}, 2), dtype), std::nullopt};
    const mx::array y = linear(x, {w});
    EXPECT_EQ(y.shape(), (mx::Shape{1, 3, 5}));
    EXPECT_EQ(y.dtype(), mx::float32);
    expect_near(y, product(doubles(x), doubles(w.data), 64), 1e-5);
  }
}

TEST(Linear, AddsABias) {
  const mx::array x = random_array({2, 32}, 1);
  const Weight w{random_array({4, 32}, 2), std::nullopt};
  const mx::array bias = random_array({4}, 3);
  std::vector<double> expected = product(doubles(x), doubles(w.data), 32);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += doubles(bias)[i % 4];
  expect_near(linear(x, {w, bias}), expected, 1e-5);
}

// The codes unpacked by hand: value = scale * code + bias.
std::vector<double> dequantized(const Weight& w) {
  const Quantization& q = *w.quantization;
  mx::array words = w.data;
  mx::eval(words);
  const std::vector<double> scales = doubles(q.scales);
  const std::vector<double> biases = doubles(q.biases);
  const auto n_columns = static_cast<std::size_t>(w.columns());
  const auto words_per_row = static_cast<std::size_t>(words.shape(1));
  const auto bits = static_cast<std::size_t>(q.bits);
  std::vector<double> values;
  for (std::size_t row = 0; row < static_cast<std::size_t>(w.rows()); ++row) {
    for (std::size_t k = 0; k < n_columns; ++k) {
      std::uint32_t code = 0;
      for (std::size_t bit = 0; bit < bits; ++bit) {
        const std::size_t at = k * bits + bit;
        const std::uint32_t word = words.data<std::uint32_t>()[row * words_per_row + at / 32];
        code |= ((word >> (at % 32)) & 1U) << bit;
      }
      const std::size_t group = (row * n_columns + k) / static_cast<std::size_t>(q.group_size);
      values.push_back(scales[group] * code + biases[group]);
    }
  }
  return values;
}

Weight quantized_weight(int rows, int columns, int group_size, int bits, mx::Dtype dtype, unsigned seed) {
  const std::vector<mx::array> parts = mx::quantize(random_array({rows, columns}, seed), group_size, bits);
  return {parts[0], Quantization{mx::astype(parts[1], dtype), mx::astype(parts[2], dtype), group_size, bits}};
}

TEST(Linear, MultipliesByQuantizedWeightsOfEveryFormat) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
        const Weight w = quantized_weight(6, 256, group_size, bits, dtype, 4);
        ASSERT_EQ(w.columns(), 256);
        for (const int n_rows : {1, 3}) {
          SCOPED_TRACE(testing::Message() << bits << " bits, group " << group_size << ", " << n_rows << " rows");
          const mx::array x = random_array({1, n_rows, 256}, 5);
          expect_near(linear(x, {w}), product(doubles(x), dequantized(w), 256), 2e-4);
        }
      }
    }
  }
}

TEST(Linear, RefusesSizesThatDoNotFit) {
  const Weight w{random_array({5, 64}, 2), std::nullopt};
  EXPECT_THROW(linear(random_array({1, 63}, 1), {w}), std::invalid_argument);
  EXPECT_THROW(linear(random_array({1, 64}, 1), {w, random_array({4}, 3)}), std::invalid_argument);
  EXPECT_THROW(linear(random_array({1, 64}, 1), {w}, random_array({1, 4}, 3)), std::invalid_argument);
}

TEST(Embed, TakesRowsOfDenseAndQuantizedTables) {
  const mx::array ids({2, 0, 2}, {1, 3}, mx::int32);
  const Weight dense{random_array({4, 64}, 1), std::nullopt};
  const Weight packed = quantized_weight(4, 64, 32, 4, mx::float16, 1);
  for (const auto& [table, values] : {std::pair(dense, doubles(dense.data)), std::pair(packed, dequantized(packed))}) {
    std::vector<double> expected;
    for (const std::size_t id : {2U, 0U, 2U}) {
      const auto row = values.begin() + static_cast<std::ptrdiff_t>(id * 64);
      expected.insert(expected.end(), row, row + 64);
    }
    const mx::array rows = embed(ids, table, mx::float32);
    EXPECT_EQ(rows.shape(), (mx::Shape{1, 3, 64}));
    expect_near(rows, expected, 1e-6);
  }
}

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
  const mx::array x = random_array({2, 3, 48}, 1);
  const mx::array weight = random_array({48}, 2);
  const std::vector<double> xs = doubles(x);
  const std::vector<double> ws = doubles(weight);
  std::vector<double> expected;
  for (std::size_t row = 0; row < 6; ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < 48; ++i) sum += xs[row * 48 + i] * xs[row * 48 + i];
    for (std::size_t i = 0; i < 48; ++i) expected.push_back(xs[row * 48 + i] / std::sqrt(sum / 48 + 1e-5) * ws[i]);
  }
  expect_near(norm(x, {weight, 1e-5F}), expected, 1e-5);
  EXPECT_THROW(norm(x, {random_array({47}, 2), 1e-5F}), std::invalid_argument);
}

TEST(LayerNorm, SubtractsTheMeanAndAddsABias) {
  const mx::array x = mx::add(random_array({5, 37}, 1), mx::array(3.0F));
  const mx::array weight = random_array({37}, 2);
  const mx::array bias = random_array({37}, 3);
  const std::vector<double> xs = doubles(x);
  std::vector<double> expected;
  for (std::size_t row = 0; row < 5; ++row) {
    double mean = 0;
    double variance = 0;
    for (std::size_t i = 0; i < 37; ++i) mean += xs[row * 37 + i] / 37;
    for (std::size_t i = 0; i < 37; ++i) variance += std::pow(xs[row * 37 + i] - mean, 2) / 37;
    for (std::size_t i = 0; i < 37; ++i) {
      expected.push_back((xs[row * 37 + i] - mean) / std::sqrt(variance + 1e-5) * doubles(weight)[i] +
                         doubles(bias)[i]);
    }
  }
  expect_near(norm(x, {weight, 1e-5F, bias, true}), expected, 1e-5);
}

std::vector<double> normed(const mx::array& x, const Norm& spec) {
  const std::vector<double> xs = doubles(x);
  const std::vector<double> weight = doubles(spec.weight);
  std::vector<double> y;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const std::size_t row = i / weight.size() * weight.size();
    double sum = 0;
    for (std::size_t k = 0; k < weight.size(); ++k) sum += xs[row + k] * xs[row + k];
    y.push_back(xs[i] / std::sqrt(sum / static_cast<double>(weight.size()) + spec.eps) * weight[i - row]);
  }
  return y;
}

// Each gate by its formula: z sigmoid(z), and the tanh form of GELU (arXiv:1606.08415).
double gate_of(Gate gate, double z) {
  if (gate == Gate::kSilu) return z / (1 + std::exp(-z));
  return z / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z)));
}

TEST(GatedMlpKernel, GatesProductsOfTheNormAndAddsTheResidual) {
  for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
    for (const int n_rows : {1, 3}) {
      for (const bool is_packed : {false, true}) {
        GatedMlp mlp{{Weight{random_array({50, 32}, 1)}},
                     {Weight{random_array({50, 32}, 2)}},
                     {Weight{random_array({32, 50}, 3)}},
                     gate};
        if (is_packed) {
          for (Linear* layer : {&mlp.gates, &mlp.ups, &mlp.down}) layer->weight = prepared(layer->weight);
        }
        const mx::array x = random_array({1, n_rows, 32}, 4);
        const Norm spec{random_array({32}, 5), 1e-5F};
        const std::vector<double> in = normed(x, spec);
        std::vector<double> inner = product(in, doubles(random_array({50, 32}, 1)), 32);
        const std::vector<double> ups = product(in, doubles(random_array({50, 32}, 2)), 32);
        for (std::size_t i = 0; i < inner.size(); ++i) inner[i] = gate_of(gate, inner[i]) * ups[i];
        std::vector<double> expected = product(inner, doubles(random_array({32, 50}, 3)), 50);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += doubles(x)[i];
        SCOPED_TRACE(testing::Message() << n_rows << " rows, packed " << is_packed);
        expect_near(gated_mlp(x, spec, mlp, x), expected, 1e-4);
      }
    }
  }
}

TEST(GatedMlpKernel, RefusesSizesThatDoNotFit) {
  const GatedMlp mlp{{Weight{random_array({50, 32}, 1)}},
                     {Weight{random_array({49, 32}, 2)}},
                     {Weight{random_array({32, 50}, 3)}},
                     Gate::kSilu};
  EXPECT_THROW(gated_mlp(random_array({1, 32}, 1), std::nullopt, mlp), std::invalid_argument);
  const GatedMlp good{{Weight{random_array({50, 32}, 1)}},
                      {Weight{random_array({50, 32}, 2)}},
                      {Weight{random_array({32, 50}, 3)}},
                      Gate::kSilu};
  EXPECT_THROW(gated_mlp(random_array({1, 31}, 1), std::nullopt, good), std::invalid_argument);
  EXPECT_THROW(gated_mlp(random_array({1, 32}, 1), Norm{random_array({31}, 1), 1e-5F}, good), std::invalid_argument);
  EXPECT_THROW(gated_mlp(random_array({1, 32}, 1), std::nullopt, good, random_array({2, 32}, 1)),
               std::invalid_argument);
}

std::vector<double> rotated(const mx::array& x, int n_dims, bool traditional, int offset,
                            const std::function<double(int)>& period, double scale) {
  std::vector<double> values = doubles(x);
  const auto width = static_cast<std::size_t>(x.shape(3));
  for (std::size_t row = 0; row < values.size() / width; ++row) {
    const double position = (offset + static_cast<double>(row % static_cast<std::size_t>(x.shape(2)))) * scale;
    for (int i = 0; i < n_dims / 2; ++i) {
      const int first = traditional ? 2 * i : i;
      const int second = traditional ? 2 * i + 1 : i + n_dims / 2;
      double& a = values[row * width + static_cast<std::size_t>(first)];
      double& b = values[row * width + static_cast<std::size_t>(second)];
      const double angle = position / period(i);
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
  return values;
}

TEST(RopeKernel, TurnsPairsByPosition) {
  const mx::array x = random_array({1, 2, 5, 16}, 1);
  const auto period = [](int i) { return std::pow(10000.0, 2.0 * i / 16); };
  for (const bool traditional : {false, true}) {
    for (const int offset : {0, 7, 1000}) {
      expect_near(rope(x, make_turns({16, traditional, rope_periods(16, 10000)}, offset, 5)),
                  rotated(x, 16, traditional, offset, period, 1), 2e-4);
    }
  }
}

TEST(RopeKernel, TurnsOnlyTheLeadingDimensions) {
  const mx::array x = random_array({1, 2, 5, 16}, 1);
  const auto period = [](int i) { return std::pow(500.0, 2.0 * i / 8); };
  expect_near(rope(x, make_turns({8, false, rope_periods(8, 500)}, 3, 5)), rotated(x, 8, false, 3, period, 1), 1e-5);
}

TEST(RopeKernel, TakesPeriodsAndScale) {
  const mx::array x = random_array({1, 1, 4, 8}, 1);
  const std::vector<float> periods = {1, 3, 50, 700};
  const auto period = [](int i) { return std::vector<double>{1, 3, 50, 700}[static_cast<std::size_t>(i)]; };
  expect_near(rope(x, make_turns({8, false, periods}, 9, 4)), rotated(x, 8, false, 9, period, 1), 1e-5);
  const auto plain = [](int i) { return std::pow(10000.0, 2.0 * i / 8); };
  expect_near(rope(x, make_turns({8, false, rope_periods(8, 10000), 0.25}, 9, 4)), rotated(x, 8, false, 9, plain, 0.25),
              1e-5);
}

TEST(RopeKernel, RefusesSizesThatDoNotFit) {
  const mx::array x = random_array({1, 2, 5, 16}, 1);
  EXPECT_THROW(make_turns({17, false, rope_periods(17, 1e4)}, 0, 5), std::invalid_argument);
  EXPECT_THROW(make_turns({16, false, rope_periods(14, 1e4)}, 0, 5), std::invalid_argument);
  EXPECT_THROW(make_turns({16, false, rope_periods(16, 1e4)}, -1, 5), std::invalid_argument);
  const Turns turns = make_turns({16, false, rope_periods(16, 1e4)}, 0, 5);
  EXPECT_THROW(rope(random_array({1, 2, 4, 16}, 1), turns), std::invalid_argument);
  EXPECT_THROW(rope(random_array({1, 2, 5, 14}, 1), turns), std::invalid_argument);
  EXPECT_THROW(rope(random_array({5, 16}, 1), turns), std::invalid_argument);
}

TEST(ProjectHeads, GivesTheBitsOfTheSingleOperations) {
  const int dim = 16;
  HeadProjection p{{Weight{random_array({4 * dim, 48}, 1)}, random_array({4 * dim}, 7)},
                   {Weight{random_array({2 * dim, 48}, 2)}},
                   {Weight{random_array({2 * dim, 48}, 3)}},
                   4,
                   2,
                   dim};
  for (Linear* layer : {&p.queries, &p.keys, &p.values}) layer->weight = prepared(layer->weight);
  p.query_norm = Norm{random_array({dim}, 8), 1e-6F};
  const mx::array x = random_array({2, 5, 48}, 4);
  const Norm spec{random_array({48}, 5), 1e-5F};
  const Turns turns = make_turns({8, false, rope_periods(8, 1e4)}, 11, 5);
  const Heads heads = project_heads(x, spec, p, turns);
  const auto split = [&](const mx::array& y, int n_heads) {
    return mx::transpose(mx::reshape(y, {2, 5, n_heads, dim}), {0, 2, 1, 3});
  };
  const mx::array in = norm(x, spec);
  const mx::array queries = rope(norm(split(linear(in, p.queries), 4), *p.query_norm), turns);
  EXPECT_TRUE(mx::array_equal(heads.queries, queries).item<bool>());
  EXPECT_TRUE(mx::array_equal(heads.keys, rope(split(linear(in, p.keys), 2), turns)).item<bool>());
  EXPECT_TRUE(mx::array_equal(heads.values, split(linear(in, p.values), 2)).item<bool>());
}

TEST(ProjectHeads, RefusesSizesThatDoNotFit) {
  const auto projection = [](int q_rows, int k_rows) {
    return HeadProjection{{Weight{random_array({q_rows, 32}, 1)}},
                          {Weight{random_array({k_rows, 32}, 2)}},
                          {Weight{random_array({k_rows, 32}, 3)}},
                          4,
                          2,
                          8};
  };
  const mx::array x = random_array({1, 3, 32}, 1);
  EXPECT_NO_THROW(project_heads(x, std::nullopt, projection(32, 16), std::nullopt));
  EXPECT_THROW(project_heads(x, std::nullopt, projection(31, 16), std::nullopt), std::invalid_argument);
  EXPECT_THROW(project_heads(x, std::nullopt, projection(32, 17), std::nullopt), std::invalid_argument);
  EXPECT_THROW(project_heads(random_array({3, 32}, 1), std::nullopt, projection(32, 16), std::nullopt),
               std::invalid_argument);
  const Turns turns = make_turns({8, false, rope_periods(8, 1e4)}, 0, 4);
  EXPECT_THROW(project_heads(x, std::nullopt, projection(32, 16), turns), std::invalid_argument);
}

struct AttentionCase {
  int n_heads, n_kv_heads, n_queries, n_rows;
  std::optional<int> window;
};

std::vector<double> naive_attention(const AttentionCase& c, const std::vector<double>& q, const std::vector<double>& k,
                                    const std::vector<double>& v, int key_width, int value_width, double scale) {
  std::vector<double> out;
  for (int head = 0; head < c.n_heads; ++head) {
    const int kv_head = head / (c.n_heads / c.n_kv_heads);
    for (int t = 0; t < c.n_queries; ++t) {
      const int position = c.n_rows - c.n_queries + t;
      std::vector<double> weights(static_cast<std::size_t>(c.n_rows), 0.0);
      double sum = 0;
      for (int s = 0; s <= position; ++s) {
        if (c.window && position - s >= *c.window) continue;
        double score = 0;
        for (int i = 0; i < key_width; ++i) {
          score += q[static_cast<std::size_t>((head * c.n_queries + t) * key_width + i)] *
                   k[static_cast<std::size_t>((kv_head * c.n_rows + s) * key_width + i)];
        }
        sum += weights[static_cast<std::size_t>(s)] = std::exp(score * scale);
      }
      for (int i = 0; i < value_width; ++i) {
        double value = 0;
        for (int s = 0; s < c.n_rows; ++s) {
          value += weights[static_cast<std::size_t>(s)] / sum *
                   v[static_cast<std::size_t>((kv_head * c.n_rows + s) * value_width + i)];
        }
        out.push_back(value);
      }
    }
  }
  return out;
}

TEST(AttentionKernel, IsCausalWindowedAndSharesKeyHeads) {
  const std::vector<AttentionCase> cases = {
      {2, 2, 5, 5, {}}, {4, 2, 1, 9, {}}, {6, 2, 3, 9, {}}, {3, 1, 7, 7, 3},  {4, 2, 1, 9, 4},
      {4, 4, 4, 20, 8}, {2, 1, 6, 6, 1},  {2, 2, 5, 5, 5},  {1, 1, 1, 1, {}}, {2, 2, 5, 5, 100},
  };
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c.n_heads << "/" << c.n_kv_heads << " heads, " << c.n_queries << " of "
                                    << c.n_rows << " rows, window " << c.window.value_or(0));
    const mx::array q = random_array({1, c.n_heads, c.n_queries, 16}, 1);
    const mx::array k = random_array({1, c.n_kv_heads, c.n_rows, 16}, 2);
    const mx::array v = random_array({1, c.n_kv_heads, c.n_rows, 12}, 3);
    const mx::array y = attention(q, {{k}, {v}, {{0, 0, c.n_rows}}}, {.scale = 0.25F, .window = c.window});
    ASSERT_EQ(y.shape(), (mx::Shape{1, c.n_queries, c.n_heads * 12}));
    const mx::array heads = mx::transpose(mx::reshape(y, {1, c.n_queries, c.n_heads, 12}), {0, 2, 1, 3});
    expect_near(heads, naive_attention(c, doubles(q), doubles(k), doubles(v), 16, 12, 0.25), 1e-5);
  }
}

TEST(AttentionKernel, RefusesShapesThatDoNotFit) {
  const auto refuses = [](mx::Shape q, mx::Shape k, mx::Shape v, std::optional<int> window = std::nullopt) {
    const int n_rows = k[2];
    const History history{{random_array(std::move(k), 2)}, {random_array(std::move(v), 3)}, {{0, 0, n_rows}}};
    EXPECT_THROW(attention(random_array(std::move(q), 1), history, {.scale = 1, .window = window}),
                 std::invalid_argument);
  };
  refuses({1, 3, 2, 8}, {1, 2, 4, 8}, {1, 2, 4, 8});
  refuses({1, 2, 2, 8}, {1, 2, 4, 7}, {1, 2, 4, 8});
  refuses({1, 2, 5, 8}, {1, 2, 4, 8}, {1, 2, 4, 8});
  refuses({2, 2, 2, 8}, {1, 2, 4, 8}, {1, 2, 4, 8});
  refuses({1, 2, 2, 8}, {1, 2, 4, 8}, {1, 2, 3, 8});
  refuses({2, 2, 8}, {2, 4, 8}, {2, 4, 8});
  refuses({1, 2, 2, 8}, {1, 2, 4, 8}, {1, 2, 4, 8}, 0);
  const mx::array rows = random_array({1, 2, 4, 8}, 1);
  const auto refuses_ranges = [&](std::vector<KvRange> ranges) {
    EXPECT_THROW(attention(rows, {{rows}, {rows}, std::move(ranges)}, {.scale = 1}), std::invalid_argument);
  };
  refuses_ranges({});
  refuses_ranges({{0, 0, 5}});
  refuses_ranges({{0, 1, 4}});
  refuses_ranges({{0, -1, 4}});
  refuses_ranges({{2, 0, 2}, {0, 2, 2}});
  const auto refuses_options = [&](const AttentionOptions& options) {
    EXPECT_THROW(attention(rows, {{rows}, {rows}, {{0, 0, 4}}}, options), std::invalid_argument);
  };
  refuses_options({.scale = 1, .chunk = 0});
  refuses_options({.scale = 1, .keep = -1});
  refuses_options({.scale = 1, .sinks = random_array({3}, 1)});
  refuses_options({.scale = 1, .mask = random_array({1, 1, 4, 3}, 1)});
}

// What the kernel for the CPU does with a ring, masks, sinks and a cap is what MLX's own operations make of the same.
TEST(AttentionKernel, AgreesWithMlxOnBatchesMasksSinksAndHalves) {
  const mx::array q = random_array({2, 4, 3, 16}, 1);
  for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
    const mx::array k = mx::astype(random_array({2, 2, 9, 16}, 2), dtype);
    const mx::array v = mx::astype(random_array({2, 2, 9, 16}, 3), dtype);
    const mx::array sinks = random_array({4}, 4);
    const mx::array added = random_array({2, 1, 3, 9}, 5);
    const mx::array y = attention(q, {{k}, {v}, {{0, 0, 9}}}, {.scale = 0.25F, .sinks = sinks, .mask = added});
    const mx::array causal = mx::greater_equal(mx::expand_dims(mx::arange(6, 9), 1), mx::arange(0, 9));
    const mx::array mask = mx::where(causal, added, mx::array(-std::numeric_limits<float>::infinity()));
    const mx::array expected = mx::fast::scaled_dot_product_attention(
        q, mx::astype(k, mx::float32), mx::astype(v, mx::float32), 0.25F, "array", mask, sinks);
    expect_near(mx::reshape(y, {2, 3, 4, 16}), doubles(mx::transpose(expected, {0, 2, 1, 3})), 1e-5);
  }
}

// What a cache may have dropped is hidden, whether it is still stored or not.
TEST(AttentionKernel, HidesWhatTheHistorySaysIsDropped) {
  const mx::array rows = random_array({1, 2, 9, 16}, 1);
  const mx::array q = random_array({1, 4, 6, 16}, 2);
  const auto run = [&](std::optional<int> window, int keep, std::optional<int> dropped, int kept) {
    return attention(q, {{rows}, {rows}, {{0, 0, 9}}, dropped, kept}, {.scale = 0.25F, .window = window, .keep = keep});
  };
  const auto same = [](const mx::array& a, const mx::array& b) { return mx::array_equal(a, b).item<bool>(); };
  EXPECT_TRUE(same(run(std::nullopt, 0, 3, 2), run(3, 2, std::nullopt, 0)));
  EXPECT_TRUE(same(run(5, 0, 3, 0), run(3, 0, std::nullopt, 0)));
  EXPECT_TRUE(same(run(2, 1, 3, 0), run(2, 1, std::nullopt, 0)));
  EXPECT_FALSE(same(run(std::nullopt, 0, 3, 2), run(std::nullopt, 0, std::nullopt, 0)));
  EXPECT_THROW(run(std::nullopt, 0, 0, 0), std::invalid_argument);
}

// Sequences of different lengths, kinds and turns side by side: each gets the bits that it gets alone.
TEST(AttentionKernel, GivesEachOfSeveralSequencesItsOwnBits) {
  const auto rows = [](int n, unsigned seed) { return random_array({1, 2, n, 32}, seed); };
  const std::vector<SequenceHistory> sequences = {
      {1, {{rows(9, 1)}, {rows(9, 2)}, {{0, 0, 9}}}},
      {5, {{mx::astype(rows(70, 3), mx::float16)}, {rows(70, 4)}, {{30, 40, 30}, {60, 0, 40}}}},
      {2, {{rows(2, 5)}, {rows(2, 6)}, {{0, 0, 2}}}}};
  const mx::array q = mx::transpose(random_array({1, 8, 4, 32}, 7), {0, 2, 1, 3});
  const AttentionOptions options{.scale = 0.25F, .window = 50, .sinks = random_array({4}, 8)};
  std::vector<mx::array> alone;
  int begin = 0;
  for (const SequenceHistory& s : sequences) {
    alone.push_back(attention(mx::slice(q, {0, 0, begin, 0}, {1, 4, begin + s.n_queries, 32}), s.history, options));
    begin += s.n_queries;
  }
  EXPECT_TRUE(mx::array_equal(attention(q, sequences, options), mx::concatenate(alone, 1)).item<bool>());
  std::vector<SequenceHistory> wrong = sequences;
  wrong[0].n_queries = 2;
  EXPECT_THROW(attention(q, wrong, options), std::invalid_argument);
  wrong[1].n_queries = 4;
  EXPECT_NO_THROW(attention(q, wrong, options));
  wrong[2].n_queries = 3;
  EXPECT_THROW(attention(q, wrong, options), std::invalid_argument);
  EXPECT_THROW(attention(q, std::vector<SequenceHistory>{}, options), std::invalid_argument);
}

KvBuffer quantized_buffer(const mx::array& rows, int group_size, int bits) {
  const std::vector<mx::array> parts = mx::quantize(rows, group_size, bits);
  return {parts[0], Quantization{parts[1], parts[2], group_size, bits}};
}

// Codes are read where they lie, in a ring too: as attention over the rows that mx::dequantize makes of them.
TEST(AttentionKernel, ReadsQuantizedRows) {
  const mx::array q = random_array({2, 4, 3, 128}, 1);
  const std::vector<KvRange> ring = {{4, 5, 4}, {8, 0, 5}};
  for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
    const mx::array k = mx::astype(random_array({2, 2, 9, 128}, 2), dtype);
    const mx::array v = mx::astype(random_array({2, 2, 9, 128}, 3), dtype);
    for (const int bits : {2, 3, 4, 5, 6, 8}) {
      for (const int group_size : {32, 64, 128}) {
        SCOPED_TRACE(testing::Message() << bits << " bits, groups of " << group_size << ", itemsize " << k.itemsize());
        const History history{quantized_buffer(k, group_size, bits), quantized_buffer(v, group_size, bits), ring};
        ASSERT_EQ(history.keys.dim(), 128);
        // In float32, since a half would round what the kernel doesn't.
        const auto exact = [&](const KvBuffer& rows) {
          const Quantization& quantization = *rows.quantization;
          return mx::dequantize(rows.data, mx::astype(quantization.scales, mx::float32),
                                mx::astype(quantization.biases, mx::float32), group_size, bits);
        };
        const History dense{{exact(history.keys)}, {exact(history.values)}, ring};
        const mx::array expected = attention(q, dense, {.scale = 0.1F});
        expect_near(attention(q, history, {.scale = 0.1F}), doubles(expected), 1e-5);
      }
    }
  }
}

TEST(AttentionKernel, RefusesQuantizedRowsThatDoNotFit) {
  const mx::array q = random_array({1, 1, 1, 64}, 1);
  const KvBuffer good = quantized_buffer(random_array({1, 1, 4, 64}, 2), 32, 4);
  const auto refuses = [&](const KvBuffer& keys) {
    EXPECT_THROW(attention(q, {keys, good, {{0, 0, 4}}}, {.scale = 1}), std::invalid_argument);
    EXPECT_THROW(attention(q, {good, keys, {{0, 0, 4}}}, {.scale = 1}), std::invalid_argument);
  };
  KvBuffer wrong = good;
  wrong.quantization->bits = 7;
  refuses(wrong);
  wrong = good;
  wrong.quantization->group_size = 16;
  refuses(wrong);
  wrong = good;
  wrong.quantization->scales = random_array({1, 1, 4, 3}, 1);
  refuses(wrong);
  wrong = good;
  wrong.data = mx::astype(good.data, mx::int32);
  refuses(wrong);
}

// Buffers of any strides: rows of which every second element counts, heads behind rows, queries and masks likewise.
TEST(AttentionKernel, TakesArraysOfAnyStrides) {
  const auto every_second = [](const mx::array& a) {
    return mx::slice(a, {0, 0, 0, 0}, a.shape(), mx::Shape{1, 1, 1, 2});
  };
  const mx::array q = every_second(random_array({1, 2, 3, 32}, 1));
  const mx::array k = every_second(random_array({1, 2, 9, 32}, 2));
  const mx::array v = mx::transpose(random_array({1, 9, 2, 16}, 3), {0, 2, 1, 3});
  const mx::array mask = mx::transpose(random_array({1, 1, 9, 3}, 4), {0, 1, 3, 2});
  const auto run = [&](const auto& change) {
    return attention(change(q), {{change(k)}, {change(v)}, {{0, 0, 9}}}, {.scale = 0.25F, .mask = change(mask)});
  };
  const mx::array y = run([](const mx::array& a) { return a; });
  const mx::array expected = run([](const mx::array& a) { return mx::contiguous(a); });
  EXPECT_TRUE(mx::array_equal(y, expected).item<bool>());
}

KvBuffers empty_buffers(int capacity, mx::Dtype dtype, int bits, int group_size) {
  const auto buffer = [&](int dim) -> KvBuffer {
    const mx::array zeros = mx::zeros({2, 3, capacity, dim}, dtype);
    return bits == 0 ? KvBuffer{zeros} : quantized_buffer(zeros, group_size, bits);
  };
  return {buffer(128), buffer(256)};
}

// In place into dense and quantized buffers, in runs of any order: what MLX's astype and quantize give, bit for bit.
TEST(KvWrite, StoresWhatCastsAndQuantizationGive) {
  const mx::array k = random_array({2, 3, 5, 128}, 1);
  const mx::array v = mx::transpose(random_array({2, 5, 3, 256}, 2), {0, 2, 1, 3});
  const std::vector<RowRun> runs = {{6, 3}, {1, 2}};
  const std::vector<KvRange> written = {{0, 6, 3}, {3, 1, 2}};
  for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
    for (const int bits : {0, 2, 3, 4, 5, 6, 8}) {
      for (const int group_size : {32, 64, 128}) {
        SCOPED_TRACE(testing::Message() << bits << " bits, groups of " << group_size);
        const KvBuffers buffers = write_rows(empty_buffers(9, dtype, bits, group_size), k, v, runs);
        const auto expect_rows = [&](const KvBuffer& buffer, const mx::array& rows) {
          const mx::array cast = mx::astype(rows, dtype);
          const KvBuffer expected = bits == 0 ? KvBuffer{cast} : quantized_buffer(cast, group_size, bits);
          EXPECT_TRUE(mx::array_equal(buffer.rows(written), expected.rows({{0, 0, 5}})).item<bool>());
          // The rows between are as they were.
          EXPECT_TRUE(mx::all(mx::equal(buffer.rows({{0, 3, 3}}), mx::array(0.0F))).item<bool>());
        };
        expect_rows(buffers.keys, k);
        expect_rows(buffers.values, v);
      }
    }
  }
}

// By the kernel and by MLX's operations, which a buffer in the cache layer is encoded with.
TEST(KvWrite, KeepsFiniteWhatFloat16CannotHold) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float max = std::numeric_limits<float>::max();
  std::vector<float> row(128, 1.0F);
  const std::vector<float> large = {65519, 65520, -1e6F, max, -max, infinity, -infinity};
  std::copy(large.begin(), large.end(), row.begin());
  const mx::array k = mx::broadcast_to(mx::array(row.data(), {128}), {2, 3, 1, 128});
  const mx::array v = mx::zeros({2, 3, 1, 256});
  const auto first_of = [&](const mx::array& rows) {
    const mx::array part = mx::contiguous(mx::astype(mx::slice(rows, {0, 0, 0, 0}, {1, 1, 1, 7}), mx::float32));
    mx::eval(part);
    return std::vector<float>(part.data<float>(), part.data<float>() + 7);
  };
  const std::vector<float> expected = {65504, 65504, -65504, 65504, -65504, infinity, -infinity};
  const KvBuffers dense = write_rows(empty_buffers(8, mx::float16, 0, 0), k, v, {{0, 1}});
  EXPECT_EQ(first_of(dense.keys.data), expected);
  EXPECT_EQ(first_of(rows_as(k, mx::float16)), expected);
  EXPECT_EQ(first_of(rows_as(k, mx::float32))[3], max);

  const mx::array finite = mx::clip(k, mx::array(-max), mx::array(max));
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    const KvBuffers codes = write_rows(empty_buffers(8, mx::float16, bits, 32), finite, v, {{0, 1}});
    const KvBuffer composed = quantized_buffer(rows_as(finite, mx::float16), 32, bits);
    EXPECT_TRUE(mx::array_equal(codes.keys.rows({{0, 0, 1}}), composed.rows({{0, 0, 1}})).item<bool>()) << bits;
    EXPECT_TRUE(mx::all(mx::isfinite(codes.keys.quantization->scales)).item<bool>()) << bits;
    EXPECT_TRUE(mx::all(mx::isfinite(codes.keys.quantization->biases)).item<bool>()) << bits;
  }
}

TEST(KvWrite, WritesInPlaceUnlessAnotherHandleWouldSeeIt) {
  KvBuffers buffers = empty_buffers(8, mx::float32, 0, 0);
  mx::eval(buffers.keys.data, buffers.values.data);
  const void* memory = buffers.keys.data.data<float>();
  const mx::array k = random_array({2, 3, 1, 128}, 1);
  const mx::array v = random_array({2, 3, 1, 256}, 2);
  buffers = write_rows(std::move(buffers), k, v, {{7, 1}});
  mx::eval(buffers.keys.data, buffers.values.data);
  EXPECT_EQ(buffers.keys.data.data<float>(), memory);
  const KvBuffers before = buffers;
  buffers = write_rows(std::move(buffers), k, v, {{0, 1}});
  mx::eval(buffers.keys.data, buffers.values.data);
  EXPECT_NE(buffers.keys.data.data<float>(), memory);
  EXPECT_TRUE(mx::all(mx::equal(before.keys.rows({{0, 0, 1}}), mx::array(0.0F))).item<bool>());
  EXPECT_TRUE(mx::array_equal(buffers.keys.rows({{0, 0, 1}}), k).item<bool>());
  EXPECT_TRUE(mx::array_equal(buffers.keys.rows({{0, 7, 1}}), k).item<bool>());
}

TEST(KvWrite, RefusesWhatDoesNotFit) {
  const mx::array k = random_array({2, 3, 2, 128}, 1);
  const mx::array v = random_array({2, 3, 2, 256}, 2);
  const auto refuses = [&](const mx::array& keys, const mx::array& values, const std::vector<RowRun>& runs) {
    EXPECT_THROW(write_rows(empty_buffers(8, mx::float32, 0, 0), keys, values, runs), std::invalid_argument);
  };
  refuses(k, v, {});
  refuses(k, v, {{0, 1}});
  refuses(k, v, {{0, 3}});
  refuses(k, v, {{7, 2}});
  refuses(k, v, {{-1, 2}});
  refuses(k, v, {{0, 2}, {2, 0}});
  refuses(v, v, {{0, 2}});
  refuses(k, random_array({2, 3, 1, 256}, 2), {{0, 2}});
  refuses(k, random_array({1, 3, 2, 256}, 2), {{0, 2}});
  refuses(mx::astype(k, mx::int32), v, {{0, 2}});
}

TEST(Device, CountsAtLeastOneCoreAndTakesAThreadCount) {
  EXPECT_TRUE(on_cpu());
  EXPECT_EQ(activation_dtype(mx::float16), mx::float32);
  EXPECT_GE(cpu_threads(), 1);
  EXPECT_THROW(set_cpu_threads(0), std::invalid_argument);
  const int before = cpu_threads();
  set_cpu_threads(1);
  EXPECT_EQ(cpu_threads(), 1);
  set_cpu_threads(before);
}

class OnCpu : public testing::Environment {
 public:
  void SetUp() override { mx::set_default_device(mx::Device::cpu); }
};

const auto* const kOnCpu = testing::AddGlobalTestEnvironment(new OnCpu);

}  // namespace
}  // namespace memoir::kernels
