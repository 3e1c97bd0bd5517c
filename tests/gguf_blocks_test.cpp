#include "memoir/base/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "memoir/base/half.h"
#include "memoir/base/safetensors.h"

namespace memoir {
namespace {

struct Reference {
  std::vector<std::byte> blocks;
  std::vector<float> values;  // gguf.quants.dequantize, see tests/data/gguf/make_blocks.py
};

std::map<std::string, std::vector<std::byte>> read_all(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    auto& bytes = tensors[tensor.name];
    bytes.resize(tensor.size_bytes);
    file.read(tensor, bytes);
  }
  return tensors;
}

Reference reference_for(GgufType type) {
  static const auto tensors = read_all(MEMOIR_TEST_DATA "/gguf/blocks.safetensors");
  const auto& values = tensors.at(gguf_type_name(type) + ".values");
  Reference reference{tensors.at(gguf_type_name(type) + ".blocks"), std::vector<float>(values.size() / sizeof(float))};
  std::memcpy(reference.values.data(), values.data(), values.size());
  return reference;
}

struct Packed {
  std::vector<std::uint32_t> words;
  std::vector<std::uint16_t> scales;
  std::vector<std::uint16_t> biases;
  bool fits = false;
};

Packed unpack(GgufType type, std::span<const std::byte> blocks) {
  const std::size_t n_blocks = blocks.size() / static_cast<std::size_t>(gguf_block(type)->size_bytes);
  Packed packed;
  packed.words.resize(n_blocks * static_cast<std::size_t>(affine_block(type)->bits));
  packed.scales.resize(n_blocks);
  packed.biases.resize(n_blocks);
  packed.fits = unpack_affine(type, blocks, {packed.words, packed.scales, packed.biases});
  return packed;
}

class DequantizeTest : public testing::TestWithParam<GgufType> {};

TEST_P(DequantizeTest, GivesTheReferencesBits) {
  const Reference reference = reference_for(GetParam());
  std::vector<float> values(reference.values.size());
  dequantize_blocks(GetParam(), reference.blocks, values);
  ASSERT_GE(values.size(), 32U);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(reference.values[i]))
        << "value " << i << ": " << values[i] << ", expected " << reference.values[i];
  }
}

TEST_P(DequantizeTest, RefusesPartsOfBlocks) {
  const GgufBlock block = *gguf_block(GetParam());
  std::vector<std::byte> bytes(static_cast<std::size_t>(block.size_bytes) * 2);
  std::vector<float> values(static_cast<std::size_t>(block.n_elements) * 2);
  EXPECT_NO_THROW(dequantize_blocks(GetParam(), bytes, values));
  EXPECT_THROW(dequantize_blocks(GetParam(), std::span(bytes).subspan(1), values), std::invalid_argument);
  EXPECT_THROW(dequantize_blocks(GetParam(), bytes, std::span(values).subspan(1)), std::invalid_argument);
  EXPECT_NO_THROW(dequantize_blocks(GetParam(), {}, {}));
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantizeTest,
                         testing::Values(GgufType::kF16, GgufType::kBF16, GgufType::kQ4_0, GgufType::kQ4_1,
                                         GgufType::kQ5_0, GgufType::kQ5_1, GgufType::kQ8_0, GgufType::kQ2_K,
                                         GgufType::kQ3_K, GgufType::kQ4_K, GgufType::kQ5_K, GgufType::kQ6_K),
                         [](const auto& instance) { return gguf_type_name(instance.param); });

TEST(GgufBlocksTest, Float32IsCopied) {
  const std::vector<float> values = {1.5F, -0.0F, 1e-40F};
  std::vector<float> out(3);
  dequantize_blocks(GgufType::kF32, std::as_bytes(std::span(values)), out);
  EXPECT_EQ(std::memcmp(out.data(), values.data(), sizeof(float) * 3), 0);
}

TEST(GgufBlocksTest, IntegersAreNotWeights) {
  EXPECT_FALSE(can_dequantize(GgufType::kI32));
  EXPECT_FALSE(can_dequantize(static_cast<GgufType>(99)));
  EXPECT_THROW(dequantize_blocks(GgufType::kI32, {}, {}), std::invalid_argument);
}

