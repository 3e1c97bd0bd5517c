// Packed weights and their products: against double precision, and bit for bit between numbers of rows, threads and
// instruction sets.

#include "memoir/kernels/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "memoir/base/half.h"
#include "memoir/kernels/cpu/threads.h"
#include "tests/float_rows.h"

namespace memoir::kernels::cpu {
namespace {

using test::random_float;
using test::same_bits;

constexpr int kColumns = 256;

struct Matrix {
  PackedFormat format;
  std::vector<std::byte> packed;
  std::vector<double> values;  // [n_rows, kColumns], what the stored bytes stand for
};

// The bytes of an element, and the value they stand for.
double put(Element element, float value, std::byte* out) {
  if (element == Element::kF32) {
    std::memcpy(out, &value, 4);
    return value;
  }
  const std::uint16_t half = element == Element::kF16 ? float_to_float16(value) : float_to_bfloat16(value);
  std::memcpy(out, &half, 2);
  return element == Element::kF16 ? float16_to_float(half) : bfloat16_to_float(half);
}

Matrix dense_matrix(int n_rows, Element element) {
  std::mt19937 random(static_cast<unsigned>(n_rows));
  Matrix m{{n_rows, kColumns, element}, {}, {}};
  const std::size_t size = element_bytes(element);
  std::vector<std::byte> bytes(static_cast<std::size_t>(n_rows) * kColumns * size);
  for (std::size_t i = 0; i < bytes.size() / size; ++i) {
    m.values.push_back(put(element, random_float(random), bytes.data() + i * size));
  }
  m.packed.resize(m.format.size_bytes());
  pack_dense(m.format, bytes.data(), m.packed.data());
  return m;
}

// Random codes in MLX's form: code i of a row lies at bit i * bits of its words, low bits first.
Matrix quantized_matrix(int n_rows, Element element, int bits, int group_size, bool has_biases = true) {
  std::mt19937 random(static_cast<unsigned>(n_rows * bits + group_size));
  Matrix m{{n_rows, kColumns, element, bits, group_size, has_biases}, {}, {}};
  const std::size_t size = element_bytes(element);
  const auto rows = static_cast<std::size_t>(n_rows);
  const auto row_words = static_cast<std::size_t>(kColumns * bits / 32);
  const auto n_groups = static_cast<std::size_t>(m.format.n_groups());
  std::vector<std::uint32_t> words(rows * row_words);
  for (std::uint32_t& word : words) word = random();
  std::vector<std::byte> scales(rows * n_groups * size);
  std::vector<std::byte> biases(scales.size());
  std::vector<double> scale_values;
  std::vector<double> bias_values;
  for (std::size_t i = 0; i < rows * n_groups; ++i) {
    scale_values.push_back(put(element, random_float(random) / 16, scales.data() + i * size));
    // Without biases: what a format of codes from -2^(bits - 1) on stands for.
    const float bias =
        has_biases ? random_float(random) : -std::ldexp(static_cast<float>(scale_values.back()), bits - 1);
    bias_values.push_back(put(element, bias, biases.data() + i * size));
  }
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t k = 0; k < kColumns; ++k) {
      std::uint32_t code = 0;
      for (std::size_t bit = 0; bit < static_cast<std::size_t>(bits); ++bit) {
        const std::size_t at = k * static_cast<std::size_t>(bits) + bit;
        code |= ((words[row * row_words + at / 32] >> (at % 32)) & 1U) << bit;
      }
      const std::size_t group = row * n_groups + k / static_cast<std::size_t>(group_size);
      m.values.push_back(scale_values[group] * code + bias_values[group]);
    }
  }
  m.packed.resize(m.format.size_bytes());
  pack_quantized(m.format, words.data(), scales.data(), biases.data(), m.packed.data());
  return m;
}

std::vector<Matrix> all_matrices() {
  std::vector<Matrix> matrices;
  for (const int n_rows : {1, 16, 37, 100}) {
    for (const Element element : {Element::kF32, Element::kF16, Element::kBF16}) {
      matrices.push_back(dense_matrix(n_rows, element));
    }
  }
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      matrices.push_back(quantized_matrix(group_size == 32 ? 100 : 37, Element::kF16, bits, group_size));
    }
    matrices.push_back(quantized_matrix(17, Element::kF32, bits, 32));
    matrices.push_back(quantized_matrix(17, Element::kBF16, bits, 32));
    matrices.push_back(quantized_matrix(37, Element::kF16, bits, 32, false));
  }
  return matrices;
}

std::string name_of(const Matrix& m) {
  return std::to_string(m.format.n_rows) + " rows, element " + std::to_string(static_cast<int>(m.format.element)) +
         ", " + std::to_string(m.format.bits) + " bits, group " + std::to_string(m.format.group_size);
}

