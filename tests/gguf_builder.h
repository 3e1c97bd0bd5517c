#pragma once

// Writes GGUF files in memory for tests, right ones and lies. Field by field as in the format's document
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), independent of the reader.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace memoir::test {

class LittleEndianWriter {
 public:
  template <typename T>
  LittleEndianWriter& value(T value) {
    if constexpr (std::is_same_v<T, float>) {
      return put(std::bit_cast<std::uint32_t>(value), 4);
    } else if constexpr (std::is_same_v<T, double>) {
      return put(std::bit_cast<std::uint64_t>(value), 8);
    } else {
      return put(static_cast<std::uint64_t>(value), sizeof(T));
    }
  }

  LittleEndianWriter& u32(std::uint64_t value) { return put(value, 4); }
  LittleEndianWriter& u64(std::uint64_t value) { return put(value, 8); }

  LittleEndianWriter& raw(std::string_view text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }

  LittleEndianWriter& string(std::string_view text) { return u64(text.size()).raw(text); }

  LittleEndianWriter& zeros(std::size_t n_bytes) {
    bytes_.resize(bytes_.size() + n_bytes);
    return *this;
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  LittleEndianWriter& put(std::uint64_t value, std::size_t n_bytes) {
    for (std::size_t i = 0; i < n_bytes; ++i) bytes_.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xFFU));
    return *this;
  }

  std::vector<std::byte> bytes_;
};

class GgufBuilder {
 public:
  std::string_view magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::optional<std::uint64_t> n_metadata;  // instead of the true counts
  std::optional<std::uint64_t> n_tensors;
  std::size_t data_bytes = 0;
  std::set<std::string, std::less<>> left_out;  // keys of entries that are not written

  /// An entry whose value is what `write` puts after the type number.
  GgufBuilder& entry(std::string_view key, std::uint32_t type, auto write) {
    if (left_out.contains(key)) return *this;
    metadata_.string(key).u32(type);
    write(metadata_);
    ++n_entries_;
    return *this;
  }

  GgufBuilder& integer(std::string_view key, std::uint32_t value) {
    return entry(key, 4, [&](LittleEndianWriter& out) { out.u32(value); });
  }

  GgufBuilder& number(std::string_view key, float value) {
    return entry(key, 6, [&](LittleEndianWriter& out) { out.value(value); });
  }

  GgufBuilder& boolean(std::string_view key, bool value) {
    return entry(key, 7, [&](LittleEndianWriter& out) { out.value(static_cast<std::uint8_t>(value)); });
  }

  GgufBuilder& string(std::string_view key, std::string_view value) {
    return entry(key, 8, [&](LittleEndianWriter& out) { out.string(value); });
  }

  GgufBuilder& strings(std::string_view key, const std::vector<std::string_view>& values) {
    return entry(key, 9, [&](LittleEndianWriter& out) {
      out.u32(8).u64(values.size());
      for (const auto value : values) out.string(value);
    });
  }

  GgufBuilder& integers(std::string_view key, const std::vector<std::uint32_t>& values) {
    return entry(key, 9, [&](LittleEndianWriter& out) {
      out.u32(4).u64(values.size());
      for (const auto value : values) out.u32(value);
    });
  }

  /// dims in the file's order (innermost first), offset from the start of the data.
  GgufBuilder& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                      std::uint64_t offset) {
    table_.string(name).u32(dims.size());
    for (const auto dim : dims) table_.u64(dim);
    table_.u32(type).u64(offset);
    ++n_table_;
    return *this;
  }

  std::vector<std::byte> bytes() const {
    LittleEndianWriter out;
    out.raw(magic).u32(version).u64(n_tensors.value_or(n_table_)).u64(n_metadata.value_or(n_entries_));
    for (const auto* part : {&metadata_, &table_}) {
      for (const std::byte byte : part->bytes()) out.value(static_cast<std::uint8_t>(byte));
    }
    const std::size_t used = out.bytes().size();
    if (data_bytes > 0) out.zeros((used + alignment - 1) / alignment * alignment - used + data_bytes);
    return out.bytes();
  }

 private:
  LittleEndianWriter metadata_;
  LittleEndianWriter table_;
  std::uint64_t n_entries_ = 0;
  std::uint64_t n_table_ = 0;
};

}  // namespace memoir::test