// MLX's definition: from bit i * bits of the words on.
std::uint32_t code_at(const std::vector<std::uint32_t>& words, std::size_t bits, std::size_t i) {
  const std::size_t word = i * bits / 32;
  const std::uint64_t next = word + 1 < words.size() ? words[word + 1] : 0;
  return static_cast<std::uint32_t>((words[word] | next << 32) >> (i * bits % 32)) & ((1U << bits) - 1);
}

class UnpackAffineTest : public testing::TestWithParam<GgufType> {};

// MLX's definition: value = scale * code + bias. In
// double nothing is rounded (but the subnormal scale's sum), so the result is the reference's value to the bit.
TEST_P(UnpackAffineTest, MeansTheSameValues) {
  const Reference reference = reference_for(GetParam());
  const Packed packed = unpack(GetParam(), reference.blocks);
  const std::size_t bits = static_cast<std::size_t>(affine_block(GetParam())->bits);
  ASSERT_TRUE(packed.fits);
  for (std::size_t i = 0; i < reference.values.size(); ++i) {
    const std::uint32_t code = code_at(packed.words, bits, i);
    const double value =
        double{float16_to_float(packed.scales[i / 32])} * code + float16_to_float(packed.biases[i / 32]);
    EXPECT_EQ(static_cast<float>(value), reference.values[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, UnpackAffineTest,
                         testing::Values(GgufType::kQ4_0, GgufType::kQ4_1, GgufType::kQ5_0, GgufType::kQ5_1,
                                         GgufType::kQ8_0),
                         [](const auto& instance) { return gguf_type_name(instance.param); });

class SplitGroupsTest : public testing::TestWithParam<GgufType> {};

TEST_P(SplitGroupsTest, MeansTheSameValues) {
  const Reference reference = reference_for(GetParam());
  const auto bits = static_cast<std::size_t>(*grouped_bits(GetParam()));
  const std::size_t n_groups = reference.values.size() / 32;
  std::vector<std::byte> codes(n_groups * bits * 4);
  std::vector<float> scales(n_groups);
  std::vector<float> biases(n_groups);
  std::vector<std::uint32_t> words(n_groups * bits);
  ASSERT_TRUE(split_groups(GetParam(), reference.blocks, {codes, scales, biases}));
  unpack_codes(static_cast<int>(bits), codes, words);
  for (std::size_t i = 0; i < reference.values.size(); ++i) {
    const double value = double{scales[i / 32]} * code_at(words, bits, i) + double{biases[i / 32]};
    EXPECT_EQ(static_cast<float>(value), reference.values[i]) << i;
  }
}

TEST_P(SplitGroupsTest, RefusesWrongSizesAndWhatIsNotFinite) {
  const auto n_bytes = static_cast<std::size_t>(gguf_block(GetParam())->size_bytes);
  const auto bits = static_cast<std::size_t>(*grouped_bits(GetParam()));
  std::vector<std::byte> block(n_bytes);
  std::vector<std::byte> codes(8 * bits * 4);
  std::vector<float> floats(8);
  EXPECT_TRUE(split_groups(GetParam(), block, {codes, floats, floats}));
  const auto call = [&](std::span<const std::byte> in, const SplitGroups& out) {
    return split_groups(GetParam(), in, out);
  };
  EXPECT_THROW((void)call(std::span(block).subspan(1), {codes, floats, floats}), std::invalid_argument);
  EXPECT_THROW((void)call(block, {std::span(codes).subspan(1), floats, floats}), std::invalid_argument);
  EXPECT_THROW((void)call(block, {codes, std::span(floats).subspan(1), floats}), std::invalid_argument);
  EXPECT_THROW((void)call(block, {codes, floats, std::span(floats).subspan(1)}), std::invalid_argument);
  EXPECT_THROW((void)split_groups(GgufType::kQ6_K, block, {codes, floats, floats}), std::invalid_argument);
  for (const std::size_t at : {std::size_t{1}, std::size_t{3}}) {
    std::vector<std::byte> infinite = block;
    infinite[at] = std::byte{0x7C};
    EXPECT_FALSE(call(infinite, {codes, floats, floats}));
  }
}

TEST(GgufBlocksTest, UnpackCodesRefusesWrongSizes) {
  std::vector<std::byte> codes(20);
  std::vector<std::uint32_t> words(5);
  EXPECT_NO_THROW(unpack_codes(5, codes, words));
  EXPECT_THROW(unpack_codes(4, codes, words), std::invalid_argument);
  EXPECT_THROW(unpack_codes(5, std::span(codes).subspan(1), words), std::invalid_argument);
  EXPECT_THROW(unpack_codes(6, codes, words), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(AllTypes, SplitGroupsTest, testing::Values(GgufType::kQ4_K, GgufType::kQ5_K),
                         [](const auto& instance) { return gguf_type_name(instance.param); });

// One block by hand: codes 0..15 in the low nibbles, 15..0 in the high ones.
TEST(GgufBlocksTest, PacksCodesLowBitsFirst) {
  std::vector<std::byte> block = {std::byte{0x00}, std::byte{0x3C}};  // d = 1
  for (unsigned i = 0; i < 16; ++i) block.push_back(static_cast<std::byte>(i | ((15 - i) << 4)));
  const Packed packed = unpack(GgufType::kQ4_0, block);
  EXPECT_EQ(packed.words, (std::vector<std::uint32_t>{0x76543210, 0xFEDCBA98, 0x89ABCDEF, 0x01234567}));
  EXPECT_EQ(packed.scales, std::vector<std::uint16_t>{0x3C00});
  EXPECT_EQ(packed.biases, std::vector<std::uint16_t>{0xC800});  // -8
}

TEST(GgufBlocksTest, TellsWhenABiasOverflowsFloat16) {
  const auto block_of = [](float d, std::size_t n_bytes) {
    std::vector<std::byte> block(n_bytes);
    const std::uint16_t bits = float_to_float16(d);
    block[0] = static_cast<std::byte>(bits & 0xFF);
    block[1] = static_cast<std::byte>(bits >> 8);
    return block;
  };
  // 65504 is the largest float16: 8 * 8188 and 128 * 511.75 just fit.
  EXPECT_TRUE(unpack(GgufType::kQ4_0, block_of(8188.0F, 18)).fits);
  EXPECT_FALSE(unpack(GgufType::kQ4_0, block_of(8192.0F, 18)).fits);
  EXPECT_TRUE(unpack(GgufType::kQ8_0, block_of(-511.75F, 34)).fits);
  EXPECT_FALSE(unpack(GgufType::kQ8_0, block_of(512.0F, 34)).fits);
  EXPECT_TRUE(unpack(GgufType::kQ4_1, block_of(60000.0F, 20)).fits);
  EXPECT_FALSE(unpack(GgufType::kQ4_1, block_of(1e30F, 20)).fits);
}

TEST(GgufBlocksTest, UnpackRefusesWrongSizesAndTypes) {
  std::vector<std::byte> blocks(36);
  std::vector<std::uint32_t> words(8);
  std::vector<std::uint16_t> halves(2);
  EXPECT_TRUE(unpack_affine(GgufType::kQ4_0, blocks, {words, halves, halves}));
  EXPECT_THROW((void)unpack_affine(GgufType::kQ4_0, std::span(blocks).first(35), {words, halves, halves}),
               std::invalid_argument);
  EXPECT_THROW((void)unpack_affine(GgufType::kQ4_0, blocks, {std::span(words).first(4), halves, halves}),
               std::invalid_argument);
  EXPECT_THROW((void)unpack_affine(GgufType::kQ4_0, blocks, {words, std::span(halves).first(1), halves}),
               std::invalid_argument);
  EXPECT_THROW((void)unpack_affine(GgufType::kQ4_0, blocks, {words, halves, std::span(halves).first(1)}),
               std::invalid_argument);
  EXPECT_THROW((void)unpack_affine(GgufType::kQ6_K, {}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace memoir