std::vector<float> random_rows(int n_rows) {
  std::mt19937 random(7);
  std::vector<float> x(static_cast<std::size_t>(n_rows) * kColumns);
  for (float& value : x) value = random_float(random);
  return x;
}

MatmulArgs product_args(const Matrix& m, const float* x, int n_rows, const float* bias, float* y) {
  MatmulArgs args{m.format, m.packed.data(), n_rows};
  args.x = x;
  args.bias = bias;
  args.y = y;
  return args;
}

std::vector<float> product(const Kernels& set, const Matrix& m, const float* x, int n_rows, const float* bias) {
  std::vector<float> y(static_cast<std::size_t>(n_rows * m.format.n_rows));
  MatmulArgs args = product_args(m, x, n_rows, bias, y.data());
  std::vector<FixedBlock> fixed(static_cast<std::size_t>(n_rows * kColumns / kBlock));
  if (m.format.is_quantized()) {
    for (int row = 0; row < n_rows; ++row) {
      set.fix_row(kColumns, x + static_cast<std::ptrdiff_t>(row) * kColumns,
                  fixed.data() + static_cast<std::ptrdiff_t>(row) * (kColumns / kBlock));
    }
    args.fixed = fixed.data();
  }
  set.matmul_part(args, {0, m.format.n_tiles(), 0, n_rows});
  return y;
}

TEST(Packed, TakesTheBytesOfTheStoredForm) {
  const PackedFormat format{64, kColumns, Element::kF16, 4, 32};
  EXPECT_EQ(format.size_bytes(), 64U * kColumns / 2 + 2 * 2 * 64U * kColumns / 32);
  EXPECT_EQ((PackedFormat{64, kColumns, Element::kBF16}.size_bytes()), 64U * kColumns * 2);
}

TEST(Packed, LeavesOutBiasesThatScalesImply) {
  const Matrix with = quantized_matrix(32, Element::kF16, 4, 32);
  const Matrix without = quantized_matrix(32, Element::kF16, 4, 32, false);
  EXPECT_EQ(with.format.size_bytes() - without.format.size_bytes(), 2U * 32 * kColumns / 32);
  const std::uint16_t scale = float_to_float16(0.75F);
  const std::uint16_t bias = float_to_float16(-6);
  const std::uint16_t other = float_to_float16(-6.004F);
  const auto has_implied = [&](const std::uint16_t& b) {
    return has_implied_biases(Element::kF16, 4, 1, reinterpret_cast<const std::byte*>(&scale),
                              reinterpret_cast<const std::byte*>(&b));
  };
  EXPECT_TRUE(has_implied(bias));
  EXPECT_FALSE(has_implied(other));
}

TEST(Packed, RowsComeBackAsTheyWere) {
  for (const Matrix& m : all_matrices()) {
    std::vector<float> row(kColumns);
    for (int r = 0; r < m.format.n_rows; ++r) {
      unpack_row(m.format, m.packed.data(), r, row.data());
      for (std::size_t k = 0; k < kColumns; ++k) {
        ASSERT_NEAR(row[k], m.values[static_cast<std::size_t>(r) * kColumns + k], 1e-5) << name_of(m);
      }
    }
  }
}

// What a product may be off by since x takes 16 bits: half a step of its block's scale for each column.
double fixed_error(const Matrix& m, const float* x, std::size_t output) {
  if (!m.format.is_quantized()) return 0;
  const double* weights = m.values.data() + output * kColumns;
  double error = 0;
  for (std::size_t b = 0; b < kColumns; b += kBlock) {
    double largest = 0;
    double sum = 0;
    for (std::size_t k = b; k < b + kBlock; ++k) {
      largest = std::max(largest, std::abs(double{x[k]}));
      sum += std::abs(weights[k]);
    }
    error += sum * largest / (2 * kLargestFixed);
  }
  return error;
}

TEST(Matmul, AgreesWithDoublePrecisionInEveryFormatAndSet) {
  const int n_rows = 9;
  const std::vector<float> x = random_rows(n_rows);
  const KernelList list = supported_kernels();
  for (const Matrix& m : all_matrices()) {
    const auto n_outputs = static_cast<std::size_t>(m.format.n_rows);
    const std::vector<float> bias(n_outputs, 0.5F);
    for (int i = 0; i < list.n_sets; ++i) {
      const std::vector<float> y = product(*list.sets[i], m, x.data(), n_rows, bias.data());
      for (std::size_t at = 0; at < y.size(); ++at) {
        double sum = 0.5;
        double size = 0.5;
        for (std::size_t k = 0; k < kColumns; ++k) {
          const double term =
              m.values[at % n_outputs * kColumns + k] * static_cast<double>(x[at / n_outputs * kColumns + k]);
          sum += term;
          size += std::abs(term);
        }
        const double error = fixed_error(m, x.data() + at / n_outputs * kColumns, at % n_outputs);
        ASSERT_NEAR(y[at], sum, error + size * 2e-6) << name_of(m) << ", " << list.sets[i]->name;
      }
    }
  }
}

