#pragma once

// The safetensors container: a JSON header that names tensors, then their bytes. No MLX.
// Source of the format: https://github.com/huggingface/safetensors (README, "Format")
//
// Invariants after construction: the header's length, every shape, dtype and byte range was checked against the file;
// ranges do not overlap; size_bytes equals the product of the shape times the size of the dtype.
// Ownership: a SafetensorsFile owns its source. Threads: any number, once it is made.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memoir/base/byte_source.h"

namespace memoir {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                // as in the file: "F32", "F16", "BF16", "U32", ...
  std::vector<std::int64_t> shape;  // outermost first
  std::uint64_t offset;             // of the first byte, from the start of the file
  std::uint64_t size_bytes;
};

class SafetensorsFile {
 public:
  /// Reads the header. Throws FileError, FormatError (path, tensor) or UnsupportedError (an unknown dtype).
  static SafetensorsFile open(const std::filesystem::path& path);
  explicit SafetensorsFile(std::unique_ptr<ByteSource> source);

  const std::string& path() const { return source_->path(); }

  /// The header's "__metadata__", empty where there is none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Ordered by offset.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

  /// How many bytes follow the last tensor's, which no reader looks at. memoir writes none.
  std::uint64_t n_bytes_behind() const;

  /// The bytes of a tensor. `out` must have size_bytes bytes (else std::invalid_argument).
  void read(const SafetensorsTensor& tensor, std::span<std::byte> out) const;

  /// The tensor's bytes from `begin` on, as many as `out` has room for. Throws std::invalid_argument if it has not so
  /// many, and as read().
  void read_part(const SafetensorsTensor& tensor, std::uint64_t begin, std::span<std::byte> out) const;

 private:
  std::unique_ptr<ByteSource> source_;
  std::uint64_t data_start_ = 0;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsTensor> tensors_;
};

/// The beginning of a file that holds one tensor, for whom its bytes (little-endian, the last axis fastest) come later.
/// Throws UnsupportedError for an unknown dtype, FormatError for a shape that no file can have.
std::string safetensors_header(const std::string& name, const std::string& dtype,
                               const std::vector<std::int64_t>& shape);

/// What a tensor to be written is.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// The same for many, whose bytes come later in this order, and with metadata.
/// Throws the same, and std::invalid_argument for two of one name or a text that is not UTF-8.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace memoir
