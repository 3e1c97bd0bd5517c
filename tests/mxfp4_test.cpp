// MXFP4 in affine form against the format's own definition (OCP Microscaling Formats 1.0, 5.3.3: E2M1 and E8M0).

#include "memoir/base/mxfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "memoir/base/half.h"

namespace memoir {
namespace {

// sign * 2^(exponent - 1) * (1 + fraction / 2), without the leading 1 where the exponent is 0.
float e2m1(unsigned code) {
  const float sign = (code & 8U) != 0 ? -1.0F : 1.0F;
  const unsigned exponent = (code >> 1) & 3U;
  const float fraction = static_cast<float>(code & 1U) / 2;
  return sign * (exponent == 0 ? fraction : std::ldexp(1 + fraction, static_cast<int>(exponent) - 1));
}

struct Affine {
  std::vector<std::uint32_t> words;
  std::vector<std::uint16_t> scales;
  std::vector<std::uint16_t> biases;

  explicit Affine(std::size_t n) : words(n * 5), scales(n), biases(n) {}

  float value(std::size_t group, std::size_t i) const {
    const std::size_t bit = i * 5;
    const std::uint32_t* at = words.data() + group * 5;
    std::uint64_t pair = at[bit / 32];
    if (bit / 32 < 4) pair |= std::uint64_t{at[bit / 32 + 1]} << 32;
    const auto code = static_cast<float>((pair >> (bit % 32)) & 31U);
    return std::fma(code, bfloat16_to_float(scales[group]), bfloat16_to_float(biases[group]));
  }
};

std::vector<std::byte> some_codes(std::size_t n_groups) {
  std::vector<std::byte> codes(n_groups * 16);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37 + i / 16 * 11);
  return codes;
}

TEST(Mxfp4, EveryValueIsExactWithEveryExponent) {
  constexpr std::size_t kGroups = 252;  // exponents 0 to 251
  const std::vector<std::byte> codes = some_codes(kGroups);
  std::vector<std::byte> exponents;
  for (std::size_t e = 0; e < kGroups; ++e) exponents.push_back(static_cast<std::byte>(e));
  for (const Mxfp4Order order : {Mxfp4Order::kPairs, Mxfp4Order::kHalves}) {
    Affine affine(kGroups);
    ASSERT_TRUE(
        mxfp4_to_affine({codes.data(), 16, exponents.data(), 1, order}, {affine.words, affine.scales, affine.biases}));
    for (std::size_t g = 0; g < kGroups; ++g) {
      for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t byte = order == Mxfp4Order::kPairs ? i / 2 : i % 16;
        const bool is_high = order == Mxfp4Order::kPairs ? i % 2 == 1 : i >= 16;
        const auto both = std::to_integer<unsigned>(codes[g * 16 + byte]);
        const float wanted = std::ldexp(e2m1(is_high ? both >> 4 : both & 15U), static_cast<int>(g) - 127);
        ASSERT_EQ(affine.value(g, i), wanted) << "exponent " << g << ", value " << i;
      }
    }
  }
}

// So that kernels/cpu/packed.h leaves them out.
TEST(Mxfp4, BiasesAreThoseThatTheScalesImply) {
  const std::vector<std::byte> codes = some_codes(1);
  for (const unsigned e : {0U, 1U, 2U, 127U, 251U}) {
    const auto exponent = static_cast<std::byte>(e);
    Affine affine(1);
    ASSERT_TRUE(mxfp4_to_affine({codes.data(), 16, &exponent, 1, Mxfp4Order::kPairs},
                                {affine.words, affine.scales, affine.biases}));
    EXPECT_EQ(bfloat16_to_float(affine.biases[0]), -16 * bfloat16_to_float(affine.scales[0])) << "exponent " << e;
  }
}

TEST(Mxfp4, ReadsBlocksThatAreInterleavedWithTheirExponents) {
  std::vector<std::byte> blocks(2 * 17);  // as in GGUF: the exponent, then the codes
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(100 + i);
  Affine affine(2);
  ASSERT_TRUE(mxfp4_to_affine({blocks.data() + 1, 17, blocks.data(), 17, Mxfp4Order::kHalves},
                              {affine.words, affine.scales, affine.biases}));
  EXPECT_EQ(affine.value(1, 0), std::ldexp(e2m1((100 + 18) & 15U), 100 + 17 - 127));
  EXPECT_EQ(affine.value(1, 16), std::ldexp(e2m1((100 + 18) >> 4), 100 + 17 - 127));
}

TEST(Mxfp4, RefusesExponentsThatPassBfloat16AndSpansThatDoNotFit) {
  const std::vector<std::byte> codes = some_codes(1);
  Affine affine(1);
  for (const unsigned e : {252U, 253U, 254U, 255U}) {
    const auto exponent = static_cast<std::byte>(e);
    EXPECT_FALSE(mxfp4_to_affine({codes.data(), 16, &exponent, 1, Mxfp4Order::kPairs},
                                 {affine.words, affine.scales, affine.biases}));
  }
  const std::byte exponent{127};
  affine.words.resize(4);
  EXPECT_THROW((void)mxfp4_to_affine({codes.data(), 16, &exponent, 1, Mxfp4Order::kPairs},
                                     {affine.words, affine.scales, affine.biases}),
               std::invalid_argument);
}

}  // namespace
}  // namespace memoir
