#pragma once

// The GGUF container, versions 2 and 3, little-endian: metadata and the table of tensors. No MLX.
// Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// Invariants after construction: every count, length, offset and size was checked against the file before it was
// used; every tensor's bytes lie inside the file and overlap no other's; names and keys are unique; every row is made
// of whole blocks.
// Ownership: a GgufFile owns its source. Threads: any number, once it is made.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "memoir/base/byte_source.h"

namespace memoir {

/// Tensor types by their number in the file. Only the named ones can be read; others raise UnsupportedError when
/// their size is needed, that is on opening.
enum class GgufType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kBF16 = 30,
  kMXFP4 = 39,
};

/// "F32", "Q4_K", ... or "type 99".
std::string gguf_type_name(GgufType type);

/// What a row is made of: whole blocks of n_elements values in size_bytes bytes (plain types: one value a block).
struct GgufBlock {
  std::int64_t n_elements;
  std::int64_t size_bytes;
};

/// nullopt for a type that is not named above.
std::optional<GgufBlock> gguf_block(GgufType type);

struct GgufTensor {
  std::string name;
  GgufType type;
  std::vector<std::int64_t> shape;  // outermost first (rows, columns): the file's order reversed
  std::uint64_t offset;             // of the first byte, from the start of the file
  std::uint64_t size_bytes;

  std::int64_t n_elements() const;
};

class GgufFile {
 public:
  /// A metadata value. Integers of any width become int64 (uint64 above 2^63 - 1 is refused), floats double; an array
  /// of booleans becomes integers 0 and 1. Arrays of arrays are refused (UnsupportedError).
  using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>,
                             std::vector<std::string>>;

  /// Reads header, metadata and tensor table, at most 1 GiB. Throws FileError, FormatError (path, key) or
  /// UnsupportedError (version 1, a big-endian file, a tensor type without a name above).
  static GgufFile open(const std::filesystem::path& path);
  explicit GgufFile(std::unique_ptr<ByteSource> source);

  const std::string& path() const { return source_->path(); }

  const std::map<std::string, Value, std::less<>>& metadata() const { return metadata_; }

  /// Typed look-ups: nullopt / nullptr where the key is absent, FormatError where it has another type.
  /// number() also takes an integer.
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  const std::string* string(std::string_view key) const;
  const std::vector<std::int64_t>* integers(std::string_view key) const;
  const std::vector<double>* numbers(std::string_view key) const;
  const std::vector<std::string>* strings(std::string_view key) const;

  /// In the file's order.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  /// The raw bytes of a tensor, blocks and all. `out` must have size_bytes bytes (else std::invalid_argument).
  void read(const GgufTensor& tensor, std::span<std::byte> out) const;

  /// The tensor's bytes from `begin` on, as many as `out` has room for. Throws std::invalid_argument if it has not so
  /// many, and as read().
  void read_part(const GgufTensor& tensor, std::uint64_t begin, std::span<std::byte> out) const;

 private:
  std::unique_ptr<ByteSource> source_;
  std::map<std::string, Value, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace memoir
