#pragma once

// Random-access bytes to parse: a file, or memory (tests, fuzzers).
//
// Invariant: the size is fixed when the source is made; a read never goes past it. A file that shrinks afterwards
// gives a FileError, never a signal (which is why files are read, not mapped).
// Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace memoir {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// What to call the source in messages: the file's path, or a name for bytes in memory.
  virtual const std::string& path() const = 0;

  virtual std::uint64_t size_bytes() const = 0;

  /// Fills `out` with the bytes [offset, offset + out.size()).
  /// Throws FormatError if the range passes the end, FileError if the system fails to read.
  virtual void read(std::uint64_t offset, std::span<std::byte> out) = 0;
};

/// Opens a file for reading. Throws FileError if it does not exist, is a directory or can't be opened.
std::unique_ptr<ByteSource> open_file(const std::filesystem::path& path);

/// Bytes in memory, named `name` in messages. Owns them.
std::unique_ptr<ByteSource> memory_source(std::string name, std::vector<std::byte> bytes);

/// The whole of a small file as text. Throws FileError as open_file, and FormatError if it is larger than
/// max_bytes (so that a wrong path can't fill memory).
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes = 256U << 20);

}  // namespace memoir
