#include "memoir/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace memoir {
namespace {

// The definition of binary16 in IEEE 754, for a finite pattern without sign.
float by_definition(int bits) {
  const int exponent = bits >> 10;
  const int fraction = bits & 1023;
  return exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                       : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

std::uint16_t pattern(int bits) {
  return static_cast<std::uint16_t>(bits);
}

TEST(HalfTest, EveryFiniteFloat16IsItsDefinition) {
  for (int bits = 0; bits < 0x7C00; ++bits) {
    EXPECT_EQ(float16_to_float(pattern(bits)), by_definition(bits)) << bits;
    EXPECT_EQ(float16_to_float(pattern(bits | 0x8000)), -by_definition(bits)) << bits;
  }
  EXPECT_TRUE(std::signbit(float16_to_float(0x8000)));
}

TEST(HalfTest, EveryFloat16ComesBackFromFloat) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7C00) == 0x7C00 && (bits & 0x3FF) != 0) continue;
    EXPECT_EQ(float_to_float16(float16_to_float(pattern(bits))), bits);
  }
}

// Between neighbours a and b: the middle goes to the even one, its float neighbours to the nearer one. Above the
// largest (0x7BFF) the next step would be 65536, which is infinity (0x7C00).
TEST(HalfTest, RoundsToNearestTiesToEven) {
  for (int bits = 0; bits < 0x7C00; ++bits) {
    const float next = bits == 0x7BFF ? 65536.0F : by_definition(bits + 1);
    const float middle = (by_definition(bits) + next) / 2;
    const float below = std::nextafter(middle, 0.0F);
    const float above = std::nextafter(middle, 1e30F);
    EXPECT_EQ(float_to_float16(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(float_to_float16(below), bits) << bits;
    EXPECT_EQ(float_to_float16(above), bits + 1) << bits;
    EXPECT_EQ(float_to_float16(-above), (bits + 1) | 0x8000) << bits;
  }
}

TEST(HalfTest, KeepsInfinityAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(float16_to_float(0x7C00), infinity);
  EXPECT_EQ(float_to_float16(-infinity), 0xFC00);
  EXPECT_EQ(float_to_finite_float16(-infinity), 0xFC00);
  EXPECT_EQ(float_to_finite_float16(-65520), 0xFBFF);
  EXPECT_EQ(float_to_finite_float16(std::numeric_limits<float>::max()), 0x7BFF);
  EXPECT_EQ(float_to_finite_float16(1.5F), float_to_float16(1.5F));
  EXPECT_TRUE(std::isnan(float16_to_float(float_to_finite_float16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(float16_to_float(0x7C01)));
  EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(nan))));
  // A NaN whose fraction is only in the low bits must not turn into infinity.
  const float low_nan = std::bit_cast<float>(0x7F800001U);
  EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(low_nan))));
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(low_nan))));
  EXPECT_EQ(bfloat16_to_float(float_to_bfloat16(-infinity)), -infinity);
}

TEST(HalfTest, Bfloat16IsTheUpperHalfRoundedToNearestEven) {
  EXPECT_EQ(bfloat16_to_float(0x3F80), 1.0F);
  EXPECT_EQ(bfloat16_to_float(0xC040), -3.0F);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // a tie, down to even
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F818000U)), 0x3F82);  // a tie, up to even
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F807FFFU)), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7F80);
}

}  // namespace
}  // namespace memoir
