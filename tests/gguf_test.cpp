#include "memoir/base/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "damaged_bytes.h"
#include "gguf_builder.h"
#include "largest_allocation.h"
#include "memoir/base/error.h"

namespace memoir {
namespace {

using test::GgufBuilder;
using test::LittleEndianWriter;

const std::string kSmallFile = MEMOIR_TEST_DATA "/gguf/small.gguf";

GgufFile parse(const std::vector<std::byte>& bytes) {
  return GgufFile(test::source_of(bytes));
}

// Two tensors and metadata of several kinds; the data ends with the last tensor, so any truncation is an error.
GgufBuilder valid_file() {
  GgufBuilder file;
  file.string("general.architecture", "llama").integer("llama.block_count", 4).boolean("flag", true);
  file.number("llama.rope.freq_base", 10000.0F).strings("tokens", {"a", "bc", ""}).integers("numbers", {1, 2, 3});
  file.tensor("first.weight", {3, 2}, 0, 0).tensor("second.weight", {64}, 8, 32);
  file.data_bytes = 32 + 68;
  return file;
}

template <typename Error>
void expect_refused(const std::vector<std::byte>& bytes, const std::string& key, const std::string& reason) {
  try {
    parse(bytes);
    ADD_FAILURE() << "opened, expected an error about " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), key) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

// Opens damaged bytes: an InputError or an object whose tensors can be read. Any other exception fails the test.
void open_and_read(const std::vector<std::byte>& bytes) {
  try {
    const GgufFile file = parse(bytes);
    for (const GgufTensor& tensor : file.tensors()) {
      std::vector<std::byte> out(tensor.size_bytes);
      file.read(tensor, out);
    }
  } catch (const InputError&) {
  }
}

TEST(GgufTest, ReadsMetadataAndTensorTable) {
  const GgufFile file = parse(valid_file().bytes());
  EXPECT_EQ(*file.string("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.block_count"), 4);
  EXPECT_EQ(file.boolean("flag"), true);
  EXPECT_EQ(file.number("llama.rope.freq_base"), 10000.0);
  EXPECT_EQ(file.number("llama.block_count"), 4.0);
  EXPECT_EQ(*file.strings("tokens"), (std::vector<std::string>{"a", "bc", ""}));
  EXPECT_EQ(*file.integers("numbers"), (std::vector<std::int64_t>{1, 2, 3}));
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.tensors()[0].size_bytes, 24U);
  EXPECT_EQ(file.tensors()[1].type, GgufType::kQ8_0);
  EXPECT_EQ(file.tensors()[1].size_bytes, 68U);
  EXPECT_EQ(file.tensors()[1].offset, file.tensors()[0].offset + 32);
}

TEST(GgufTest, ReadsVersion2) {
  GgufBuilder builder = valid_file();
  builder.version = 2;
  EXPECT_EQ(parse(builder.bytes()).tensors().size(), 2U);
}

TEST(GgufTest, ReadsAFileWithoutTensors) {
  GgufBuilder file;
  file.string("general.architecture", "llama");
  EXPECT_TRUE(parse(file.bytes()).tensors().empty());
}

// The values that tests/data/gguf/make_blocks.py hands to gguf.GGUFWriter.
TEST(GgufTest, ReadsWhatTheReferenceWriterWrote) {
  const GgufFile file = GgufFile::open(kSmallFile);
  EXPECT_EQ(file.integer("test.uint8"), 200);
  EXPECT_EQ(file.integer("test.int8"), -100);
  EXPECT_EQ(file.integer("test.uint16"), 60000);
  EXPECT_EQ(file.integer("test.int16"), -30000);
  EXPECT_EQ(file.integer("test.uint32"), 4000000000);
  EXPECT_EQ(file.integer("test.int32"), -2000000000);
  EXPECT_EQ(file.integer("test.uint64"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(file.integer("test.int64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(file.number("test.float32"), 0.5);
  EXPECT_EQ(file.number("test.float64"), 1e300);
  EXPECT_EQ(file.boolean("test.bool"), true);
  EXPECT_EQ(*file.string("test.string"), "grüße");
  EXPECT_EQ(*file.integers("test.integers"), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(*file.numbers("test.numbers"), (std::vector<double>{0.25, -4.0}));
  EXPECT_EQ(*file.strings("test.strings"), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_EQ(*file.integers("test.bools"), (std::vector<std::int64_t>{1, 0}));
  ASSERT_EQ(file.tensors().size(), 4U);
  const GgufTensor& plain = file.tensors()[0];
  EXPECT_EQ(plain.name, "plain.weight");
  EXPECT_EQ(plain.shape, (std::vector<std::int64_t>{2, 3}));
  std::vector<float> values(6);
  file.read(plain, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(file.tensors()[2].type, GgufType::kQ8_0);
  EXPECT_EQ(file.tensors()[2].shape, (std::vector<std::int64_t>{3, 64}));
  EXPECT_EQ(file.tensors()[3].size_bytes, 2U * 2 * 20);
}

// A header longer than the reader's buffer: strings across its edges must come out whole.
TEST(GgufTest, ReadsAHeaderOfManyBuffers) {
  std::vector<std::string> texts;
  for (int i = 0; i < 60000; ++i) texts.push_back("token number " + std::to_string(i));
  const std::string long_text(300000, 'x');
  GgufBuilder builder;
  builder.strings("tokens", {texts.begin(), texts.end()}).string("long", long_text).integer("after", 7);
  const GgufFile file = parse(builder.bytes());
  EXPECT_EQ(*file.strings("tokens"), texts);
  EXPECT_EQ(*file.string("long"), long_text);
  EXPECT_EQ(file.integer("after"), 7);
}

TEST(GgufTest, LookUpTellsAbsentFromWrongType) {
  const GgufFile file = parse(valid_file().bytes());
  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_EQ(file.string("absent"), nullptr);
  EXPECT_EQ(file.strings("absent"), nullptr);
  EXPECT_THROW(file.integer("general.architecture"), FormatError);
  EXPECT_THROW(file.number("general.architecture"), FormatError);
  EXPECT_THROW(file.string("llama.block_count"), FormatError);
  EXPECT_THROW(file.boolean("llama.block_count"), FormatError);
  EXPECT_THROW(file.strings("numbers"), FormatError);
  EXPECT_THROW(file.numbers("numbers"), FormatError);
}

TEST(GgufTest, ReadWantsExactlyTheTensorsBytes) {
  const GgufFile file = parse(valid_file().bytes());
  std::vector<std::byte> out(23);
  EXPECT_THROW(file.read(file.tensors()[0], out), std::invalid_argument);
}

TEST(GgufTest, MissingFileIsAFileError) {
  EXPECT_THROW(GgufFile::open("/nonexistent/model.gguf"), FileError);
}

TEST(GgufTest, EveryTruncationIsRefused) {
  test::for_each_truncation(valid_file().bytes(),
                            [](const auto& bytes) { EXPECT_THROW(parse(bytes), FormatError) << bytes.size(); });
}

TEST(GgufTest, DamagedBytesNeverCrashOrReserveMuchMemory) {
  const auto reference_file = test::file_bytes(kSmallFile);
  test::largest_allocation_bytes = 0;
  test::for_each_truncation(reference_file, open_and_read);
  test::for_each_damage(reference_file, open_and_read);
  test::for_each_damage(valid_file().bytes(), open_and_read);
  EXPECT_LT(test::largest_allocation_bytes, 1U << 20);
}

TEST(GgufTest, RefusesWrongMagicAndVersions) {
  GgufBuilder builder = valid_file();
  builder.magic = "GGML";
  expect_refused<FormatError>(builder.bytes(), "", "not a GGUF file");
  builder = valid_file();
  for (const std::uint32_t version : {0U, 1U, 4U}) {
    builder.version = version;
    expect_refused<UnsupportedError>(builder.bytes(), "", "GGUF version " + std::to_string(version));
  }
  builder.version = 3U << 24;
  expect_refused<UnsupportedError>(builder.bytes(), "", "big-endian");
}

TEST(GgufTest, RefusesCountsThatCannotBe) {
  test::largest_allocation_bytes = 0;
  for (const std::uint64_t count : {std::uint64_t{1} << 60, ~std::uint64_t{0}, std::uint64_t{1000}}) {
    GgufBuilder builder = valid_file();
    builder.n_metadata = count;
    expect_refused<FormatError>(builder.bytes(), "", "metadata entries");
    builder = valid_file();
    builder.n_tensors = count;
    expect_refused<FormatError>(builder.bytes(), "", "tensors");
  }
  EXPECT_LT(test::largest_allocation_bytes, 1U << 20);
}

TEST(GgufTest, RefusesLengthsThatPassTheEnd) {
  test::largest_allocation_bytes = 0;
  for (const std::uint64_t length : {std::uint64_t{1} << 60, ~std::uint64_t{0}, std::uint64_t{5000}}) {
    GgufBuilder builder;
    builder.entry("text", 8, [&](LittleEndianWriter& out) { out.u64(length).zeros(16); });
    expect_refused<FormatError>(builder.bytes(), "text", "bytes of a string");
    for (const std::uint32_t type : {0U, 4U, 6U, 8U, 10U}) {
      builder = {};
      builder.entry("list", 9, [&](LittleEndianWriter& out) { out.u32(type).u64(length).zeros(64); });
      expect_refused<FormatError>(builder.bytes(), "list", "array elements");
    }
  }
  EXPECT_LT(test::largest_allocation_bytes, 1U << 20);
}

TEST(GgufTest, RefusesNestedArraysAndUnknownValueTypes) {
  GgufBuilder builder;
  builder.entry("nested", 9,
                [](LittleEndianWriter& out) { out.u32(9).u64(1).u32(9).u64(1).u32(4).u64(1).u32(5).zeros(64); });
  expect_refused<UnsupportedError>(builder.bytes(), "nested", "array of arrays");
  for (const std::uint32_t type : {13U, 99U, ~0U}) {
    builder = {};
    builder.entry("odd", type, [](LittleEndianWriter& out) { out.u64(0); });
    expect_refused<FormatError>(builder.bytes(), "odd", "unknown value type");
    builder = {};
    builder.entry("odd", 9, [&](LittleEndianWriter& out) { out.u32(type).u64(0).u64(0); });
    expect_refused<FormatError>(builder.bytes(), "odd", "unknown value type");
  }
}

TEST(GgufTest, RefusesValuesOutOfRange) {
  GgufBuilder builder;
  builder.entry("big", 10, [](LittleEndianWriter& out) { out.u64(std::uint64_t{1} << 63); });
  expect_refused<FormatError>(builder.bytes(), "big", "above 2^63 - 1");
  builder = {};
  builder.entry("flag", 7, [](LittleEndianWriter& out) { out.raw("\x02"); });
  expect_refused<FormatError>(builder.bytes(), "flag", "expected 0 or 1");
  builder = {};
  builder.integer("", 1);
  expect_refused<FormatError>(builder.bytes(), "", "is empty");
}

TEST(GgufTest, RefusesDuplicates) {
  GgufBuilder builder;
  builder.integer("key", 1).integer("key", 1);
  expect_refused<FormatError>(builder.bytes(), "key", "twice");
  builder = {};
  builder.tensor("w", {8}, 0, 0).tensor("w", {8}, 0, 32);
  builder.data_bytes = 64;
  expect_refused<FormatError>(builder.bytes(), "w", "twice");
}

TEST(GgufTest, AlignmentMustBeAPowerOfTwo) {
  for (const std::uint32_t alignment : {0U, 3U, 48U, 1U << 31}) {
    GgufBuilder builder;
    builder.integer("general.alignment", alignment);
    expect_refused<FormatError>(builder.bytes(), "general.alignment", "power of two");
  }
  GgufBuilder builder;
  builder.string("general.alignment", "32");
  expect_refused<FormatError>(builder.bytes(), "general.alignment", "expected an integer");
  builder = {};
  builder.integer("general.alignment", 64).tensor("w", {8}, 0, 0);
  builder.alignment = 64;
  builder.data_bytes = 32;
  EXPECT_EQ(parse(builder.bytes()).tensors()[0].offset % 64, 0U);
}

TEST(GgufTest, RefusesShapesThatCannotBe) {
  const auto refused = [](const std::vector<std::uint64_t>& dims, std::uint32_t type, const std::string& reason) {
    GgufBuilder builder;
    builder.tensor("w", dims, type, 0);
    builder.data_bytes = 4096;
    expect_refused<FormatError>(builder.bytes(), "w", reason);
  };
  refused({}, 0, "dimensions");
  refused({1, 1, 1, 1, 1}, 0, "dimensions");
  refused({0}, 0, "a dimension is 0");
  refused({8, 0}, 0, "a dimension is 0");
  refused({std::uint64_t{1} << 63}, 0, "above 2^63 - 1");
  refused({std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, "2^63 - 1 elements");
  refused({std::uint64_t{1} << 62}, 0, "2^63 - 1 bytes");
  refused({33}, 2, "not a multiple of 32");
  refused({128}, 12, "not a multiple of 256");
  refused({8, 1024}, 0, "pass the end");
}

TEST(GgufTest, RefusesTensorTypesItCannotSize) {
  for (const std::uint32_t type : {4U, 5U, 9U, 16U, 31U, 40U, ~0U}) {
    GgufBuilder builder;
    builder.tensor("w", {256}, type, 0);
    builder.data_bytes = 4096;
    expect_refused<UnsupportedError>(builder.bytes(), "w", "type " + std::to_string(type));
  }
}

TEST(GgufTest, RefusesOffsetsThatCannotBe) {
  const auto refused = [](std::uint64_t offset, const std::string& reason) {
    GgufBuilder builder;
    builder.tensor("w", {8}, 0, offset);
    builder.data_bytes = 64;
    expect_refused<FormatError>(builder.bytes(), "w", reason);
  };
  refused(4, "not a multiple of the alignment");
  refused(64, "pass the end");
  refused(~std::uint64_t{0} << 5, "pass the end");
  GgufBuilder builder;
  builder.tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32);
  builder.data_bytes = 64;
  expect_refused<FormatError>(builder.bytes(), "b", "overlaps the tensor a");
}

TEST(GgufTest, NamesTypes) {
  EXPECT_EQ(gguf_type_name(GgufType::kQ4_K), "Q4_K");
  EXPECT_EQ(gguf_type_name(static_cast<GgufType>(99)), "type 99");
  EXPECT_EQ(gguf_block(GgufType::kQ6_K)->size_bytes, 210);
  EXPECT_FALSE(gguf_block(static_cast<GgufType>(99)).has_value());
}

}  // namespace
}  // namespace memoir
