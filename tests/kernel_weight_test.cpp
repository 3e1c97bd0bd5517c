// What prepared() refuses before a kernel would index by it.

#include "memoir/kernels/weight.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <new>
#include <stdexcept>
#include <string>

#include "memoir/kernels/allocated.h"
#include "memoir/kernels/linear.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

// 16 rows of 64 columns in 4 bits and groups of 32, or what a test makes of it.
struct Stored {
  mx::Shape codes = {16, 8};
  mx::Shape scales = {16, 2};
  mx::Shape biases = {16, 2};
  int group_size = 32;
  int bits = 4;
  mx::Dtype scale_type = mx::float16;
  mx::Dtype bias_type = mx::float16;
  mx::Dtype code_type = mx::uint32;

  Weight weight() const {
    return {mx::zeros(codes, code_type),
            Quantization{mx::zeros(scales, scale_type), mx::zeros(biases, bias_type), group_size, bits}};
  }
};

std::string refusal(Weight weight) {
  try {
    prepared(std::move(weight));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_REFUSED(weight, part) \
  EXPECT_NE(refusal(weight).find(std::string("[kernels.prepared] ") + (part)), std::string::npos) << refusal(weight)

TEST(Allocated, MemoryThatCannotBeHadIsAnException) {
  const mx::allocator::Data some = allocated(64);
  EXPECT_NE(some.buffer().ptr(), nullptr);
  EXPECT_NO_THROW(allocated(0));
  EXPECT_THROW(allocated(std::size_t{1} << 62), std::bad_alloc);
}

TEST(PreparedWeight, TakesEveryStoredForm) {
  EXPECT_EQ(prepared(Stored().weight()).columns(), 64);
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      const Stored stored{{16, 4 * bits}, {16, 128 / group_size}, {16, 128 / group_size}, group_size, bits};
      EXPECT_EQ(prepared(stored.weight()).columns(), 128) << bits << " " << group_size;
    }
  }
  for (const mx::Dtype type : {mx::float32, mx::float16, mx::bfloat16}) {
    EXPECT_EQ(prepared({mx::zeros({3, 5}, type)}).columns(), 5);
  }
}

TEST(PreparedWeight, RefusesShapesThatAreNoMatrix) {
  for (const mx::Shape& shape : std::vector<mx::Shape>{{}, {8}, {0, 8}, {8, 0}, {2, 3, 4}}) {
    EXPECT_REFUSED(Weight{mx::zeros(shape)}, "the weight is (");
    Stored stored;
    stored.codes = shape;
    EXPECT_REFUSED(stored.weight(), "the weight is (");
  }
}

TEST(PreparedWeight, RefusesTypesThatItCannotRead) {
  for (const mx::Dtype type : {mx::int32, mx::uint8, mx::bool_, mx::complex64}) {
    EXPECT_REFUSED((Weight{mx::zeros({4, 8}, type)}), "the weight is (4,8)");
  }
  EXPECT_REFUSED((Stored{.code_type = mx::int32}.weight()), "the codes are (16,8) int32, expected uint32");
  EXPECT_REFUSED((Stored{.scale_type = mx::int32}.weight()), "scales are (16,2) int32");
  EXPECT_REFUSED((Stored{.bias_type = mx::int32}.weight()), "biases are (16,2) int32");
}

TEST(PreparedWeight, RefusesFormatsThatThereAreNot) {
  for (const int bits : {-4, 0, 1, 7, 9, 16}) EXPECT_REFUSED((Stored{.bits = bits}.weight()), "bits is ");
  for (const int size : {-32, 0, 1, 16, 48, 256}) {
    EXPECT_REFUSED((Stored{.group_size = size}.weight()), "group_size is ");
  }
  EXPECT_REFUSED((Stored{.codes = {16, 9}}.weight()), "codes (16,9) uint32 of 4 bits are no whole groups of 32");
  EXPECT_REFUSED((Stored{.codes = {16, 8}, .bits = 3}.weight()), "codes (16,8)");
}

TEST(PreparedWeight, RefusesScalesAndBiasesOfOtherShapes) {
  for (const mx::Shape& shape : std::vector<mx::Shape>{{16, 1}, {15, 2}, {16, 3}, {32}, {2, 16}, {16, 2, 1}}) {
    EXPECT_REFUSED((Stored{.scales = shape}.weight()), "scales are (");
    EXPECT_REFUSED((Stored{.biases = shape}.weight()), "biases are (");
  }
  EXPECT_REFUSED((Stored{.scales = {16, 1}}.weight()),
                 "scales are (16,1) float16, expected (16,2) of a float type for codes (16,8) uint32");
}

}  // namespace
}  // namespace memoir::kernels
