#include "memoir/base/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "damaged_bytes.h"
#include "gguf_builder.h"
#include "largest_allocation.h"
#include "memoir/base/error.h"

namespace memoir {
namespace {

const std::string kSmallFile = MEMOIR_TEST_DATA "/safetensors/small.safetensors";

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  return test::LittleEndianWriter().string(header).zeros(data_bytes).bytes();
}

SafetensorsFile parse(const std::vector<std::byte>& bytes) {
  return SafetensorsFile(test::source_of(bytes));
}

// The data ends with the last tensor, so any truncation is an error.
std::vector<std::byte> valid_file() {
  return file_of(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},)"
                 R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}  )",
                 16);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

template <typename Error>
void expect_refused(const std::vector<std::byte>& bytes, const std::string& reason) {
  try {
    parse(bytes);
    ADD_FAILURE() << "opened, expected an error about " << reason;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 1000U);
  }
}

// Opens damaged bytes: an InputError or an object whose tensors can be read. Any other exception fails the test.
void open_and_read(const std::vector<std::byte>& bytes) {
  try {
    const SafetensorsFile file = parse(bytes);
    for (const SafetensorsTensor& tensor : file.tensors()) {
      std::vector<std::byte> out(tensor.size_bytes);
      file.read(tensor, out);
    }
  } catch (const InputError&) {
  }
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const SafetensorsFile file = parse(valid_file());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[0].dtype, "BF16");
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(file.tensors()[0].size_bytes, 8U);
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.tensors()[1].offset, file.tensors()[0].offset + 8);
}

// The values that tests/data/gguf/make_blocks.py hands to safetensors.numpy.save_file.
TEST(SafetensorsTest, ReadsWhatTheReferenceWriterWrote) {
  const SafetensorsFile file = SafetensorsFile::open(kSmallFile);
  EXPECT_EQ(file.metadata().at("format"), "np");
  EXPECT_EQ(file.metadata().at("note"), "ü");
  std::map<std::string, SafetensorsTensor> by_name;
  for (const auto& tensor : file.tensors()) by_name[tensor.name] = tensor;
  ASSERT_EQ(by_name.size(), 5U);
  std::vector<float> plain(6);
  file.read(by_name["plain"], std::as_writable_bytes(std::span(plain)));
  EXPECT_EQ(plain, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(by_name["plain"].shape, (std::vector<std::int64_t>{2, 3}));
  std::int64_t scalar = 0;
  file.read(by_name["scalar"], std::as_writable_bytes(std::span(&scalar, 1)));
  EXPECT_EQ(scalar, -7);
  EXPECT_TRUE(by_name["scalar"].shape.empty());
  EXPECT_EQ(by_name["empty"].size_bytes, 0U);
  EXPECT_EQ(by_name["empty"].shape, (std::vector<std::int64_t>{0, 3}));
}

TEST(SafetensorsTest, SizesEveryDtype) {
  // Bits per element, from the reference implementation's list of types (safetensors, tensor.rs, Dtype::bitsize).
  const std::map<std::string, std::uint64_t> bits = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"U16", 16},    {"I16", 16},    {"U32", 32}, {"I32", 32},
      {"U64", 64},    {"I64", 64},    {"F16", 16},    {"BF16", 16},   {"F32", 32},    {"F64", 64}, {"C64", 64},
      {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
  };
  for (const auto& [dtype, size_bits] : bits) {
    const std::uint64_t size_bytes = 8 * size_bits / 8;
    const auto bytes = file_of(entry(dtype, "[2,4]", "[0," + std::to_string(size_bytes) + "]"), size_bytes);
    EXPECT_EQ(parse(bytes).tensors()[0].size_bytes, size_bytes) << dtype;
  }
  expect_refused<UnsupportedError>(file_of(entry("F128", "[1]", "[0,16]"), 16), "unknown dtype \"F128\"");
  expect_refused<FormatError>(file_of(entry("F4", "[3]", "[0,2]"), 2), "whole byte");
}

TEST(SafetensorsTest, AcceptsEmptyFilesAndNullMetadata) {
  EXPECT_TRUE(parse(file_of("{}", 0)).tensors().empty());
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":null})", 0)).metadata().empty());
}

TEST(SafetensorsTest, ReadWantsExactlyTheTensorsBytes) {
  const SafetensorsFile file = parse(valid_file());
  std::vector<std::byte> out(9);
  EXPECT_THROW(file.read(file.tensors()[0], out), std::invalid_argument);
}

// The reader, which was checked against the reference writer's files, is the judge.
TEST(SafetensorsTest, AHeaderWrittenAheadOfItsDataIsRight) {
  const std::string header = safetensors_header("logits", "F16", {3, 5});
  EXPECT_EQ(header.size() % 8, 0U);
  std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(header.data()),
                               reinterpret_cast<const std::byte*>(header.data() + header.size()));
  bytes.resize(bytes.size() + 30);
  const SafetensorsFile file = parse(bytes);
  ASSERT_EQ(file.tensors().size(), 1U);
  EXPECT_EQ(file.tensors()[0].name, "logits");
  EXPECT_EQ(file.tensors()[0].dtype, "F16");
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(file.tensors()[0].offset, header.size());
  EXPECT_EQ(file.tensors()[0].size_bytes, 30U);
  EXPECT_THROW(safetensors_header("x", "F99", {1}), UnsupportedError);
}

