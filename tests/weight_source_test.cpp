// A weight packed as it is read: the bytes are those of packing it whole, whatever pieces it is read in.

#include "memoir/kernels/weight_source.h"

#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "memoir/kernels/device.h"

namespace mx = mlx::core;

namespace memoir::kernels {
namespace {

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

std::vector<std::byte> packed(const WeightSource& source) {
  const std::optional<Weight> weight = prepared(source);
  const std::byte* bytes = packed_bytes(weight.value().data);
  return {bytes, bytes + source.format.size_bytes()};
}

// `values` row after row, which the source reads by copying.
WeightSource copying(const cpu::PackedFormat& format, const std::vector<std::byte>& values) {
  const std::size_t row_bytes = values.size() / static_cast<std::size_t>(format.n_rows);
  return {format, row_bytes, [&values, row_bytes](int begin, int end, std::byte* scratch) {
            const std::size_t n_bytes = static_cast<std::size_t>(end - begin) * row_bytes;
            std::memcpy(scratch, values.data() + static_cast<std::size_t>(begin) * row_bytes, n_bytes);
            return std::optional(cpu::StoredRows{scratch, row_bytes});
          }};
}

TEST(WeightSource, DenseRowsAreThoseOfTheWholeMatrix) {
  for (const cpu::Element element : {cpu::Element::kF32, cpu::Element::kF16, cpu::Element::kBF16}) {
    for (const int n_rows : {1, 15, 16, 17, 1000}) {
      const cpu::PackedFormat format{n_rows, 300, element};
      const auto values = random_bytes(static_cast<std::size_t>(n_rows) * 300 * cpu::element_bytes(element), 1);
      std::vector<std::byte> expected(format.size_bytes());
      cpu::pack_dense(format, values.data(), expected.data());
      EXPECT_EQ(packed(copying(format, values)), expected) << n_rows;
    }
  }
}

// Codes of a row one after the other, as MLX has them; scales and biases beside them.
TEST(WeightSource, QuantizedRowsAreThoseOfTheWholeMatrix) {
  constexpr int kColumns = 256;
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const bool has_biases : {true, false}) {
      const cpu::PackedFormat format{777, kColumns, cpu::Element::kBF16, bits, 64, has_biases};
      const auto n_groups = static_cast<std::size_t>(format.n_rows) * static_cast<std::size_t>(format.n_groups());
      const auto codes = random_bytes(n_groups * static_cast<std::size_t>(bits) * 8, 2);
      const auto scales = random_bytes(n_groups * 2, 3);
      const auto biases = random_bytes(n_groups * 2, 4);
      std::vector<std::uint32_t> words(codes.size() / 4);
      std::memcpy(words.data(), codes.data(), codes.size());
      std::vector<std::byte> expected(format.size_bytes());
      cpu::pack_quantized(format, words.data(), scales.data(), biases.data(), expected.data());
      WeightSource source = copying(format, codes);
      source.read = [&, read = source.read](int begin, int end, std::byte* scratch) {
        std::optional<cpu::StoredRows> rows = read(begin, end, scratch);
        rows->block_bytes = static_cast<std::size_t>(bits) * 4;
        rows->group_bytes = 2;
        rows->row_group_bytes = static_cast<std::size_t>(format.n_groups()) * 2;
        rows->scales = scales.data() + static_cast<std::size_t>(begin) * rows->row_group_bytes;
        rows->biases = biases.data() + static_cast<std::size_t>(begin) * rows->row_group_bytes;
        return rows;
      };
      EXPECT_EQ(packed(source), expected) << bits;
    }
  }
}

struct Codes {
  std::vector<std::byte> row_order;  // as MLX has them
  std::vector<std::byte> other;      // the same codes in the order under test
};

