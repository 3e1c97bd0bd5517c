// MLX's quantized matrices as the loader of safetensors reads them: every value is scale * code + bias, computed here
// from the codes that went into the file.

#include "memoir/model/weights.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <numeric>
#include <random>

#include "memoir/base/error.h"
#include "memoir/kernels/linear.h"
#include "tests/model_files.h"

namespace mx = mlx::core;

namespace memoir::model {
namespace {

constexpr int kRows = 20;  // no multiple of what a kernel takes at once
constexpr int kColumns = 256;

struct Format {
  int bits;
  int group_size;
  mx::Dtype scale_dtype = mx::float16;
  mx::Dtype bias_dtype = mx::float16;
};

// A matrix of random codes, scales and biases.
class Quantized {
 public:
  explicit Quantized(Format format) : format_(format) {
    std::mt19937 random(static_cast<unsigned>(1000 * format.bits + format.group_size));
    for (std::uint32_t& code : codes_) code = static_cast<std::uint32_t>(random()) % (1U << format.bits);
    const int n_groups = kColumns / format.group_size;
    std::vector<float> scales;
    std::vector<float> biases;
    for (int i = 0; i < kRows * n_groups; ++i) {
      scales.push_back(0.01F + static_cast<float>(random() % 1000) / 8000.0F);
      biases.push_back(static_cast<float>(random() % 2000) / 1000.0F - 1.0F);
    }
    scales_ = rounded(scales, format.scale_dtype, n_groups);
    biases_ = rounded(biases, format.bias_dtype, n_groups);
  }

  test::Tensors tensors(const std::string& module) const {
    return {{module + ".weight", words()}, {module + ".scales", scales_}, {module + ".biases", biases_}};
  }

  // The codes in the order of bits that MLX packs them in: a row is one stream, low bits first.
  mx::array words() const {
    const int n_words = kColumns * format_.bits / 32;
    std::vector<std::uint32_t> words(static_cast<std::size_t>(kRows * n_words));
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      for (int bit = 0; bit < format_.bits; ++bit) {
        const std::size_t at = i * static_cast<std::size_t>(format_.bits) + static_cast<std::size_t>(bit);
        words[at / 32] |= ((codes_[i] >> bit) & 1U) << (at % 32);
      }
    }
    return mx::array(words.data(), {kRows, n_words}, mx::uint32);
  }

  std::vector<float> values() const {
    const std::vector<float> scales = floats(scales_);
    const std::vector<float> biases = floats(biases_);
    std::vector<float> values;
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      const std::size_t group = i / static_cast<std::size_t>(format_.group_size);
      values.push_back(static_cast<float>(static_cast<double>(scales[group]) * codes_[i] + biases[group]));
    }
    return values;
  }

  static std::vector<float> floats(const mx::array& a) {
    const mx::array b = mx::contiguous(mx::astype(a, mx::float32));
    mx::eval(b);
    return {b.data<float>(), b.data<float>() + b.size()};
  }

 private:
  static mx::array rounded(const std::vector<float>& values, mx::Dtype dtype, int n_groups) {
    return mx::astype(mx::array(values.data(), {kRows, n_groups}, mx::float32), dtype);
  }

  Format format_;
  std::vector<std::uint32_t> codes_ = std::vector<std::uint32_t>(kRows * kColumns);
  mx::array scales_ = mx::array(0);
  mx::array biases_ = mx::array(0);
};

class QuantizedFile : public testing::Test {
 protected:
  std::unique_ptr<Weights> open(const test::Tensors& tensors, Format format) const {
    mx::save_safetensors((folder_.path() / "model.safetensors").string(), tensors);
    ModelConfig config;
    config.quantization = QuantizationConfig{format.group_size, format.bits, {}};
    return open_safetensors_weights(folder_.path(), config);
  }

  std::string read_error(const test::Tensors& tensors, Format format) const {
    try {
      open(tensors, format)->matrix("m", kRows, kColumns);
    } catch (const FormatError& error) {
      return error.key();
    }
    return "no error";
  }

  void expect_values(const Quantized& quantized, Format format) const {
    const kernels::Weight weight = open(quantized.tensors("m"), format)->matrix("m", kRows, kColumns);
    EXPECT_EQ(weight.columns(), kColumns);
    const mx::array rows = kernels::embed(mx::arange(kRows), weight, mx::float32);
    const std::vector<float> actual = Quantized::floats(rows);
    const std::vector<float> expected = quantized.values();
    ASSERT_EQ(actual.size(), expected.size());
    // Sums of a product up to 34 and a bias, rounded once or twice to float32.
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 4e-6F) << i;
  }

  test::TemporaryFolder folder_;
};

// mx::dequantize reads these words as the codes that went in, so that the test means MLX's format.
TEST(QuantizedCodes, ArePackedAsMlxPacksThem) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    const Quantized quantized({bits, 64, mx::float32, mx::float32});
    const test::Tensors tensors = quantized.tensors("m");
    const mx::array values =
        mx::dequantize(tensors.at("m.weight"), tensors.at("m.scales"), tensors.at("m.biases"), 64, bits);
    const std::vector<float> expected = quantized.values();
    const std::vector<float> actual = Quantized::floats(values);
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 4e-6F) << bits << " bits";
  }
}

TEST_F(QuantizedFile, EveryWidthAndGroupIsRead) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      for (const mx::Dtype dtype : {mx::float16, mx::bfloat16, mx::float32}) {
        SCOPED_TRACE(std::to_string(bits) + " bits, groups of " + std::to_string(group_size));
        const Format format{bits, group_size, dtype, dtype};
        expect_values(Quantized(format), format);
      }
    }
  }
}

// float16 has three bits of precision more than bfloat16, which has the wider range.
TEST_F(QuantizedFile, ScalesAndBiasesOfTwoTypesKeepTheirBits) {
  for (const auto& [scales, biases] : {std::pair(mx::bfloat16, mx::float16), {mx::float16, mx::bfloat16}}) {
    const Format format{4, 64, scales, biases};
    expect_values(Quantized(format), format);
  }
}

TEST_F(QuantizedFile, MissingScalesAndBiasesAreNamed) {
  const Format format{4, 64};
  for (const char* part : {"m.weight", "m.scales", "m.biases"}) {
    test::Tensors tensors = Quantized(format).tensors("m");
    tensors.erase(part);
    EXPECT_EQ(read_error(tensors, format), part);
  }
}

TEST_F(QuantizedFile, PartsOfAnotherShapeOrTypeAreNamed) {
  const Format format{4, 64};
  for (const char* part : {"m.weight", "m.scales", "m.biases"}) {
    test::Tensors tensors = Quantized(format).tensors("m");
    tensors.insert_or_assign(part, mx::zeros({kRows, 3}, tensors.at(part).dtype()));
    EXPECT_EQ(read_error(tensors, format), part);
    tensors = Quantized(format).tensors("m");
    const bool is_codes = std::string(part) == "m.weight";
    tensors.insert_or_assign(part, mx::zeros(tensors.at(part).shape(), is_codes ? mx::float16 : mx::uint32));
    EXPECT_EQ(read_error(tensors, format), part);
  }
}

}  // namespace
}  // namespace memoir::model