TEST(Matmul, GivesTheSameBitsForOneRowAndForManyInEverySet) {
  const int n_rows = 19;
  const std::vector<float> x = random_rows(n_rows);
  const KernelList list = supported_kernels();
  for (const Matrix& m : all_matrices()) {
    const std::vector<float> all = product(*list.sets[0], m, x.data(), n_rows, nullptr);
    for (int i = 0; i < list.n_sets; ++i) {
      EXPECT_TRUE(same_bits(product(*list.sets[i], m, x.data(), n_rows, nullptr), all))
          << name_of(m) << ", " << list.sets[i]->name;
      for (const int n_at_once : {1, 2, 3, 7}) {
        std::vector<float> joined;
        for (int row = 0; row < n_rows; row += n_at_once) {
          const std::vector<float> part =
              product(*list.sets[i], m, x.data() + static_cast<std::ptrdiff_t>(row) * kColumns,
                      std::min(n_at_once, n_rows - row), nullptr);
          joined.insert(joined.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(same_bits(joined, all)) << name_of(m) << ", " << list.sets[i]->name << ", rows " << n_at_once;
      }
    }
  }
}

TEST(Matmul, GivesTheSameBitsOnAnyNumberOfThreads) {
  const int n_rows = 200;  // enough for blocks of rows
  const std::vector<float> x = random_rows(n_rows);
  const int before = n_threads();
  for (const Matrix& m : all_matrices()) {
    std::vector<float> one;
    for (const int n : {1, 2, 3, 5}) {
      set_n_threads(n);
      std::vector<float> y(static_cast<std::size_t>(n_rows * m.format.n_rows));
      MatmulArgs args = product_args(m, x.data(), n_rows, nullptr, y.data());
      matmul({&args, 1});
      if (one.empty()) one = y;
      EXPECT_TRUE(same_bits(y, one)) << name_of(m) << ", threads " << n;
    }
  }
  set_n_threads(before);
}

TEST(Matmul, AddsTheBiasThenTheResidualAndKeepsToItsColumns) {
  const Matrix m = quantized_matrix(37, Element::kF16, 4, 32);
  const std::vector<float> x = random_rows(3);
  const std::vector<float> bias(37, 0.5F);
  const std::vector<float> residual(std::size_t{3} * 37, -2.25F);
  const std::vector<float> plain = product(*supported_kernels().sets[0], m, x.data(), 3, bias.data());
  std::vector<float> y(std::size_t{3} * 50, 99.0F);
  MatmulArgs args = product_args(m, x.data(), 3, bias.data(), y.data() + 5);
  args.residual = residual.data();
  args.y_stride = 50;
  matmul({&args, 1});
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t n = 0; n < 50; ++n) {
      const bool is_output = n >= 5 && n < 42;
      EXPECT_EQ(y[row * 50 + n], is_output ? plain[row * 37 + n - 5] - 2.25F : 99.0F);
    }
  }
}

TEST(MatmulPlan, CoversEveryOutputOnce) {
  for (const int n_tiles : {1, 4, 5, 36, 193}) {
    for (const int n_rows : {1, 2, 3, 95, 200, 1000}) {
      for (const int n_threads : {1, 2, 7}) {
        const MatmulPlan plan(n_tiles, n_rows, n_threads);
        std::vector<int> n_times(static_cast<std::size_t>(n_tiles * n_rows));
        for (int i = 0; i < plan.n_parts(); ++i) {
          const MatmulPart part = plan.part(i);
          for (int t = part.tile_begin; t < part.tile_end; ++t) {
            for (int r = part.row_begin; r < part.row_end; ++r) ++n_times[static_cast<std::size_t>(t * n_rows + r)];
          }
        }
        for (const int n : n_times) ASSERT_EQ(n, 1) << n_tiles << " tiles, " << n_rows << " rows";
      }
    }
  }
}

TEST(Kernels, AreChosenByNameOrRefused) {
  const KernelList list = supported_kernels();
  for (int i = 0; i < list.n_sets; ++i) {
    choose_kernels(list.sets[i]->name);
    EXPECT_STREQ(kernels().name, list.sets[i]->name);
  }
  EXPECT_THROW(choose_kernels("mmx"), std::invalid_argument);
  choose_kernels("");
  EXPECT_STREQ(kernels().name, list.sets[0]->name);
}