TEST(SafetensorsTest, ANulInTheHeaderIsNoEnd) {
  expect_refused<FormatError>(file_of(std::string("{}\0garbage", 10), 0), "NUL");
}

TEST(SafetensorsTest, MissingFileIsAFileError) {
  EXPECT_THROW(SafetensorsFile::open("/nonexistent/model.safetensors"), FileError);
}

TEST(SafetensorsTest, EveryTruncationIsRefused) {
  test::for_each_truncation(valid_file(),
                            [](const auto& bytes) { EXPECT_THROW(parse(bytes), FormatError) << bytes.size(); });
}

TEST(SafetensorsTest, DamagedBytesNeverCrashOrReserveMuchMemory) {
  const auto reference_file = test::file_bytes(kSmallFile);
  test::largest_allocation_bytes = 0;
  test::for_each_truncation(reference_file, open_and_read);
  test::for_each_damage(reference_file, open_and_read);
  test::for_each_damage(valid_file(), open_and_read);
  EXPECT_LT(test::largest_allocation_bytes, 1U << 20);
}

TEST(SafetensorsTest, RefusesHeaderLengthsThatCannotBe) {
  test::largest_allocation_bytes = 0;
  for (const std::uint64_t length : {~std::uint64_t{0}, std::uint64_t{1} << 60, std::uint64_t{100'000'001}}) {
    expect_refused<FormatError>(test::LittleEndianWriter().u64(length).raw("{}").bytes(), "100 MB");
  }
  expect_refused<FormatError>(test::LittleEndianWriter().u64(3).raw("{}").bytes(), "truncated");
  expect_refused<FormatError>(test::LittleEndianWriter().u64(0).bytes(), "does not begin with {");
  EXPECT_LT(test::largest_allocation_bytes, 1U << 20);
}

TEST(SafetensorsTest, RefusesHeadersThatAreNotOfTheFormat) {
  for (const char* header : {"{",
                             "{} x",
                             "{\"w\":1}",
                             "{\"w\":\"x\"}",
                             "{\"w\":null}",
                             "{\"w\":[]}",
                             "{\"w\":{}}",
                             "{\"w\":true}",
                             "{\"w\":1.5}",
                             "{\"w\":-1}",
                             "{\"__metadata__\":{\"a\":1}}",
                             "{\"__metadata__\":{\"a\":{}}}",
                             "{\"__metadata__\":[]}",
                             "{\"a\":{\"b\":{\"c\":{}}}}",
                             "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":1}}",
                             "{\"w\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}",
                             "{\"w\":{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[0,1]}}",
                             "{\"w\":{\"dtype\":[],\"shape\":[1],\"data_offsets\":[0,1]}}",
                             "{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}",
                             "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}",
                             "{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}",
                             "[1]",
                             " {}",
                             "{\"\xff\":1}"}) {
    EXPECT_THROW(parse(file_of(header, 64)), FormatError) << header;
  }
}

TEST(SafetensorsTest, RefusesDeepNestingAtOnce) {
  std::string header = "{\"w\":";
  for (int i = 0; i < 1'000'000; ++i) header += '[';
  expect_refused<FormatError>(file_of(header, 0), "a list");
}

TEST(SafetensorsTest, RefusesRangesThatCannotBe) {
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[8,0]"), 8), "reversed");
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[0,8]"), 7), "passes the 7 bytes");
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[0,7]"), 8), "does not fit");
  expect_refused<FormatError>(file_of(entry("F32", "[8]", "[0,8]"), 8), "does not fit");
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[0]"), 8), "not a pair");
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[0,4,8]"), 8), "not a pair");
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[0,18446744073709551615]"), 8), "above 2^63 - 1");
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[-1,7]"), 8), "negative");
  expect_refused<FormatError>(file_of(entry("U8", "[8]", "[0,1e99]"), 8), "not a whole one");
}

TEST(SafetensorsTest, RefusesShapesThatOverflow) {
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775807,2]", "[4611686018427387904]"}) {
    expect_refused<FormatError>(file_of(entry("F64", shape, "[0,0]"), 8), "more elements");
  }
  std::string dims = "1";
  for (int i = 0; i < 40; ++i) dims += ",1";
  expect_refused<FormatError>(file_of(entry("U8", "[" + dims + "]", "[0,1]"), 8), "32 dimensions");
}

TEST(SafetensorsTest, RefusesOverlapsAndDuplicates) {
  const std::string a = R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  const std::string b = R"("b":{"dtype":"U8","shape":[8],"data_offsets":[7,15]})";
  expect_refused<FormatError>(file_of("{" + a + "," + b + "}", 15), "overlaps the tensor a");
  expect_refused<FormatError>(file_of("{" + a + "," + a + "}", 15), "twice");
  expect_refused<FormatError>(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "twice");
  expect_refused<FormatError>(file_of(R"({"w":{"dtype":"U8","dtype":"U8"}})", 0), "twice");
}

}  // namespace
}  // namespace memoir