// 32 codes of `bits` bits, at the places that packed.h names for the order.
Codes codes_in(cpu::CodeOrder order, int bits, unsigned seed) {
  std::mt19937 generator(seed);
  const auto n_bytes = static_cast<std::size_t>(bits) * 4;
  Codes codes{std::vector<std::byte>(n_bytes), std::vector<std::byte>(n_bytes)};
  const auto put = [](std::vector<std::byte>& bytes, unsigned bit) {
    bytes[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
  };
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned code = generator() % (1U << bits);
    for (unsigned b = 0; b < static_cast<unsigned>(bits); ++b) {
      if ((code >> b & 1U) != 0) put(codes.row_order, i * static_cast<unsigned>(bits) + b);
    }
    if (order == cpu::CodeOrder::kSigned) {
      codes.other[i] = static_cast<std::byte>(code - 128U);
      continue;
    }
    const unsigned first = bits == 5 ? 4 : 0;  // byte of the four lower bits
    for (unsigned b = 0; b < 4; ++b) {
      if ((code >> b & 1U) != 0) put(codes.other, (first + i % 16) * 8 + i / 16 * 4 + b);
    }
    if (code >> 4 != 0) put(codes.other, i);
  }
  return codes;
}

TEST(PackedRows, CodesInOtherOrdersMeanTheSame) {
  const std::vector<std::byte> scale = random_bytes(2, 5);
  const auto packed_as = [&](int bits, cpu::CodeOrder order, const std::vector<std::byte>& codes) {
    const cpu::PackedFormat format{1, 32, cpu::Element::kF16, bits, 32, false};
    cpu::StoredRows rows{codes.data(), codes.size(), codes.size(), scale.data()};
    rows.order = order;
    std::vector<std::byte> out(format.tile_bytes());
    cpu::pack_rows(format, rows, 1, out.data());
    return out;
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    for (const int bits : {4, 5, 8}) {
      const cpu::CodeOrder order = bits == 8 ? cpu::CodeOrder::kSigned : cpu::CodeOrder::kHalves;
      const Codes codes = codes_in(order, bits, seed);
      EXPECT_EQ(packed_as(bits, order, codes.other), packed_as(bits, cpu::CodeOrder::kRow, codes.row_order)) << bits;
    }
  }
}

TEST(WeightSource, PiecesBeginAtMultiplesAndAreReadOnce) {
  for (const int multiple : {1, 16, 24, 80, 1000}) {
    const int n_rows = multiple * 9;
    const auto values = random_bytes(static_cast<std::size_t>(n_rows) * 4096, 6);
    std::vector<std::atomic<int>> n_reads(static_cast<std::size_t>(n_rows));
    WeightSource source = copying({n_rows, 1024, cpu::Element::kF32}, values);
    source.row_multiple = multiple;
    source.read = [&, read = source.read](int begin, int end, std::byte* scratch) {
      EXPECT_EQ(begin % multiple, 0);
      EXPECT_TRUE(end % multiple == 0 || end == n_rows);
      for (int row = begin; row < end; ++row) ++n_reads[static_cast<std::size_t>(row)];
      return read(begin, end, scratch);
    };
    EXPECT_TRUE(prepared(source).has_value());
    EXPECT_TRUE(std::all_of(n_reads.begin(), n_reads.end(), [](const auto& n) { return n == 1; })) << multiple;
  }
}

TEST(WeightSource, AValueThatCannotBeHeldGivesNothing) {
  const auto values = random_bytes(std::size_t{5000} * 64, 7);
  WeightSource source = copying({5000, 16, cpu::Element::kF32}, values);
  source.read = [read = source.read](int begin, int end, std::byte* scratch) {
    return end > 4000 ? std::nullopt : read(begin, end, scratch);
  };
  EXPECT_FALSE(prepared(source).has_value());
}

TEST(WeightSource, WhatReadingThrowsIsThrown) {
  const auto values = random_bytes(std::size_t{5000} * 64, 8);
  WeightSource source = copying({5000, 16, cpu::Element::kF32}, values);
  source.read = [](int, int, std::byte*) -> std::optional<cpu::StoredRows> { throw std::domain_error("no file"); };
  EXPECT_THROW(prepared(source), std::domain_error);
  EXPECT_EQ(packed(copying(source.format, values)).size(), source.format.size_bytes());  // the pool is as before
}

}  // namespace
}  // namespace memoir::kernels