TEST(FixedRows, AreNearTheirValuesInEverySet) {
  std::vector<float> x = random_rows(1);
  for (int i = 0; i < kBlock; ++i) x[static_cast<std::size_t>(i)] *= 1e30F;
  for (int i = kBlock; i < 2 * kBlock; ++i) x[static_cast<std::size_t>(i)] *= 1e-36F;
  std::fill_n(x.begin() + 2 * kBlock, kBlock, 0.0F);
  x[3 * kBlock] = -1024;           // takes all bits,
  x[3 * kBlock + 1] = 1.0F / 512;  // and leaves few to others
  const KernelList list = supported_kernels();
  std::vector<FixedBlock> first;
  for (int i = 0; i < list.n_sets; ++i) {
    std::vector<FixedBlock> blocks(kColumns / kBlock);
    list.sets[i]->fix_row(kColumns, x.data(), blocks.data());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      double largest = 0;
      double sum = 0;
      for (std::size_t k = 0; k < kBlock; ++k) largest = std::max(largest, std::abs(double{x[b * kBlock + k]}));
      for (std::size_t k = 0; k < kBlock; ++k) {
        int q = 0;
        for (const auto& digits : blocks[b].digits) q = q * 256 + digits[k];
        sum += double{blocks[b].scale} * q;
        ASSERT_NEAR(double{blocks[b].scale} * q, x[b * kBlock + k],
                    std::max(largest, std::ldexp(1, -100)) / (2 * kLargestFixed) * 1.001)
            << b << " " << k;
      }
      EXPECT_NEAR(blocks[b].sum, sum, std::abs(sum) * 1e-7);
    }
    if (first.empty()) first = blocks;
    EXPECT_EQ(std::memcmp(first.data(), blocks.data(), blocks.size() * sizeof(FixedBlock)), 0) << list.sets[i]->name;
  }
}

TEST(FixedRows, LargestCodesAndValuesDoNotOverflow) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    Matrix m{{16, kColumns, Element::kF32, bits, 128}, {}, {}};
    const std::vector<std::uint32_t> words(static_cast<std::size_t>(16 * kColumns * bits / 32), ~std::uint32_t{0});
    const std::vector<float> scales(16 * kColumns / 128, 1.0F);
    const std::vector<float> biases(scales.size(), 0.0F);
    m.packed.resize(m.format.size_bytes());
    pack_quantized(m.format, words.data(), reinterpret_cast<const std::byte*>(scales.data()),
                   reinterpret_cast<const std::byte*>(biases.data()), m.packed.data());
    for (const float value : {1.0F, -1.0F, std::nextafter(2.0F, 0.0F), -std::nextafter(2.0F, 0.0F)}) {
      const std::vector<float> x(kColumns, value);
      const KernelList list = supported_kernels();
      for (int i = 0; i < list.n_sets; ++i) {
        const std::vector<float> y = product(*list.sets[i], m, x.data(), 1, nullptr);
        const double expected = double{value} * ((1 << bits) - 1) * kColumns;
        EXPECT_NEAR(y[3], expected, std::abs(expected) * 1e-6) << bits << " bits, " << list.sets[i]->name;
      }
    }
  }
}

TEST(Matmul, InfinityAmongActivationsGivesNanForQuantizedWeights) {
  const Matrix m = quantized_matrix(37, Element::kF16, 4, 32);
  std::vector<float> x = random_rows(2);
  x[7] = std::numeric_limits<float>::infinity();
  const KernelList list = supported_kernels();
  for (int i = 0; i < list.n_sets; ++i) {
    const std::vector<float> y = product(*list.sets[i], m, x.data(), 2, nullptr);
    for (std::size_t n = 0; n < 37; ++n) {
      EXPECT_TRUE(std::isnan(y[n]));
      EXPECT_TRUE(std::isfinite(y[37 + n]));
    }
  }
}

TEST(Matmul, ANanReachesItsRowOnly) {
  const Matrix m = quantized_matrix(37, Element::kF16, 4, 32);
  std::vector<float> x = random_rows(3);
  x[kColumns + 5] = std::nanf("");
  const std::vector<float> y = product(*supported_kernels().sets[0], m, x.data(), 3, nullptr);
  for (std::size_t n = 0; n < 37; ++n) {
    EXPECT_TRUE(std::isfinite(y[n]));
    EXPECT_TRUE(std::isnan(y[37 + n]));
    EXPECT_TRUE(std::isfinite(y[74 + n]));
  }
}

TEST(Threads, RefusesLessThanOne) {
  EXPECT_THROW(set_n_threads(0), std::invalid_argument);
}

}  // namespace
}  // namespace memoir::kernels::cpu
